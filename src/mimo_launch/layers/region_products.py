"""Products at the ends of a region of sequence parallelism, while its tokens are exchanged.

Decides: which rows of a product are computed while others travel, and what waits for what.
Relies on: collectives that run beside the kernels of a rank; `linear` for weight gradients.
Leaves: everything between the two ends of a region to the layers.

A rank has 1/tp of the tokens outside a region, and all of them inside it. At the start it
multiplies its own tokens while it gathers those of other ranks. At the end it multiplies the tokens
of others first, and its own while the products travel. Backward, it computes the gradient of the
weight while the gradient of the tokens is summed. Source: Megatron-LM overlaps the last of these
(arXiv:2205.05198); for the others, Wang et al., "Overlap Communication with Dependent Computation
via Decomposition in Large Deep Learning Models" (ASPLOS 2023).

Legend: N tokens of a microbatch, n of this rank, D width, F features of this rank's part.
"""

from typing import Any, Protocol

import torch
from torch import Tensor

from mimo_launch.comm.collectives import all_gather, room, start_exchange, start_gather
from mimo_launch.comm.process_groups import Group
from mimo_launch.layers.recompute import Remake


class Gradients(Protocol):
    """Takes the gradient of a weight."""

    def add(self, grad_NF: Tensor, x_ND: Tensor) -> Tensor | None:
        """Add the gradient of a weight that mapped x to [N, F], or return it to autograd."""


def gathered_product(
    x_nD: Tensor,
    weight_FD: Tensor,
    bias_F: Tensor | None,
    gradients: Gradients | None,
    tp: Group,
    again: Remake | None = None,
) -> Tensor:
    """Return the product of all tokens of a region, [n, D] -> [N, F].

    The tokens of the region are kept for the backward, unless `again` makes this rank's anew.
    """
    out: Tensor = _Gathered.apply(x_nD, weight_FD, bias_F, gradients, tp, again)  # type: ignore[no-untyped-call]
    return out


def scattered_product(
    x_NF: Tensor, weight_DF: Tensor, gradients: Gradients | None, tp: Group
) -> Tensor:
    """Return the sum over `tp` of the products of each rank's features, [N, F] -> [n, D]."""
    out: Tensor = _Scattered.apply(x_NF, weight_DF, gradients, tp)  # type: ignore[no-untyped-call]
    return out


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x_nD: Tensor,
        weight_FD: Tensor,
        bias_F: Tensor | None,
        gradients: Gradients | None,
        tp: Group,
        again: Remake | None,
    ) -> Tensor:
        x_ND, out_NF = _gathered(x_nD, weight_FD.t(), tp, bias_F)
        keeps = ctx.needs_input_grad[1] and again is None
        ctx.save_for_backward(weight_FD, x_ND if keeps else None)
        ctx.gradients, ctx.tp, ctx.again = gradients, tp, again
        return out_NF

    @staticmethod
    def backward(ctx: Any, grad_NF: Tensor) -> tuple[Tensor | None, ...]:
        weight_FD, x_ND = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad[:3]
        by_x = by_weight = gathering = None
        if of_weight and x_ND is None:
            x_ND, gathering = start_gather(ctx.again(), ctx.tp)
        # It holds the graph before this product.
        ctx.again = None
        summing = _Sum(grad_NF, weight_FD, ctx.tp) if of_x else None
        if of_weight:
            if gathering is not None:
                gathering.wait()
            by_weight = _of_weight(ctx.gradients, grad_NF, x_ND)
        by_bias = grad_NF.sum(dim=0) if of_bias else None
        if summing is not None:
            by_x = summing.wait()
        return by_x, by_weight, by_bias, None, None, None


class _Scattered(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x_NF: Tensor, weight_DF: Tensor, gradients: Gradients | None, tp: Group
    ) -> Tensor:
        out_nD = _Sum(x_NF, weight_DF.t(), tp).wait()
        ctx.save_for_backward(weight_DF, x_NF if ctx.needs_input_grad[1] else None)
        ctx.gradients, ctx.tp = gradients, tp
        return out_nD

    @staticmethod
    def backward(ctx: Any, grad_nD: Tensor) -> tuple[Tensor | None, ...]:
        weight_DF, x_NF = ctx.saved_tensors
        by_x = by_weight = None
        if ctx.needs_input_grad[0]:
            grad_ND, by_x = _gathered(grad_nD, weight_DF, ctx.tp)
        else:
            grad_ND = all_gather(grad_nD, ctx.tp)
        if ctx.needs_input_grad[1]:
            by_weight = _of_weight(ctx.gradients, grad_ND, x_NF)
        return by_x, by_weight, None, None


def _gathered(
    x_nA: Tensor, matrix_AB: Tensor, tp: Group, bias_B: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the tokens of all ranks, [N, A], and their products, [N, B]."""
    x_NA, gathering = start_gather(x_nA, tp)
    out_NB = x_nA.new_empty(len(x_NA), matrix_AB.shape[1])
    own, others = _rows(len(x_nA), tp)
    _multiply(x_nA, matrix_AB, out_NB[own], bias_B)
    gathering.wait()
    for rows in others:
        _multiply(x_NA[rows], matrix_AB, out_NB[rows], bias_B)
    return x_NA, out_NB


class _Sum:
    """This rank's rows of the sum over ranks of products, [N, A] x [A, B] -> [n, B]."""

    def __init__(self, x_NA: Tensor, matrix_AB: Tensor, tp: Group) -> None:
        self._others = tp.size - 1
        own, others = _rows(len(x_NA) // tp.size, tp)
        count = own.stop - own.start
        theirs, first = room(self._others * count, x_NA, matrix_AB.shape[1], tp), 0
        for rows in others:
            last = first + rows.stop - rows.start
            _multiply(x_NA[rows], matrix_AB, theirs[first:last])
            first = last
        self._parts, self._exchanging = start_exchange(theirs, tp)
        self._own_nB = x_NA[own] @ matrix_AB

    def wait(self) -> Tensor:
        """Return the sum once the other ranks' products are there."""
        self._exchanging.wait()
        for part in self._parts.chunk(self._others):
            self._own_nB += part
        return self._own_nB


def _rows(count: int, tp: Group) -> tuple[slice, tuple[slice, ...]]:
    """Return the rows of this rank's tokens in those of the region, and the runs of the others'.

    Runs of no tokens are products, too: an encoder may have no images.
    """
    first, last = tp.index * count, (tp.index + 1) * count
    before = (slice(0, first),) if tp.index else ()
    after = (slice(last, tp.size * count),) if tp.index < tp.size - 1 else ()
    return slice(first, last), (*before, *after)


def _multiply(x: Tensor, matrix: Tensor, out: Tensor, bias: Tensor | None = None) -> None:
    """Write a product into some rows of another tensor."""
    if bias is None:
        torch.mm(x, matrix, out=out)
    else:
        torch.addmm(bias, x, matrix, out=out)


def _of_weight(gradients: Gradients | None, grad_NF: Tensor, x_ND: Tensor) -> Tensor | None:
    return grad_NF.t() @ x_ND if gradients is None else gradients.add(grad_NF, x_ND)
