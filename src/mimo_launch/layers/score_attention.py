"""Attention whose scores are a tensor: capped ones, and sinks where no kernel goes over lists.

Decides: how many capped scores exist at once.
Relies on: masks of `sequence_contexts`.
Leaves: which attention goes this way to `attention`.

Legend: B sequences, S queries, M keys, h heads and g key/value heads of this rank, K head size.
Source: soft-capping: Gemma 2 (arXiv:2408.00118), section 2; sinks: GPT-OSS (arXiv:2508.10925).
"""

import torch
from torch import Tensor

from mimo_launch.kinds.saved_activations import MOST_SCORES
from mimo_launch.layers.pointwise import soft_capped, widened


def queries_at_once(batch: int, keys: int) -> int:
    """Return of how many queries of each sequence the scores may exist at once."""
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
) -> Tensor:
    """Return attention by a mask, [B, h, S, K]; the softmax of a head is over its sink, too.

    A mask in another type than bool is 0 where a token attends. Sinks are not capped.
    """
    batch, heads, queries, _ = q_BhSK.shape
    # Heads that share keys are further queries, so that keys need no copies.
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
    weights_BgQM = weights.to(v_BgMK.dtype).reshape(*by_group, v_BgMK.shape[2])
    return (weights_BgQM @ v_BgMK).view(by_head)
