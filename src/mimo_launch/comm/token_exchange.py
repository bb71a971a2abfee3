"""Moves tokens between ranks that hold unequal numbers of them, each way the other's adjoint.

Decides: the collectives under a mixture of experts, each of which the clock of the step notes.
Relies on: sizes that the host knows; `collectives` for uneven shards.
Leaves: which tokens go where to `layers.token_dispatch`.

Legend: r rows on this rank, R rows of all ranks of a group, D width.
"""

from typing import Any

import torch
from torch import Tensor

from mimo_launch.comm.collectives import (
    all_gather,
    all_gather_uneven,
    all_to_all,
    all_to_all_uneven,
    reduce_scatter_uneven,
)
from mimo_launch.comm.process_groups import Group
from mimo_launch.comm.step_clock import StepClock

Sizes = tuple[int, ...]


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, send: Sizes, receive: Sizes, group: Group, clock: StepClock
    ) -> Tensor:
        ctx.send, ctx.receive, ctx.group, ctx.clock = send, receive, group, clock
        with clock.meeting(group):
            return all_to_all_uneven(x, send, receive, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        with ctx.clock.meeting(ctx.group):
            back = all_to_all_uneven(grad, ctx.receive, ctx.send, ctx.group)
        return back, None, None, None, None


class _GatherUneven(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, sizes: Sizes, group: Group, clock: StepClock) -> Tensor:
        ctx.sizes, ctx.group, ctx.clock = sizes, group, clock
        with clock.meeting(group):
            return all_gather_uneven(x, sizes, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        with ctx.clock.meeting(ctx.group):
            return reduce_scatter_uneven(grad, ctx.sizes, ctx.group), None, None, None


class _ScatterUneven(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, sizes: Sizes, group: Group, clock: StepClock) -> Tensor:
        ctx.sizes, ctx.group, ctx.clock = sizes, group, clock
        with clock.meeting(group):
            return reduce_scatter_uneven(x, sizes, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        with ctx.clock.meeting(ctx.group):
            return all_gather_uneven(grad.contiguous(), ctx.sizes, ctx.group), None, None, None


def exchange_tokens(
    x_rD: Tensor, send: Sizes, receive: Sizes, group: Group, clock: StepClock
) -> Tensor:
    """Send rows to each rank of `group` in turn and return what they sent, in their order.

    Shapes: [sum(send), D] -> [sum(receive), D]. Gradient: the same exchange, back. Traffic: an
    all-to-all with uneven splits; a rank without rows takes part, too.
    """
    if group.handle is None:
        return x_rD
    out: Tensor = _Exchange.apply(x_rD, send, receive, group, clock)  # type: ignore[no-untyped-call]
    return out


def gather_uneven_tokens(x_rD: Tensor, sizes: Sizes, group: Group, clock: StepClock) -> Tensor:
    """Return the rows of all ranks, each of which then computes a part of a product with them.

    Shapes: [sizes[index], D] -> [sum(sizes), D]. Gradient: summed over `group`, own rows kept.
    """
    if group.handle is None:
        return x_rD
    out: Tensor = _GatherUneven.apply(x_rD, sizes, group, clock)  # type: ignore[no-untyped-call]
    return out


def scatter_uneven_tokens(x_RD: Tensor, sizes: Sizes, group: Group, clock: StepClock) -> Tensor:
    """Sum partial outputs for the rows of all ranks, and keep those of this one.

    Shapes: [sum(sizes), D] -> [sizes[index], D]. Gradient: all-gather.
    """
    if group.handle is None:
        return x_RD
    out: Tensor = _ScatterUneven.apply(x_RD, sizes, group, clock)  # type: ignore[no-untyped-call]
    return out


def exchange_counts(counts_E: Tensor, ep: Group, tp: Group) -> Tensor:
    """Return what all ranks have for the experts of this one: [tp ranks, ep ranks, own experts].

    `counts_E` are this rank's tokens for each expert.
    """
    theirs = all_to_all(counts_E, ep)
    return all_gather(theirs, tp).view(tp.size, ep.size, -1)
