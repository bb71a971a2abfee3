"""Finishes gradients after the last backward: sums over tp, norms per module, clipping.

Decides: which rank counts which element of a gradient, and how ranks agree on a bad step.
Relies on: FSDP2 having summed over dp x cp; segments for who holds what.
Leaves: the update to `build`.

Every reduction is a sum: the loss was divided by the step's number of labels, nothing else is.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from mimo_launch.comm.finite import FiniteFlag
from mimo_launch.grids.grid_set import Group
from mimo_launch.layout.layout import Layout
from mimo_launch.modules.build import RankModule
from mimo_launch.parallel.segments import DeclaredParameter, Segment

TIED_NAME = "language.embedding.weight"


@dataclass(frozen=True, slots=True)
class LocalSegment:
    """The rows of one segment that this rank holds after sharding over dp x cp.

    `local` is a view into the local tensor; `first_row` is its first row within the part of the
    segment that this tp rank holds.
    """

    name: str
    segment: Segment
    local: Tensor
    first_row: int


def local_tensor(tensor: Tensor) -> Tensor:
    """Return the local part of a tensor that FSDP may have sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def shard_rows(parameter: Tensor) -> range:
    """Return which rows of the unsharded parameter this rank's shard holds."""
    rows = parameter.shape[0]
    if not isinstance(parameter, DTensor):
        return range(rows)
    mesh = parameter.device_mesh
    size = -(-rows // mesh.size())
    start = min(rows, mesh.get_local_rank() * size)
    return range(start, min(rows, start + size))


def gradient_of(parameter: Tensor) -> Tensor | None:
    """Return the gradient of a parameter, if it has one."""
    return parameter.grad


def local_segments(
    declared: Iterable[DeclaredParameter],
    tensor_of: Callable[[Tensor], Tensor | None] = gradient_of,
) -> Iterator[LocalSegment]:
    """Yield the segments of this rank's shards with views of a tensor that is sharded like them.

    `tensor_of` returns it for a parameter: its gradient, itself, or a moment; None leaves it out.
    """
    for item in declared:
        source = tensor_of(item.parameter)
        if source is None:
            continue
        local, rows = local_tensor(source), shard_rows(item.parameter)
        for placed in item.placed:
            first, last = max(rows.start, placed.first_row), min(rows.stop, placed.last_row)
            if first < last:
                view = local[first - rows.start : last - rows.start]
                yield LocalSegment(placed.name, placed.segment, view, first - placed.first_row)


def sum_partial_gradients(
    declared: Sequence[DeclaredParameter], tp: Group, terms: FiniteFlag
) -> None:
    """Sum over tp, in one all-reduce, the gradients that tp ranks hold terms of.

    `terms` is shown those of this rank. Ranks: collective over `tp`. Ranks that hold different
    parts of a segment (key/value heads fewer than tp ranks) each get a slot, so that a sum over all
    of tp adds only what belongs together.
    """
    if tp.handle is None:
        return
    partial = [s for s in local_segments(declared) if s.segment.tp_grad == "partial"]
    if not partial:
        return
    slots = [_num_slots(s.segment) * s.local.numel() for s in partial]
    buffer = partial[0].local.new_zeros(sum(slots))
    views = [
        part.view(_num_slots(s.segment), -1)[_slot(s.segment)]
        for s, part in zip(partial, torch.split(buffer, slots), strict=True)
    ]
    for segment, view in zip(partial, views, strict=True):
        view.copy_(segment.local.flatten())
    terms.show(buffer)
    dist.all_reduce(buffer, group=tp.handle)
    for segment, view in zip(partial, views, strict=True):
        segment.local.copy_(view.view_as(segment.local))


def sum_tied_gradients(
    declared: Sequence[DeclaredParameter], group: Group, terms: FiniteFlag
) -> None:
    """Sum the gradients of a tied embedding over the first and the last stage.

    `terms` is shown those of this rank. Ranks: collective over `group`, the two ranks that hold the
    same part of it.
    """
    for segment in local_segments(declared):
        if segment.name == TIED_NAME:
            terms.show(segment.local)
            dist.all_reduce(segment.local, group=group.handle)


def _num_slots(segment: Segment) -> int:
    """Number of different parts of a partial segment among the tp ranks."""
    return 1 if segment.axis is None else segment.shape[0] // (segment.stop - segment.start)


def _slot(segment: Segment) -> int:
    return 0 if segment.axis is None else segment.start // (segment.stop - segment.start)


@dataclass(frozen=True, slots=True)
class StepTotals:
    """What all ranks know after the one reduction of a step.

    `norms` are per module, before clipping; `norm` is over all modules; `loss` is the mean over the
    step's labels; `flags` are sums over ranks of what each passed in; `zeros` counts per module the
    gradients that are exactly zero, None where nobody asked.
    """

    loss: float
    norms: dict[str, float]
    norm: float
    flags: tuple[int, ...]
    zeros: dict[str, int] | None

    @property
    def finite(self) -> bool:
        """Whether the update may be applied: no rank saw a non-finite gradient or loss."""
        return bool(torch.isfinite(torch.tensor([self.loss, self.norm])).all())


def reduce_totals(
    layout: Layout,
    modules: dict[str, RankModule],
    loss: Tensor,
    flags: Sequence[int] = (),
    *,
    count_zeros: bool = False,
) -> StepTotals:
    """Return loss and gradient norms, equal on all ranks.

    `flags` are small numbers of this rank (a signal was seen, a write failed) that all ranks must
    act on at the same step.

    Ranks: collective over the world; one all-reduce in float64. Each rank adds the squares of what
    it alone owns; a NaN anywhere reaches every rank through the sum.
    """
    names = [module.name for module in layout.modules]
    owned = {name: _owned(modules[name]) if name in modules else [] for name in names}
    numbers = [loss.double(), *(sum_of_squares(owned[name], loss.device) for name in names)]
    if count_zeros:
        numbers += [_num_zeros(owned[name], loss.device) for name in names]
    noted = torch.tensor(flags, dtype=torch.float64, device=loss.device)
    slots = torch.cat([torch.stack(numbers), noted])
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(slots)
    total_loss, *rest = slots.tolist()
    squares, rest = rest[: len(names)], rest[len(names) :]
    zeros, rest = (rest[: len(names)], rest[len(names) :]) if count_zeros else ([], rest)
    return StepTotals(
        loss=total_loss,
        norms={name: square**0.5 for name, square in zip(names, squares, strict=True)},
        norm=sum(squares) ** 0.5,
        flags=tuple(int(flag) for flag in rest),
        zeros={n: int(z) for n, z in zip(names, zeros, strict=True)} if count_zeros else None,
    )


def sum_of_squares(gradients: Iterable[Tensor], device: torch.device) -> Tensor:
    """Return the sum of all squares, in float64, on the device."""
    total = torch.zeros((), dtype=torch.float64, device=device)
    for gradient in gradients:
        total += gradient.double().square().sum()
    return total


def _num_zeros(gradients: Iterable[Tensor], device: torch.device) -> Tensor:
    """Return how many elements are exactly zero; float64 counts exactly up to 2^53."""
    total = torch.zeros((), dtype=torch.float64, device=device)
    for gradient in gradients:
        total += (gradient == 0).sum()
    return total


def _owned(module: RankModule) -> list[Tensor]:
    """Return the gradients of a module that this rank counts, each being counted on one rank."""
    return [item.local for item in local_segments(module.declared()) if item.segment.counted]


def clip_gradients(modules: dict[str, RankModule], norm: float, clip: float | None) -> None:
    """Scale all gradients of all modules alike so that the global norm is at most `clip`."""
    if clip is None or norm <= clip:
        return
    for module in modules.values():
        for parameter in module.parameters():
            if parameter.grad is not None:
                local_tensor(parameter.grad).mul_(clip / norm)
