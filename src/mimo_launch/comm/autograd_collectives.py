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

from collections.abc import Callable
from dataclasses import dataclass
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

Sizes = tuple[int, ...]


@dataclass(slots=True)
class Pair:
    """A collective and the one that its gradient needs; both take a tensor, sizes and a group."""

    ahead: Callable[..., Tensor]
    back: Callable[..., Tensor]

    def __call__(self, x: Tensor, *how: Any) -> Tensor:
        """Return the result of `ahead`; a group of one rank, which comes last, changes nothing."""
        if how[-1].handle is None:
            return x
        result: Tensor = _Paired.apply(x, self, *how)  # type: ignore[no-untyped-call]
        return result


class _Paired(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, pair: Pair, *how: Any) -> Tensor:
        ctx.pair, ctx.how = pair, how
        return pair.ahead(x, *how)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.pair.back(grad, *ctx.how), *(None,) * (1 + len(ctx.how))


def _own_share(rows: Tensor, sizes: Sizes, group: Group) -> Tensor:
    start = sum(sizes[: group.index])
    # A copy, not a view: FSDP hooks the outputs of a module and would lose them on a view.
    return rows[start : start + sizes[group.index]].clone()


def _noted(collective: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a collective that the clock notes as an exchange of tokens."""

    def noted(x: Tensor, *how: Any) -> Tensor:
        with how[-1].noted():
            return collective(x, *how)

    return noted


ENTER_TP = Pair(lambda x, _: x.view_as(x), all_reduce)
EXIT_TP = Pair(all_reduce, lambda grad, _: grad)
GATHER = Pair(all_gather, reduce_scatter)
SCATTER = Pair(reduce_scatter, all_gather)
EXCHANGE = Pair(all_to_all, all_to_all)
SPLIT_ROWS = Pair(_own_share, all_gather_uneven)
GATHER_ROWS = Pair(all_gather_uneven, _own_share)
EXCHANGE_TOKENS = Pair(
    _noted(all_to_all_uneven),
    _noted(lambda grad, send, receive, group: all_to_all_uneven(grad, receive, send, group)),
)
GATHER_UNEVEN = Pair(_noted(all_gather_uneven), _noted(reduce_scatter_uneven))
SCATTER_UNEVEN = Pair(_noted(reduce_scatter_uneven), _noted(all_gather_uneven))


def enter_tp(x_ND: Tensor, group: Group) -> Tensor:
    """Pass a replicated activation into a tensor-parallel region.

    Shapes: x_ND and result [N, D], equal on every rank. Gradient: sum over `group`, because each
    rank used x for a different slice of the output. Traffic: none forward, all-reduce backward.
    """
    return ENTER_TP(x_ND, group)


def exit_tp(x_ND: Tensor, group: Group) -> Tensor:
    """Sum partial outputs into a replicated activation.

    Shapes: [N, D] -> [N, D]. Gradient: passed on unchanged, because it is already complete on every
    rank.
    """
    return EXIT_TP(x_ND, group)


def gather_tokens(x_nD: Tensor, group: Group) -> Tensor:
    """Gather token shards at the start of a tensor-parallel region (sequence parallelism).

    Shapes: [n, D] -> [N, D]. Gradient: reduce-scatter, this rank's part of the sum of `enter_tp`.
    """
    return GATHER(x_nD, group)


def scatter_tokens(x_ND: Tensor, group: Group) -> Tensor:
    """Sum partial outputs and keep this rank's tokens (sequence parallelism).

    Shapes: [N, D] -> [n, D]. Gradient: all-gather.
    """
    return SCATTER(x_ND, group)


def exchange(x: Tensor, group: Group) -> Tensor:
    """Send part i of dim 0 to rank i of `group`, and return what all ranks sent to this one.

    Shapes: [group size, ...] -> the same. Gradient: the exchange back.
    """
    return EXCHANGE(x, group)


def split_rows(rows_RD: Tensor, sizes: Sizes, group: Group) -> Tensor:
    """Leave an encoder with its output replicated over tp: keep the rows that this rank sends.

    Shapes: [R, D] -> [sizes[index], D]. Gradient: all-gather, because every tp rank needs the
    gradient of all rows; zero-filling (the natural adjoint of a slice) would lose the others' rows.
    """
    return SPLIT_ROWS(rows_RD, sizes, group)


def gather_rows(rows_rD: Tensor, sizes: Sizes, group: Group) -> Tensor:
    """Enter a language model with its input replicated over tp: complete the rows.

    Shapes: [sizes[index], D] -> [R, D]. Gradient: this rank's share, unsummed, because the
    gradient is already complete on every tp rank; summing (the natural adjoint of a gather) counts
    it tp times.
    """
    return GATHER_ROWS(rows_rD, sizes, group)


def exchange_tokens(x_rD: Tensor, send: Sizes, receive: Sizes, group: Group) -> Tensor:
    """Send rows to each rank of `group` in turn and return what they sent, in their order.

    Shapes: [sum(send), D] -> [sum(receive), D]. Gradient: the same exchange, back. Traffic: an
    all-to-all with uneven splits; a rank without rows also takes part.
    """
    return EXCHANGE_TOKENS(x_rD, send, receive, group)


def gather_uneven_tokens(x_rD: Tensor, sizes: Sizes, group: Group) -> Tensor:
    """Return the rows of all ranks; each rank then computes part of a product with them.

    Shapes: [sizes[index], D] -> [sum(sizes), D]. Gradient: summed over `group`, own rows kept.
    """
    return GATHER_UNEVEN(x_rD, sizes, group)


def scatter_uneven_tokens(x_RD: Tensor, sizes: Sizes, group: Group) -> Tensor:
    """Sum partial outputs for the rows of all ranks, and keep this rank's rows.

    Shapes: [sum(sizes), D] -> [sizes[index], D]. Gradient: all-gather.
    """
    return SCATTER_UNEVEN(x_RD, sizes, group)


def exchange_counts(counts_E: Tensor, ep: Group, tp: Group) -> Tensor:
    """Return all ranks' token counts for this rank's experts: [tp ranks, ep ranks, own experts].

    `counts_E` holds the number of this rank's tokens for each expert.
    """
    theirs = all_to_all(counts_E, ep)
    return all_gather(theirs, tp).view(tp.size, ep.size, -1)
