"""Attention that stores scores: capped, with dropout, or with sinks where lists have no kernel.

Decides: how many capped scores exist at the same time.
Relies on: masks of `sequence_contexts`.
Leaves: the choice of this path to `attention`.

Legend: B sequences, S queries, M keys, h heads and g key/value heads of this rank, K head size.
Source: soft-capping: Gemma 2 (arXiv:2408.00118), section 2; sinks: GPT-OSS (arXiv:2508.10925).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mimo_launch.kinds.saved_activations import MOST_SCORES
from mimo_launch.layers.pointwise import soft_capped, widened

# Returns the weights of attention [B, h, S, M] without those that are dropped.
Drop = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Scoring:
    """What becomes of products of queries and keys: their scale (None: by head size) and cap.

    `sinks_h` are logits, one per head, that join its softmax and are not capped.
    """

    scale: float | None = None
    cap: float | None = None
    sinks_h: Tensor | None = None

    def weights(self, q_BhSK: Tensor, k_BgMK: Tensor, seen: Tensor) -> Tensor:
        """Return the weights of the keys that are `seen`, [B, h, S, M]."""
        head_size = q_BhSK.shape[-1]
        # Heads that share keys become further queries, so that keys need no copies.
        q_BgQK = q_BhSK.reshape(*k_BgMK.shape[:2], -1, head_size)
        scores = widened(q_BgQK @ k_BgMK.mT).view(*q_BhSK.shape[:-1], -1)
        scores = scores * (head_size**-0.5 if self.scale is None else self.scale)
        if self.cap is not None:
            scores = soft_capped(scores, self.cap)
        scores = scores.masked_fill(~seen, float("-inf"))
        if self.sinks_h is None:
            return scores.softmax(dim=-1)
        sinks = widened(self.sinks_h)[:, None, None].expand(*scores.shape[:-1], 1)
        return torch.cat([scores, sinks], dim=-1).softmax(dim=-1)[..., :-1]


def queries_at_once(batch: int, keys: int) -> int:
    """Return how many queries of each sequence may have their scores in memory together."""
    return max(1, MOST_SCORES // (batch * keys))


def attend_by_scores(
    q_BhSK: Tensor,
    k_BgMK: Tensor,
    v_BgMK: Tensor,
    allowed: Tensor,
    scoring: Scoring,
    drop: Drop | None = None,
) -> Tensor:
    """Return attention by a mask, [B, h, S, K].

    A mask that is not bool is 0 where a token attends. `drop` drops weights.
    """
    seen = allowed if allowed.dtype == torch.bool else allowed == 0
    weights = scoring.weights(q_BhSK, k_BgMK, seen)
    if drop is not None:
        weights = drop(weights)
    weights_BgQM = weights.to(v_BgMK.dtype).reshape(*k_BgMK.shape[:2], -1, v_BgMK.shape[2])
    return (weights_BgQM @ v_BgMK).view(*q_BhSK.shape[:-1], -1)
