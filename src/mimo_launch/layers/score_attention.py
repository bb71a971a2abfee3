"""Attention that stores scores: capped, with dropout, or with sinks where lists have no kernel.

Decides: how many capped scores exist at the same time.
Relies on: masks of `sequence_contexts`.
Leaves: the choice of this path to `attention`.

Legend: B sequences, S queries, M keys, h heads and g key/value heads of this rank, K head size.
Source: soft-capping: Gemma 2 (arXiv:2408.00118), section 2; sinks: GPT-OSS (arXiv:2508.10925).
"""

from collections.abc import Callable

import torch
from torch import Tensor

from mimo_launch.kinds.saved_activations import MOST_SCORES
from mimo_launch.layers.pointwise import soft_capped, widened

# Returns the weights of attention [B, h, S, M] without those that are dropped.
Drop = Callable[[Tensor], Tensor]


def queries_at_once(batch: int, keys: int) -> int:
    """Return how many queries of each sequence may have their scores in memory together."""
    return max(1, MOST_SCORES // (batch * keys))


def attend_by_scores(
    q_BhSK: Tensor,
    k_BgMK: Tensor,
    v_BgMK: Tensor,
    allowed: Tensor,
    *,
    scale: float | None,
    cap: float | None,
    sinks_h: Tensor | None,
    drop: Drop | None = None,
) -> Tensor:
    """Return attention by a mask, [B, h, S, K]; a head's softmax includes its sink, if any.

    A mask that is not bool is 0 where a token attends. Sinks are not capped. `drop` drops weights.
    """
    batch, heads, queries, _ = q_BhSK.shape
    # Heads that share keys become further queries, so that keys need no copies.
    by_group = batch, k_BgMK.shape[1], -1
    by_head = batch, heads, queries, -1
    q_BgQK = q_BhSK.reshape(*by_group, q_BhSK.shape[-1])
    scale = q_BhSK.shape[-1] ** -0.5 if scale is None else scale
    scores = widened(q_BgQK @ k_BgMK.mT).view(by_head) * scale
    if cap is not None:
        scores = soft_capped(scores, cap)
    seen = allowed if allowed.dtype == torch.bool else allowed == 0
    scores = scores.masked_fill(~seen, float("-inf"))
    if sinks_h is None:
        weights = scores.softmax(dim=-1)
    else:
        sinks = widened(sinks_h)[:, None, None].expand(*scores.shape[:-1], 1)
        weights = torch.cat([scores, sinks], dim=-1).softmax(dim=-1)[..., :-1]
    if drop is not None:
        weights = drop(weights)
    weights_BgQM = weights.to(v_BgMK.dtype).reshape(*by_group, v_BgMK.shape[2])
    return (weights_BgQM @ v_BgMK).view(by_head)
