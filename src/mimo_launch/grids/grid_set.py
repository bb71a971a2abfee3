"""Live process groups of a layout, created in one global order.

Decides: which rank sets become groups; equal sets share one.
Relies on: `layout.groups` and the bridges' components, the same list on every rank.
Leaves: choosing collectives to `comm`.

# Invariant: every rank calls new_group for every group, member or not, in the same order; anything
# else desynchronises the group counter and hangs. New groups would wait 30 minutes unless told
# otherwise, so each gets the job's timeout.
"""

from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from mimo_launch.layout.layout import Layout
from mimo_launch.schedule.channels import components_of


@dataclass(frozen=True, slots=True)
class Group:
    """A process group as this rank sees it; `handle` is None when it holds this rank alone."""

    ranks: tuple[int, ...]
    index: int
    handle: ProcessGroup | None

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.ranks)


class GridSet:
    """Every process group that this rank belongs to; `close()` destroys them once."""

    def __init__(
        self, layout: Layout, rank: int, *, timeout: timedelta, device: torch.device
    ) -> None:
        """Create all groups.

        Ranks: collective over the world. Raises: RuntimeError from torch if a rank is missing.
        """
        self.layout, self.rank, self.device = layout, rank, device
        self._timeout = timeout
        self._by_ranks: dict[tuple[int, ...], ProcessGroup] = {}
        self._named: dict[str, Group] = {}
        for plan in layout.groups:
            # FSDP needs a live group even when a module has one replica.
            keep_single = plan.name.endswith(".dp_cp")
            self._create(plan.name, plan.ranks, keep_single=keep_single)
        for encoder in layout.encoders:
            for ranks in components_of(layout, encoder.name):
                self._create(f"{encoder.name}.bridge", ranks, keep_single=False)
        self._p2p: dict[str, ProcessGroup] = {}
        if _has_point_to_point(layout):
            # Forward and backward traffic in groups of their own: opposite directions never queue
            # behind each other.
            everyone = list(range(layout.world_size))
            for direction in ("forward", "backward"):
                self._p2p[direction] = dist.new_group(
                    everyone, timeout=timeout, group_desc=f"p2p.{direction}"
                )

    def _create(self, name: str, ranks: tuple[int, ...], *, keep_single: bool) -> None:
        if (len(ranks) > 1 or keep_single) and ranks not in self._by_ranks:
            self._by_ranks[ranks] = dist.new_group(
                list(ranks), timeout=self._timeout, group_desc=name
            )
        if self.rank in ranks:
            handle = self._by_ranks.get(ranks) if len(ranks) > 1 else None
            self._named[name] = Group(ranks, ranks.index(self.rank), handle)

    def group(self, module: str, *axes: str) -> Group:
        """Return this rank's group of `module` along `axes`, e.g. `group("language", "tp")`."""
        return self._named[f"{module}.{'_'.join(axes)}"]

    def tied(self) -> Group | None:
        """Return the two ranks that hold the same part of a tied embedding, on one of them."""
        return self._named.get(f"{self.layout.language.name}.tied")

    def bridge(self, encoder: str) -> Group:
        """Return this rank's component of a bridge."""
        return self._named[f"{encoder}.bridge"]

    def p2p(self, direction: str) -> ProcessGroup:
        """Return the job-wide point-to-point group, `forward` or `backward`."""
        return self._p2p[direction]

    def mesh(self, module: str) -> DeviceMesh:
        """Return the 1-D mesh over dp x cp that shards the weights of `module`.

        Ranks: local. A mesh wraps an existing group; slicing or flattening a mesh would create
        groups on members only, which hangs the others.
        """
        ranks = self._named[f"{module}.dp_cp"].ranks
        return DeviceMesh.from_group(
            self._by_ranks[ranks],
            self.device.type,
            mesh=torch.tensor(ranks),
            mesh_dim_names=("dp_cp",),
        )

    def close(self) -> None:
        """Destroy every group, the default one included."""
        if dist.is_initialized():
            dist.destroy_process_group()


def _has_point_to_point(layout: Layout) -> bool:
    """Return whether any rank sends to another inside a pipeline."""
    pipelined = any(len(module.stages) > 1 for module in layout.modules)
    upstream = any(not module.in_phases for module in layout.encoders)
    filled = layout.schedule == "bubble_filling"
    return layout.world_size > 1 and (pipelined or upstream or filled)
