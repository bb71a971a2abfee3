"""The gated delta rule over sequences, chunk by chunk.

Decides: how a recurrence over tokens becomes matrix products, and where its state is reset.
Relies on: torch only, on every device.
Leaves: projections, groups of ranks and norms to `deltanet`.

A head has a state S [K, P]. Token by token, S decays by exp(g); then it forgets what it holds for
the key k and holds a part of the value v instead, S + k beta (v - S^T k)^T; y = S^T q. Inside a
chunk the tokens' changes of S depend on each other through their keys, which is a triangular
system; only S passes from chunk to chunk.
Source: S. Yang and others, arXiv:2406.06484, section 3; with decays arXiv:2412.06464, section 3.

Legend: B sequences of S tokens, H heads of P numbers, G groups of R heads that share queries and
keys of K numbers; c chunks of i or j tokens.
"""

import torch
from torch import Tensor

from mimo_launch.layers.pointwise import widened
from mimo_launch.layers.ssd import chunked, last_before

_EPSILON = 1e-6


def delta_rule(
    q_BSGK: Tensor,
    k_BSGK: Tensor,
    v_BSHP: Tensor,
    decay_BSH: Tensor,
    strength_BSH: Tensor,
    *,
    chunk: int,
    documents_BS: Tensor | None = None,
) -> Tensor:
    """Return y like v. Queries and keys are scaled to length 1, queries then by 1 / sqrt(K).

    `decay` is the logarithm of that of the state, at most 0; `strength` is beta, between 0 and 1.
    A token whose number in `documents` differs from the one before starts from a zero state.
    `chunk` changes no result. Inside, everything is in at least fp32. S may be 0.
    """
    shape, groups, size = v_BSHP.shape, k_BSGK.shape[2], k_BSGK.shape[3]
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
    # What each token writes depends on what those before it in the chunk write, and on the state.
    system = strength * between * (k @ k.transpose(4, 5))
    given = torch.cat([strength * v, strength * reach * k], dim=5)
    own, of_state = torch.linalg.solve_triangular(
        system, given, upper=False, unitriangular=True
    ).split([shape[3], size], dim=5)
    within, read, keys = between * (q @ k.transpose(4, 5)), q * reach, k * to_end
    state = v.new_zeros((shape[0], groups, shape[2] // groups, size, shape[3]))
    outs = []
    for index in range(v.shape[1]):
        written = own[:, index] - of_state[:, index] @ state
        outs.append(read[:, index] @ state + within[:, index] @ written)
        state = through[:, index] * state + keys[:, index].transpose(3, 4) @ written
    if not outs:
        return v_BSHP
    y = torch.stack(outs, dim=1).movedim(4, 2).flatten(3, 4).flatten(1, 2)
    return y[:, : shape[1]].to(v_BSHP.dtype)


def _of_length_1(t: Tensor) -> Tensor:
    wide = widened(t)
    return wide * (wide.square().sum(dim=-1, keepdim=True) + _EPSILON).rsqrt()


def _of_groups(t_BciH: Tensor, groups: int) -> Tensor:
    """Return heads by group and in front of tokens, [B, c, G, R, i, ...]."""
    *tokens, heads, size = t_BciH.shape
    return t_BciH.reshape(*tokens, groups, heads // groups, size).movedim(2, 4)


def _as_heads(tokens_Bci: Tensor) -> Tensor:
    """Return the same for every head, [B, c, 1, 1, i, 1]."""
    return tokens_Bci[:, :, None, None, :, None]
