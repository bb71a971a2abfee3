"""Live process groups of a plan, created in one global order.

Decides: which rank sets become groups; equal sets share one.
Relies on: the groups of the plan, the same list on every rank.
Leaves: choosing collectives to `comm`.

# Invariant: every rank calls new_group for every group, member or not, in the same order; any other
# order desynchronises the group counter and hangs. The default timeout is 30 minutes, so each group
# gets the job's timeout.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from mimo_launch.comm.peer_copies import PeerCopies, open_copies
from mimo_launch.comm.step_clock import StepClock, TokenExchange
from mimo_launch.schedule.channels import Channel, P2PGroup, PlannedGroups, p2p_group_of
from mimo_launch.spec.base import Axis

# A Hopper GPU runs 132 concurrently; each moves about 20 GB/s over NVLink.
P2P_THREAD_BLOCKS = 2


@dataclass(frozen=True, slots=True)
class Group:
    """A process group with this rank's `index` in it; `handle` is None if it has no other rank.

    `clock` notes when its ranks exchange tokens. `copies` exchanges tokens beside products, if the
    GPUs can read each other's memory.
    """

    ranks: tuple[int, ...]
    index: int
    handle: ProcessGroup | None
    clock: StepClock | None = field(default=None, compare=False)
    copies: PeerCopies | None = field(default=None, compare=False)

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    def noted(self) -> AbstractContextManager[None]:
        """Record the time inside as an exchange of tokens, if there are several ranks."""
        if self.clock is None or self.size == 1:
            return nullcontext()
        return self.clock.span(TokenExchange(self.ranks))


class GridSet:
    """Every process group of this rank, and its clock; `close()` destroys the groups once."""

    def __init__(
        self, plan: PlannedGroups, rank: int, *, timeout: timedelta, device: torch.device
    ) -> None:
        """Create all groups.

        Ranks: collective over the world. Raises: RuntimeError from torch if a rank is missing.
        """
        self.layout, self.rank, self.device = plan.layout, rank, device
        self.clock = StepClock(device)
        self._timeout, self._backend = timeout, "nccl" if device.type == "cuda" else "gloo"
        self._by_ranks: dict[tuple[int, ...], ProcessGroup] = {}
        self._named: dict[str, Group] = {}
        for group in plan.groups:
            self._create(group.name, group.ranks)
        # Job-wide, because groups of pairs would be too many. On a GPU each pair of ranks has a
        # separate queue in a group, so that channels never wait for each other, as the simulation
        # assumes.
        self._p2p = {each: self._new_p2p(each) for each in plan.p2p_groups}

    def _new_p2p(self, which: P2PGroup) -> ProcessGroup:
        group: ProcessGroup = dist.new_group(
            list(range(self.layout.world_size)),
            timeout=self._timeout,
            backend=self._backend,
            pg_options=_p2p_options(self._timeout) if self._backend == "nccl" else None,
            group_desc=str(which),
        )
        return group

    def _create(self, name: str, ranks: tuple[int, ...]) -> None:
        # FSDP needs a live group even when a module has one replica.
        keep_single = name.endswith(("_cp", ".dp_copy", ".expert_dp"))
        if (len(ranks) > 1 or keep_single) and ranks not in self._by_ranks:
            self._by_ranks[ranks] = dist.new_group(
                list(ranks), timeout=self._timeout, backend=self._backend, group_desc=name
            )
        if self.rank in ranks:
            handle = self._by_ranks.get(ranks) if len(ranks) > 1 else None
            self._named[name] = Group(ranks, ranks.index(self.rank), handle, self.clock)

    def group(self, module: str, *axes: Axis) -> Group:
        """Return this rank's group of `module` along `axes`, e.g. `group("language", Axis.TP)`."""
        return self._named[f"{module}.{'_'.join(axes)}"]

    def open_copies(self, module: str, most: int) -> None:
        """Let tp ranks of a module copy tokens from each other, of regions with `most` bytes.

        Ranks: collective over a tp group; others do nothing.
        """
        name = f"{module}.{Axis.TP}"
        group = self._named.get(name)
        if self.device.type == "cuda" and group is not None and group.handle is not None:
            copies = open_copies(group.handle, self.device, most)
            self._named[name] = replace(group, copies=copies)

    def tied(self, module: str) -> Group:
        """Return this rank's pair: the two ranks with the same part of a tied embedding."""
        return self._named[f"{module}.tied"]

    def bridge(self, encoder: str) -> Group:
        """Return this rank's component of a bridge."""
        return self._named[f"{encoder}.bridge"]

    def p2p(self, channel: Channel) -> ProcessGroup:
        """Return the job-wide group that carries a channel between two ranks."""
        return self._p2p[p2p_group_of(channel)]

    def own_groups(self) -> tuple[Group, ...]:
        """Return the groups of several ranks that include this one, in the order of creation."""
        return tuple(
            Group(ranks, ranks.index(self.rank), handle)
            for ranks, handle in self._by_ranks.items()
            if self.rank in ranks and len(ranks) > 1
        )

    def mesh(self, module: str, *axes: Axis) -> DeviceMesh:
        """Return the mesh that holds weights of `module`: of experts over the axes given.

        Its last dimension shards them; a first one holds copies, if there are several. Ranks:
        local. A mesh wraps an existing group; slicing or flattening a mesh would create groups on
        members only, and the job would hang.
        """
        held = self.layout[module].sharding
        dims = [axes] if axes else [each for each in (held.replicate, held.shard) if each]
        names = tuple("_".join(each) for each in dims)
        *copies, ranks = (self._named[f"{module}.{name}"].ranks for name in names)
        grid = self.layout[module].grid
        rows = [grid.group_of(rank, *held.shard) for rank in copies[0]] if copies else ranks
        return DeviceMesh.from_group(
            [self._by_ranks[each] for each in (*copies, ranks)],
            self.device.type,
            mesh=torch.tensor(rows),
            mesh_dim_names=names,
        )

    def replicas(self, module: str, parameter: Tensor) -> Group:
        """Return the group over which FSDP2 has sharded one of a module's weights."""
        axes = parameter.device_mesh.mesh_dim_names if isinstance(parameter, DTensor) else None
        name = axes[-1] if axes else "_".join(self.layout[module].sharding.shard)
        return self._named[f"{module}.{name}"]

    def close(self) -> None:
        """Destroy every group, the default one included."""
        if dist.is_initialized():
            dist.destroy_process_group()


def _p2p_options(timeout: timedelta) -> Any:
    """Return NCCL's options of a point-to-point group.

    A transfer occupies its thread blocks while it waits for its peer. With few of them, the layers
    have the rest of the GPU, and a transfer still takes less time than a microbatch.
    """
    options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
    options._timeout = timeout
    options.config.max_ctas = P2P_THREAD_BLOCKS
    return options
