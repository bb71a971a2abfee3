"""Collectives inside the model, each with the gradient that its use needs.

Decides: the gradient of every gather, split, sum and exchange of tokens.
Relies on: `collectives`; tensors are token lists, sharded along dim 0, with sizes that the host
knows.
Leaves: the choice between them, and the destinations of tokens, to `layers`.

Legend: N tokens of a microbatch, n of this rank, R rows of all ranks of a group, r on this rank, D
width.
Source: Megatron-LM's operators f and g (arXiv:1909.08053) and their sequence-parallel forms
(arXiv:2205.05198).
"""

from typing import Any

import torch
from torch import Tensor

from mimo_launch.comm.collectives import (
    all_gather,
    all_gather_uneven,
    all_reduce,
    all_to_all,
    all_to_all_uneven,
    reduce_scatter,
    reduce_scatter_uneven,
)
from mimo_launch.comm.process_groups import Group


class _EnterTp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return all_reduce(grad, ctx.group), None


class _ExitTp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        return all_reduce(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class _GatherTokens(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return all_gather(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return reduce_scatter(grad, ctx.group), None


class _ScatterTokens(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return reduce_scatter(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return all_gather(grad, ctx.group), None


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return all_to_all(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return all_to_all(grad, ctx.group), None


class _SplitRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, sizes: tuple[int, ...], group: Group) -> Tensor:
        ctx.sizes, ctx.group = sizes, group
        return _own_share(rows, sizes, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return all_gather_uneven(grad.contiguous(), ctx.sizes, ctx.group), None, None


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, sizes: tuple[int, ...], group: Group) -> Tensor:
        ctx.sizes, ctx.group = sizes, group
        return all_gather_uneven(rows, sizes, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _own_share(grad, ctx.sizes, ctx.group), None, None


def _own_share(rows: Tensor, sizes: tuple[int, ...], group: Group) -> Tensor:
    start = sum(sizes[: group.index])
    # A copy, not a view: FSDP hooks the outputs of a module and would lose them on a view.
    return rows[start : start + sizes[group.index]].clone()


def _apply(function: type[torch.autograd.Function], *args: Any) -> Tensor:
    result: Tensor = function.apply(*args)  # type: ignore[no-untyped-call]
    return result


def enter_tp(x_ND: Tensor, group: Group) -> Tensor:
    """Pass a replicated activation into a tensor-parallel region.

    Shapes: x_ND and result [N, D], equal on every rank. Gradient: sum over `group`, because each
    rank used x for a different slice of the output. Traffic: none forward, all-reduce backward.
    """
    return _apply(_EnterTp, x_ND, group) if group.handle is not None else x_ND


def exit_tp(x_ND: Tensor, group: Group) -> Tensor:
    """Sum partial outputs into a replicated activation.

    Shapes: [N, D] -> [N, D]. Gradient: passed on unchanged, because it is already complete on every
    rank.
    """
    return _apply(_ExitTp, x_ND, group) if group.handle is not None else x_ND


def gather_tokens(x_nD: Tensor, group: Group) -> Tensor:
    """Gather token shards at the start of a tensor-parallel region (sequence parallelism).

    Shapes: [n, D] -> [N, D]. Gradient: reduce-scatter, this rank's part of the sum of `enter_tp`.
    """
    return _apply(_GatherTokens, x_nD, group) if group.handle is not None else x_nD


def scatter_tokens(x_ND: Tensor, group: Group) -> Tensor:
    """Sum partial outputs and keep this rank's tokens (sequence parallelism).

    Shapes: [N, D] -> [n, D]. Gradient: all-gather.
    """
    return _apply(_ScatterTokens, x_ND, group) if group.handle is not None else x_ND


def exchange(x: Tensor, group: Group) -> Tensor:
    """Send part i of dim 0 to rank i of `group`, and return what all ranks sent to this one.

    Shapes: [group size, ...] -> the same. Gradient: the exchange back.
    """
    return _apply(_Exchange, x, group) if group.handle is not None else x


def split_rows(rows_RD: Tensor, sizes: tuple[int, ...], group: Group) -> Tensor:
    """Leave an encoder with its output replicated over tp: keep the rows that this rank sends.

    Shapes: [R, D] -> [sizes[index], D]. Gradient: all-gather, because every tp rank needs the
    gradient of all rows; zero-filling (the natural adjoint of a slice) would lose the others' rows.
    """
    return _apply(_SplitRows, rows_RD, sizes, group) if group.handle is not None else rows_RD


def gather_rows(rows_rD: Tensor, sizes: tuple[int, ...], group: Group) -> Tensor:
    """Enter a language model with its input replicated over tp: complete the rows.

    Shapes: [sizes[index], D] -> [R, D]. Gradient: this rank's share, unsummed, because the
    gradient is already complete on every tp rank; summing (the natural adjoint of a gather) counts
    it tp times.
    """
    return _apply(_GatherRows, rows_rD, sizes, group) if group.handle is not None else rows_rD


Sizes = tuple[int, ...]


class _TokenExchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, send: Sizes, receive: Sizes, group: Group) -> Tensor:
        ctx.send, ctx.receive, ctx.group = send, receive, group
        with group.noted():
            return all_to_all_uneven(x, send, receive, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        with ctx.group.noted():
            back = all_to_all_uneven(grad, ctx.receive, ctx.send, ctx.group)
        return back, None, None, None


class _GatherUneven(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, sizes: Sizes, group: Group) -> Tensor:
        ctx.sizes, ctx.group = sizes, group
        with group.noted():
            return all_gather_uneven(x, sizes, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        with ctx.group.noted():
            return reduce_scatter_uneven(grad, ctx.sizes, ctx.group), None, None


class _ScatterUneven(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, sizes: Sizes, group: Group) -> Tensor:
        ctx.sizes, ctx.group = sizes, group
        with group.noted():
            return reduce_scatter_uneven(x, sizes, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        with ctx.group.noted():
            return all_gather_uneven(grad.contiguous(), ctx.sizes, ctx.group), None, None


def exchange_tokens(x_rD: Tensor, send: Sizes, receive: Sizes, group: Group) -> Tensor:
    """Send rows to each rank of `group` in turn and return what they sent, in their order.

    Shapes: [sum(send), D] -> [sum(receive), D]. Gradient: the same exchange, back. Traffic: an
    all-to-all with uneven splits; a rank without rows also takes part.
    """
    return x_rD if group.handle is None else _apply(_TokenExchange, x_rD, send, receive, group)


def gather_uneven_tokens(x_rD: Tensor, sizes: Sizes, group: Group) -> Tensor:
    """Return the rows of all ranks; each rank then computes part of a product with them.

    Shapes: [sizes[index], D] -> [sum(sizes), D]. Gradient: summed over `group`, own rows kept.
    """
    return x_rD if group.handle is None else _apply(_GatherUneven, x_rD, sizes, group)


def scatter_uneven_tokens(x_RD: Tensor, sizes: Sizes, group: Group) -> Tensor:
    """Sum partial outputs for the rows of all ranks, and keep this rank's rows.

    Shapes: [sum(sizes), D] -> [sizes[index], D]. Gradient: all-gather.
    """
    return x_RD if group.handle is None else _apply(_ScatterUneven, x_RD, sizes, group)


def exchange_counts(counts_E: Tensor, ep: Group, tp: Group) -> Tensor:
    """Return all ranks' token counts for this rank's experts: [tp ranks, ep ranks, own experts].

    `counts_E` holds the number of this rank's tokens for each expert.
    """
    theirs = all_to_all(counts_E, ep)
    return all_gather(theirs, tp).view(tp.size, ep.size, -1)
