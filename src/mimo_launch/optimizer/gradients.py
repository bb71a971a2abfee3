"""Reduces gradients after the last backward: sums over tp and tied stages, then one norm.

Decides: which elements are added if ranks hold different parts of a segment; which rank counts
which element of a gradient; when a step is bad.
Relies on: FSDP2, which has already summed over dp x cp; segments for the parts that each rank
holds.
Leaves: the update to `module_optimizers`, and reading the numbers on the host to `train.step`.

Every reduction is a sum: only the loss was divided, by the step's number of labels. The update
needs no value on the host: the clipping factor and the skip flag are scalars on the device. On CUDA
the host reads the totals while the next step runs.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from mimo_launch.comm import torch_internals
from mimo_launch.comm.async_copies import HostCopy, to_device
from mimo_launch.comm.finite_flags import FiniteFlag
from mimo_launch.comm.process_groups import Group
from mimo_launch.layers.parameter_segments import (
    DeclaredParameter,
    Segment,
    local_segments,
    local_tensor,
)
from mimo_launch.layout.layout import Layout
from mimo_launch.models.build import RankModule

TIED_NAME = "language.embedding.weight"


def watch_unreduced_gradients(module: RankModule) -> None:
    """Show the gradients of parameters without replicas to the flags of their stages.

    FSDP2's reduction has already shown the others (`comm.finite_flags`).
    """
    for stage, network in module.stages.items():
        found = [p.grad for p in network.parameters() if p.grad is not None]
        own = [g for g in found if not (isinstance(g, DTensor) and g.device_mesh.size() > 1)]
        module.before_dp_sum[stage].show_all([local_tensor(g) for g in own])


def sum_partial_gradients(
    declared: Sequence[DeclaredParameter], tp: Group, before_tp_sum: FiniteFlag
) -> None:
    """Sum over tp, in one all-reduce, the gradients for which each tp rank holds a partial sum.

    `before_tp_sum` sees the partial sums of this rank. Ranks: collective over `tp`. Each part of a
    segment has its own slot where ranks hold different parts (fewer key/value heads than tp ranks),
    so that a sum over all of tp adds only terms of the same part.
    """
    if tp.handle is None:
        return
    partial = [s for s in local_segments(declared) if s.segment.tp_grad == "partial"]
    if not partial:
        return
    slots = [_num_slots(s.segment) * s.local.numel() for s in partial]
    buffer = partial[0].local.new_zeros(sum(slots))
    views = []
    for each, part in zip(partial, torch.split(buffer, slots), strict=True):
        segment = each.segment
        slot = 0 if segment.axis is None else segment.start // (segment.stop - segment.start)
        views.append(part.view(_num_slots(segment), -1)[slot])
        views[-1].copy_(each.local.flatten())
    before_tp_sum.show(buffer)
    dist.all_reduce(buffer, group=tp.handle)
    for each, view in zip(partial, views, strict=True):
        each.local.copy_(view.view_as(each.local))


def sum_tied_gradients(
    declared: Sequence[DeclaredParameter], group: Group, before_tp_sum: FiniteFlag
) -> None:
    """Sum the gradients of a tied embedding over the first and the last stage.

    `before_tp_sum` sees this rank's gradients. Ranks: collective over `group`, the two ranks that
    hold the same part of the embedding.
    """
    for segment in local_segments(declared):
        if segment.name == TIED_NAME:
            before_tp_sum.show(segment.local)
            dist.all_reduce(segment.local, group=group.handle)


def _num_slots(segment: Segment) -> int:
    """Return how many different parts of a partial segment the tp ranks hold."""
    return 1 if segment.axis is None else segment.shape[0] // (segment.stop - segment.start)


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """Loss, gradient norms and counts of a step, equal on all ranks.

    `norms` are per module, before clipping; `norm` is over all modules; `losses` are means over the
    terms of a step (labels of language), by name, and `loss` their weighted sum; `aux_loss` is
    the loss that balances experts, 0 without any; `flags` are sums over all ranks; `zeros` counts
    per module the gradients that are exactly zero, or is None.
    """

    loss: float
    losses: dict[str, float]
    aux_loss: float
    norms: dict[str, float]
    norm: float
    flags: tuple[int, ...]
    zeros: dict[str, int] | None

    @property
    def finite(self) -> bool:
        """Whether the update was applied, which means that every gradient and loss was finite."""
        return math.isfinite(self.loss) and math.isfinite(self.norm)


@dataclass(frozen=True, slots=True)
class PendingMetrics:
    """`StepMetrics` as float64 scalars on the device, for the update; `read` fetches them.

    `unshared_squares` are, per module of this rank, the squares of the segments that are not summed
    over tp, so that only this rank holds them; they help to find the cause of a bad step.
    """

    loss: Tensor
    losses: tuple[str, ...]
    norm: Tensor
    squares: dict[str, Tensor]
    unshared_squares: dict[str, Tensor]
    num_flags: int
    host: HostCopy

    @property
    def bad(self) -> Tensor:
        """1 if the update must not be applied, else 0; float32, for fused optimizers."""
        return (self.loss.isfinite() & self.norm.isfinite()).logical_not().float()

    def divisor(self, clip: float) -> Tensor:
        """Return the divisor of all gradients that makes their norm at most `clip`."""
        return (self.norm / clip).clamp(min=1)

    def read(self) -> StepMetrics:
        """Return the metrics. Waits until the device has them."""
        loss, norm, aux_loss, *rest = self.host.read()
        names, numbers = list(self.squares), iter(rest)
        losses = {name: next(numbers) for name in self.losses}
        norms = {name: next(numbers) ** 0.5 for name in names}
        flags = tuple(int(next(numbers)) for _ in range(self.num_flags))
        zeros = {name: int(count) for name, count in zip(names, numbers, strict=False)}
        return StepMetrics(loss, losses, aux_loss, norms, norm, flags, zeros or None)


def reduce_metrics(
    layout: Layout,
    modules: dict[str, RankModule],
    losses: Mapping[str, Tensor],
    flags: Sequence[int] = (),
    *,
    count_zeros: bool = False,
) -> PendingMetrics:
    """Return loss and gradient norms, equal on all ranks, without waiting for the device.

    `flags` are small integers of this rank (a signal arrived, a write failed) on which all ranks
    must act at the same step.

    Ranks: collective over the world; one all-reduce in float64. Each rank adds the squares of the
    elements that it counts; a NaN anywhere reaches every rank through the sum.
    """
    device = next(iter(losses.values())).device
    names = [module.name for module in layout.modules]
    squares = dict.fromkeys(names, torch.zeros((), dtype=torch.float64, device=device))
    zeros, unshared_squares = dict(squares), {}
    for name, module in modules.items():
        alone, shared = _owned(module)
        unshared_squares[name] = sum_of_squares(alone, device)
        squares[name] = unshared_squares[name] + sum_of_squares(shared, device)
        if count_zeros:
            zeros[name] = num_zeros((*alone, *shared), device)
    aux_loss = torch.zeros((), dtype=torch.float64, device=device)
    for module in modules.values():
        if module.aux_loss is not None:
            aux_loss += module.aux_loss.total
    noted = to_device(torch.tensor(flags, dtype=torch.float64), device)
    counts = list(zeros.values()) if count_zeros else []
    slots = torch.cat(
        [
            torch.stack([aux_loss, *losses.values(), *squares.values()]).double(),
            noted,
            *(c[None] for c in counts),
        ]
    )
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(slots)
    first = 1 + len(losses)
    summed, per_module = slots[1:first], slots[first : first + len(names)]
    norm = per_module.sum().sqrt()
    weighted = [of.weight * each for of, each in zip(layout.losses, summed, strict=True)]
    loss = torch.stack(weighted).sum()
    return PendingMetrics(
        loss=loss,
        losses=tuple(losses),
        norm=norm,
        squares=dict(zip(names, per_module, strict=True)),
        unshared_squares=unshared_squares,
        num_flags=len(flags),
        host=HostCopy(torch.cat([loss[None], norm[None], slots])),
    )


def sum_of_squares(tensors: list[Tensor], device: torch.device) -> Tensor:
    """Return the sum of all squares, a float64 scalar on the device.

    Each tensor is read once and summed in float64, without a copy.
    """
    if not tensors:
        return torch.zeros((), dtype=torch.float64, device=device)
    return torch.stack(torch_internals.norms(tensors, 2, torch.float64)).square().sum()


def num_zeros(gradients: Iterable[Tensor], device: torch.device) -> Tensor:
    """Return the number of elements that are exactly zero; float64 counts exactly up to 2^53."""
    total = torch.zeros((), dtype=torch.float64, device=device)
    for gradient in gradients:
        total += (gradient == 0).sum()
    return total


def _owned(module: RankModule) -> tuple[list[Tensor], list[Tensor]]:
    """Return the gradients of a module that this rank counts; each is counted on one rank.

    The first list has the gradients that only this rank holds, the second the gradients that were
    summed over tp and are equal on all tp ranks.
    """
    alone: list[Tensor] = []
    shared: list[Tensor] = []
    for item in local_segments(module.declared()):
        if item.segment.counted:
            summed = module.context.tp.size > 1 and item.segment.tp_grad == "partial"
            (shared if summed else alone).append(item.local)
    return alone, shared
