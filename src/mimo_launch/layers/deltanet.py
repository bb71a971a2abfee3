"""The Gated DeltaNet mixer: decays, strengths of writing, the delta rule and a norm of heads.

Decides: what decays and strengths are; how the recurrence becomes products of chunks; and that the
backward computes it again: what happens inside chunks is several times larger than what enters.
Relies on: `recurrent` for heads on a grid, `ssd` for cutting sequences into chunks.
Leaves: the rest of a layer to `models`.

Source: S. Yang, J. Kautz and A. Hatamizadeh, Gated Delta Networks (arXiv:2412.06464).

Legend: B sequences of S tokens, H heads of P numbers, G groups of R heads that share queries and
keys of K numbers; c chunks of i or j tokens. In the mixer as in `recurrent`: x, B and C are values,
keys and queries.
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.parameter_segments import InitKind, SegmentedModule, replicated
from mimo_launch.layers.pointwise import gated_head_norm, widened
from mimo_launch.layers.recompute import recomputed
from mimo_launch.layers.recurrent import HeadShare, RecurrentMixer
from mimo_launch.layers.sequence_contexts import SequenceContext
from mimo_launch.layers.ssd import chunked, last_before
from mimo_launch.spec.hybrid import DeltaNetSizes

_EPSILON = 1e-6


# A head has a state S [K, P]. Token by token, S decays by exp(g); then it forgets what it holds for
# the key k and holds a part of the value v instead, S + k beta (v - S^T k)^T; y = S^T q. Inside a
# chunk the tokens' changes of S depend on each other through their keys, which is a triangular
# system; only S passes from chunk to chunk.
# Source: S. Yang and others, arXiv:2406.06484, section 3; with decays arXiv:2412.06464, section 3.
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


class HeadNorm(SegmentedModule):
    """RMSNorm of each head, times silu(z): [N, f] -> [N, f], in at least fp32 inside."""

    def __init__(self, context: ParallelContext, head_dim: int, eps: float) -> None:
        super().__init__()
        self.context, self.eps = context, eps
        weight = replicated(
            "weight",
            (head_dim,),
            context.inner_grad,
            counted=context.counts,
            init="ones",
            decay=False,
        )
        self.declare("weight", weight, dtype=context.dtype)

    def forward(self, x_Nf: Tensor, z_Nf: Tensor) -> Tensor:
        """Return the normalised and gated x, in its own type."""
        return self.context.fused(gated_head_norm, x_Nf, z_Nf, self.weight, self.eps)


class DeltaNet(RecurrentMixer):
    """Gated DeltaNet: projections, a short convolution, the delta rule, a gated norm."""

    channels = ("v", "k", "q")
    steps = ("a", "b")
    of_heads: ClassVar[Mapping[str, InitKind]] = {"A_log": "log_decay", "dt_bias": "time_step"}
    conv_bias = False

    def __init__(
        self,
        context: ParallelContext,
        width: int,
        sizes: DeltaNetSizes,
        *,
        eps: float,
        out_scale: float,
    ) -> None:
        super().__init__(context, width, sizes, out_scale=out_scale)
        self.chunk = sizes.chunk
        self.norm = HeadNorm(context, sizes.head_dim, eps)

    def _mix(
        self,
        xbc_BS: Tensor,
        steps_BSe: tuple[Tensor, ...],
        share: HeadShare,
        sequences: SequenceContext,
    ) -> Tensor:
        def mixed(xbc: Tensor, *steps: Tensor) -> Tensor:
            return super(DeltaNet, self)._mix(xbc, steps, share, sequences)

        out: Tensor = recomputed(mixed, xbc_BS, *steps_BSe)
        return out

    def recur(
        self,
        x_BSHP: Tensor,
        b_BSGK: Tensor,
        c_BSGK: Tensor,
        steps: tuple[Tensor, ...],
        weights: Mapping[str, Tensor],
        documents_BS: Tensor | None,
    ) -> Tensor:
        """Return what queries read from states."""
        a_BSH, strength_BSH = (widened(step) for step in steps)
        return delta_rule(
            c_BSGK,
            b_BSGK,
            x_BSHP,
            -weights["A_log"].exp() * F.softplus(a_BSH + weights["dt_bias"]),
            strength_BSH.sigmoid(),
            chunk=self.chunk,
            documents_BS=documents_BS,
        )
