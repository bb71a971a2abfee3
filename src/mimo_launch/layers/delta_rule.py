"""The gated delta rule over whole sequences, in torch.

Decides: how the recurrence becomes matrix products over chunks.
Relies on: `ssd` for cutting sequences into chunks; on GPUs `delta_rule_kernels` computes the same.
Leaves: projections, decays and norms to `deltanet`.

Source: S. Yang and others, arXiv:2406.06484, section 3; with decays S. Yang, J. Kautz and
A. Hatamizadeh, arXiv:2412.06464, section 3.

Legend: B sequences of S tokens, H heads of size P, G groups of R heads that share queries and keys
of size K; c chunks of i or j tokens.
"""

from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mimo_launch.layers.pointwise import Fused, called, widened
from mimo_launch.layers.ssd import chunked, last_before

_EPSILON = 1e-6


class DeltaInputs(NamedTuple):
    """What the rule reads of each token.

    `decay` is the logarithm of the state's decay, at most 0; `strength` is beta, between 0 and 1.
    """

    q_BSGK: Tensor
    k_BSGK: Tensor
    v_BSHP: Tensor
    decay_BSH: Tensor
    strength_BSH: Tensor


# A head has a state S [K, P]. Token by token, S decays by exp(g); then the value that it holds for
# the key k is partly replaced by the value v, S + k beta (v - S^T k)^T; y = S^T q. Inside a chunk
# the tokens' changes of S depend on each other through their keys, which gives a triangular system;
# only S passes from chunk to chunk.
def delta_rule(
    given: DeltaInputs,
    *,
    chunk: int,
    documents_BS: Tensor | None = None,
    fused: Fused = called,
) -> Tensor:
    """Return y like v. Queries and keys are scaled to length 1, queries then by 1 / sqrt(K).

    The first token of each document in `documents` starts from a zero state. `chunk` does not
    change the result. All computation is in at least fp32. S may be 0. `fused` calls a function
    with few passes over memory.
    """
    kept, added, *inside = fused(_of_chunks, *given, documents_BS, chunk)
    state = _states(kept, added)
    y_BSHP: Tensor = fused(_read, state, *inside)
    return y_BSHP[:, : given.v_BSHP.shape[1]].to(given.v_BSHP.dtype)


def _of_chunks(
    q_BSGK: Tensor,
    k_BSGK: Tensor,
    v_BSHP: Tensor,
    decay_BSH: Tensor,
    strength_BSH: Tensor,
    documents_BS: Tensor | None,
    chunk: int,
) -> tuple[Tensor, ...]:
    """Return how each chunk changes the state, and what `_read` needs of it."""
    groups, size = k_BSGK.shape[2:]
    numbers = None if documents_BS is None else chunked(documents_BS, chunk, repeat_last=True)
    # [B, c, G, 1, i, K]: the heads of a group share these.
    q, k = (chunked(_of_length_1(t), chunk).transpose(2, 3).unsqueeze(3) for t in (q_BSGK, k_BSGK))
    q = q * size**-0.5
    # [B, c, G, R, i, P], and [B, c, G, R, i, 1].
    v, decay, strength = (
        _of_groups(chunked(widened(t), chunk), groups)
        for t in (v_BSHP, decay_BSH.unsqueeze(-1), strength_BSH.unsqueeze(-1))
    )
    # Logarithms of decays from the start of a chunk to after each token, and from after token j to
    # after token i.
    total = decay.cumsum(dim=4)
    tokens = total.shape[4]
    hidden = torch.ones(tokens, tokens, dtype=torch.bool, device=v.device).triu(1)
    reach, to_end, through = (
        total.exp(),
        (total[..., -1:, :] - total).exp(),
        total[..., -1:, :].exp(),
    )
    if numbers is not None:
        hidden = hidden | (numbers.unsqueeze(3) != numbers.unsqueeze(2))[:, :, None, None]
        first, last = last_before(numbers)[..., None], numbers[..., -1:]
        reach = reach * _as_heads(numbers == first)
        to_end = to_end * _as_heads(numbers == last)
        through = through * _as_heads(last == first)
    between = (total - total.transpose(4, 5)).masked_fill(hidden, float("-inf")).exp()
    # Each token's write depends on the writes before it in the chunk, and on the state.
    system = strength * between * (k @ k.transpose(4, 5))
    one = torch.eye(tokens, dtype=v.dtype, device=v.device).expand(system.shape)
    solved: Tensor = torch.linalg.solve_triangular(system, one, upper=False, unitriangular=True)
    own, of_state = solved @ (strength * v), solved @ (strength * reach * k)
    # A chunk keeps a part of the state, forgets the values that its keys replace, and adds its
    # writes.
    keys = (k * to_end).transpose(4, 5)
    kept = through * torch.eye(size, dtype=v.dtype, device=v.device) - keys @ of_state
    return kept, keys @ own, q * reach, between * (q @ k.transpose(4, 5)), own, of_state


def _read(state: Tensor, reading: Tensor, scores: Tensor, own: Tensor, of_state: Tensor) -> Tensor:
    """Return what queries read from the state before their chunk, and from their chunk."""
    y = reading @ state + scores @ (own - of_state @ state)
    return y.movedim(4, 2).flatten(3, 4).flatten(1, 2)


def _states(kept: Tensor, added: Tensor) -> Tensor:
    """Return the states before each chunk, [B, c, ..., K, P] like `added`."""
    first, *more = (t.transpose(0, 1).flatten(1, -3) for t in (added, kept))
    before: Tensor = _Recurrence.apply(*more, first)  # type: ignore[no-untyped-call]
    return before.view(added.transpose(0, 1).shape).transpose(0, 1)


class _Recurrence(torch.autograd.Function):
    """x[0] = 0; x[i + 1] = a[i] @ x[i] + b[i]: a [c, n, K, K] and b [c, n, K, P] to x like b.

    One product for each chunk covers all n heads, forward and backward; autograd would launch four
    times as many kernels, and a GPU would wait for the launches.
    """

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        x = torch.cat([torch.zeros_like(b[:1]), b[:-1]])
        # One call makes the views of all chunks, faster for the host than an index for each.
        for factor, (before, after) in zip(a.unbind(), pairwise(x.unbind()), strict=False):
            after.baddbmm_(factor, before)
        ctx.save_for_backward(a, x)
        return x

    @staticmethod
    def backward(ctx: Any, by_x: Tensor) -> tuple[Tensor, Tensor]:
        a, x = ctx.saved_tensors
        # The gradient of the state after each chunk; nothing reads the last state.
        behind = torch.cat([by_x[1:], torch.zeros_like(by_x[:1])])
        backwards = behind.unbind()[-2::-1]
        factors = a.transpose(2, 3).unbind()[-2::-1]
        for factor, (after, before) in zip(factors, pairwise(backwards), strict=False):
            before.baddbmm_(factor, after)
        return behind @ x.transpose(2, 3), behind


def _of_length_1(t: Tensor) -> Tensor:
    wide = widened(t)
    return wide * (wide.square().sum(dim=-1, keepdim=True) + _EPSILON).rsqrt()


def _of_groups(t_BciH: Tensor, groups: int) -> Tensor:
    """Return heads by group, with their axes before tokens, [B, c, G, R, i, ...]."""
    *tokens, heads, size = t_BciH.shape
    return t_BciH.reshape(*tokens, groups, heads // groups, size).movedim(2, 4)


def _as_heads(tokens_Bci: Tensor) -> Tensor:
    """Return token values with axes to broadcast over heads, [B, c, 1, 1, i, 1]."""
    return tokens_Bci[:, :, None, None, :, None]
