"""Finishes gradients after the last backward: sums over tp and between tied stages.

Decides: what ranks that hold different parts of a segment add together.
Relies on: FSDP2 having summed over dp x cp; segments for who holds what.
Leaves: norms to `grad_norm`, the update to `module_optimizers`.

Every reduction is a sum: the loss was divided by the step's number of labels, nothing else is.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from mimo_launch.comm.non_finite import FiniteFlag
from mimo_launch.comm.process_groups import Group
from mimo_launch.layers.parameter_segments import (
    DeclaredParameter,
    Segment,
    local_segments,
    local_tensor,
)
from mimo_launch.models.build import RankModule

TIED_NAME = "language.embedding.weight"


def show_own_gradients(module: RankModule) -> None:
    """Show the flags of a module's stages the gradients of parameters that have no other replica.

    FSDP2's reduction has shown the others (`comm.non_finite`).
    """
    for stage, network in module.stages.items():
        found = [p.grad for p in network.parameters() if p.grad is not None]
        module.flags[stage].show_all([local_tensor(g) for g in found if not _is_summed(g)])


def _is_summed(gradient: Tensor) -> bool:
    return isinstance(gradient, DTensor) and gradient.device_mesh.size() > 1


def sum_partial_gradients(
    declared: Sequence[DeclaredParameter], tp: Group, own_gradients: FiniteFlag
) -> None:
    """Sum over tp, in one all-reduce, the gradients that tp ranks hold terms of.

    `own_gradients` is shown those of this rank. Ranks: collective over `tp`. Ranks that hold
    different parts of a segment (key/value heads fewer than tp ranks) each get a slot, so that a
    sum over all of tp adds only what belongs together.
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
    own_gradients.show(buffer)
    dist.all_reduce(buffer, group=tp.handle)
    for segment, view in zip(partial, views, strict=True):
        segment.local.copy_(view.view_as(segment.local))


def sum_tied_gradients(
    declared: Sequence[DeclaredParameter], group: Group, own_gradients: FiniteFlag
) -> None:
    """Sum the gradients of a tied embedding over the first and the last stage.

    `own_gradients` is shown those of this rank. Ranks: collective over `group`, the two ranks that
    hold the same part of it.
    """
    for segment in local_segments(declared):
        if segment.name == TIED_NAME:
            own_gradients.show(segment.local)
            dist.all_reduce(segment.local, group=group.handle)


def _num_slots(segment: Segment) -> int:
    """Number of different parts of a partial segment among the tp ranks."""
    return 1 if segment.axis is None else segment.shape[0] // (segment.stop - segment.start)


def _slot(segment: Segment) -> int:
    return 0 if segment.axis is None else segment.start // (segment.stop - segment.start)
