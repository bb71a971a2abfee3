"""Finishes gradients after the last backward: sums over tp and between tied stages.

Decides: which elements are added where ranks hold different parts of a segment.
Relies on: FSDP2, which has summed over dp x cp; segments for the parts that each rank holds.
Leaves: norms to `grad_norm`, the update to `module_optimizers`.

Every reduction is a sum: only the loss was divided, by the step's number of labels.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from mimo_launch.comm.finite_flags import FiniteFlag
from mimo_launch.comm.process_groups import Group
from mimo_launch.layers.parameter_segments import (
    DeclaredParameter,
    Segment,
    local_segments,
    local_tensor,
)
from mimo_launch.models.build import RankModule

TIED_NAME = "language.embedding.weight"


def watch_unreduced_gradients(module: RankModule) -> None:
    """Show the gradients of parameters without other replicas to the flags of their stages.

    FSDP2's reduction has shown the others (`comm.finite_flags`).
    """
    for stage, network in module.stages.items():
        found = [p.grad for p in network.parameters() if p.grad is not None]
        own = [g for g in found if not (isinstance(g, DTensor) and g.device_mesh.size() > 1)]
        module.before_dp_sum[stage].show_all([local_tensor(g) for g in own])


def sum_partial_gradients(
    declared: Sequence[DeclaredParameter], tp: Group, before_tp_sum: FiniteFlag
) -> None:
    """Sum over tp, in one all-reduce, the gradients of which tp ranks hold terms.

    `before_tp_sum` sees the terms of this rank. Ranks: collective over `tp`. Each part of a segment
    has its own slot where ranks hold different parts (fewer key/value heads than tp ranks), so that
    a sum over all of tp adds only terms of the same part.
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

    `before_tp_sum` sees those of this rank. Ranks: collective over `group`, the two ranks that
    hold the same part of it.
    """
    for segment in local_segments(declared):
        if segment.name == TIED_NAME:
            before_tp_sum.show(segment.local)
            dist.all_reduce(segment.local, group=group.handle)


def _num_slots(segment: Segment) -> int:
    """Return the number of different parts of a partial segment among the tp ranks."""
    return 1 if segment.axis is None else segment.shape[0] // (segment.stop - segment.start)
