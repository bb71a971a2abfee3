"""Attention over packed documents and ragged images by masks or by lists, whichever is asked for.

Where there is no GPU a loop stands in for the kernel over lists, in any type.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from tests.support.engine_stand_ins import stand_in_layers
from torch import Tensor

from mimo_launch.comm.process_groups import Group
from mimo_launch.diag.installed import ENGINE
from mimo_launch.layers import attention, te_attention, varlen_attention
from mimo_launch.layers.pointwise import widened
from mimo_launch.models import te_block

MASKS, LISTS = "masks", "lists"
# A planted bug: the first query sees the first key alone, whatever keys come before the part.
UPPER_LEFT = "lists, causal masks aligned at the upper left"
# A planted bug in blocks of Transformer Engine: a document starts a token early.
EARLY = f"{ENGINE}, documents that start early"


def loop_over_sequences(*, lower_right: bool) -> Callable[..., Any]:
    """Return attention inside each sequence of a list, as the kernel of `varlen_attn` computes it.

    It takes and returns what `varlen_forward` does.
    """

    def attend(
        inputs: tuple[Tensor, Tensor, Tensor],
        bounds: tuple[Tensor, Tensor],
        longest: tuple[int, int],
        *,
        scale: float | None,
        window: tuple[int, int],
    ) -> tuple[Tensor, Tensor]:
        q_NhK, k_MgK, v_MgK = inputs
        lists, outs, sums = (*bounds, *longest), [], []
        share = q_NhK.shape[1] // k_MgK.shape[1]
        for _, keys, scores in _scores(q_NhK, k_MgK, lists, scale, window, lower_right):
            v = widened(v_MgK[keys]).repeat_interleave(share, dim=1).transpose(0, 1)
            outs.append((scores.softmax(dim=-1) @ v).transpose(0, 1))
            sums.append(scores.logsumexp(dim=-1))
        return torch.cat(outs).to(q_NhK.dtype), torch.cat(sums, dim=1)

    return attend


def _scores(
    q_NhK: Tensor,
    k_MgK: Tensor,
    lists: Any,
    scale: float | None,
    window: tuple[int, int],
    lower_right: bool,
) -> Iterator[tuple[slice, slice, Tensor]]:
    """Yield queries and keys of each sequence, and the scores of those that attend to each other.

    `lists` are the bounds and the longest sequences of both.
    """
    bounds_q, bounds_k, max_q, max_k = lists
    assert bounds_q.dtype == bounds_k.dtype == torch.int32
    # A list that is longer than its sequences would have values that nobody set.
    assert [len(q_NhK), len(k_MgK)] == [int(bounds_q[-1]), int(bounds_k[-1])]
    share = q_NhK.shape[1] // k_MgK.shape[1]
    places = [pairwise(bounds.tolist()) for bounds in (bounds_q, bounds_k)]
    for queries, keys in zip(*((slice(*x) for x in each) for each in places), strict=True):
        num_q, num_k = queries.stop - queries.start, keys.stop - keys.start
        assert 0 < num_q <= max_q
        assert 0 < num_k <= max_k
        seen = torch.ones(num_q, num_k, dtype=torch.bool, device=q_NhK.device)
        before, after = window
        if after == 0:
            last = num_k - num_q if lower_right else 0
            seen = seen.tril(last)
            seen = seen if before < 0 else seen.triu(last - before)
        else:
            assert window == (-1, -1)
        k = widened(k_MgK[keys]).repeat_interleave(share, dim=1).transpose(0, 1)
        scores = (widened(q_NhK[queries]).transpose(0, 1) @ k.mT) * (
            scale or q_NhK.shape[-1] ** -0.5
        )
        yield queries, keys, scores.masked_fill(~seen, -torch.inf)


def backward_over_sequences(
    grad_NhK: Tensor,
    inputs: tuple[Tensor, Tensor, Tensor],
    out_NhK: Tensor,
    lse_hN: Tensor,
    bounds: tuple[Tensor, Tensor],
    longest: tuple[int, int],
    *,
    scale: float | None,
    window: tuple[int, int],
) -> tuple[Tensor, ...]:
    """Return gradients as the backward of flash attention does, from its output and log-sum-exp.

    Source: arXiv:2205.14135, algorithm 4.
    """
    q_NhK, k_MgK, v_MgK = inputs
    share, factor = q_NhK.shape[1] // k_MgK.shape[1], scale or q_NhK.shape[-1] ** -0.5
    grads = [torch.zeros_like(widened(each)) for each in inputs]
    lists = (*bounds, *longest)
    for queries, keys, scores in _scores(q_NhK, k_MgK, lists, scale, window, True):
        weights = torch.exp(scores - lse_hN[:, queries].unsqueeze(-1))
        q, grad, out = (widened(x[queries]).transpose(0, 1) for x in (q_NhK, grad_NhK, out_NhK))
        k, v = (
            widened(x[keys]).repeat_interleave(share, dim=1).transpose(0, 1) for x in (k_MgK, v_MgK)
        )
        of_scores = weights * (grad @ v.mT - (grad * out).sum(dim=-1, keepdim=True)) * factor
        found = of_scores @ k, of_scores.mT @ q, weights.mT @ grad
        grads[0][queries] = found[0].transpose(0, 1)
        for total, each in zip(grads[1:], found[1:], strict=True):
            per_key = each.transpose(0, 1).unflatten(1, (-1, share))
            total[keys] += per_key.sum(dim=2)
    return tuple(grad.to(each.dtype) for grad, each in zip(grads, inputs, strict=True))


def by_lists(*, lower_right: bool = True) -> None:
    """Have attention of this process go over lists from now on, with the loop for a kernel."""
    varlen_attention.varlen_forward = loop_over_sequences(lower_right=lower_right)
    varlen_attention.varlen_backward = backward_over_sequences
    attention.takes_lists = lambda q: True


def by_stand_ins() -> None:
    """Have blocks of Transformer Engine of this process be stand-ins from now on."""
    by_lists()
    te_block.te_layers = stand_in_layers


def by_stand_ins_that_start_early() -> None:
    """A planted bug: a document in these blocks starts a token early."""
    by_stand_ins()
    te_attention.inside_documents = documents_that_start_early


def aligned_at_the_upper_left() -> None:
    """A planted bug: queries see as few keys as if those before their part were not there."""
    by_lists(lower_right=False)


def keys_from_the_first_image_on() -> None:
    """A planted bug: a cp rank takes the keys of the first images, not of those that it holds."""
    by_lists()
    correct = attention.inside_images
    attention.inside_images = lambda q, k, v, mask: correct(q, k, v, replace(mask, first_key=0))


@contextmanager
def attention_by(way: str, device: torch.device) -> Iterator[None]:
    """Have attention take a way, or its own where `way` is none of these.

    Raises: RuntimeError where it was to go over lists and did not, on any rank.
    Ranks: collective over the world.
    """
    if way == MASKS:
        with patch.object(attention, "takes_lists", lambda q: False):
            yield
    elif way in (LISTS, UPPER_LEFT):
        with calls_of_kernel(device, lower_right=way == LISTS) as calls:
            yield
        total = torch.tensor(len(calls), device=device)
        dist.all_reduce(total)
        if not int(total):
            raise RuntimeError("attention did not go over lists")
    elif way.startswith(ENGINE):
        with ExitStack() as stack:
            if device.type == "cpu":
                stack.enter_context(patch.object(te_block, "te_layers", stand_in_layers))
                stack.enter_context(calls_of_kernel(device))
            if way == EARLY:
                early = patch.object(te_attention, "inside_documents", documents_that_start_early)
                stack.enter_context(early)
            yield
    else:
        yield


def documents_that_start_early(
    q: Tensor, k: Tensor, v: Tensor, lengths: tuple[int, ...], cp: Group
) -> Tensor:
    """Return attention where the first document that can gives its last token to the next."""
    early, ends = [*lengths], accumulate(lengths)
    can = (n for n, end in enumerate(ends) if lengths[n] > 1 and end % k.shape[1])
    if (first := next(can, None)) is not None:
        early[first : first + 2] = lengths[first] - 1, lengths[first + 1] + 1
    return varlen_attention.inside_documents(q, k, v, tuple(early), cp)


@contextmanager
def calls_of_kernel(device: torch.device, *, lower_right: bool = True) -> Iterator[list[int]]:
    """Note the number of queries of each call; on processors the loop is the kernel."""
    kernel: Callable[..., Any] = varlen_attention.varlen_forward
    backward: Callable[..., Any] = varlen_attention.varlen_backward
    takes: Callable[[Tensor], bool] = varlen_attention.takes_lists
    if device.type == "cpu":
        kernel, takes = loop_over_sequences(lower_right=lower_right), lambda q: True
        backward = backward_over_sequences
    calls: list[int] = []

    def noted(inputs: tuple[Tensor, ...], **lists: Any) -> Any:
        calls.append(len(inputs[0]))
        return kernel(inputs, **lists)

    with (
        patch.object(varlen_attention, "varlen_forward", noted),
        patch.object(varlen_attention, "varlen_backward", backward),
        patch.object(attention, "takes_lists", takes),
    ):
        yield calls
