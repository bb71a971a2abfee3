"""Sums gradients after the last backward, over tp and tied stages, and counts what norms need.

Decides: which elements are added if ranks hold different parts of a segment; which rank counts
which element of a gradient.
Relies on: FSDP2, which has already summed over dp x cp; segments for the parts that each rank
holds.
Leaves: when a sum is due to the plan, and norms over ranks to `step_metrics`.

Every reduction is a sum: only the loss was divided, by the step's number of labels.
"""

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from mimo_launch.comm import torch_internals
from mimo_launch.comm.finite_flags import FiniteFlag
from mimo_launch.comm.process_groups import Group
from mimo_launch.layers.parameter_segments import DeclaredParameter, Segment, local_segments
from mimo_launch.models.build import RankModule


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
    # Modules with a tied embedding have no other table.
    for segment in local_segments(declared):
        if segment.segment.weight.role == "embedding":
            before_tp_sum.show(segment.local)
            dist.all_reduce(segment.local, group=group.handle)


def _num_slots(segment: Segment) -> int:
    """Return how many different parts of a partial segment the tp ranks hold."""
    return 1 if segment.axis is None else segment.shape[0] // (segment.stop - segment.start)


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


def counted_gradients(module: RankModule) -> tuple[list[Tensor], list[Tensor]]:
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
