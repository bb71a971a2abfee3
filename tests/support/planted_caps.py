"""Known ways to get soft-capping wrong; `planted` lists them with the others."""

from dataclasses import replace
from typing import Any

import torch
from tests.support.specs import behind_vision

from mimo_launch.layers import score_attention
from mimo_launch.layers.sequence_contexts import SequenceContext
from mimo_launch.models import language_model
from mimo_launch.spec.spec import Spec

# Layers 0 and 2 attend in windows. The vocabulary is padded.
MODEL: dict[str, Any] = {
    "layers": 4, "heads": 4, "kv_heads": 2, "post_norms": True, "norm_offset": True,
    "activation": "gelu_tanh", "embedding_scale": 5.5, "query_pre_attn_scalar": 20.0, "tied": True,
    "rope_theta": 200.0, "sliding_window": {"size": 5, "full": [1, 3]},
    "attention_softcap": 50.0, "logit_softcap": 30.0,
}  # fmt: skip


def capped(data: dict[str, Any] | None = None, **language: Any) -> Spec:
    """Language with capped scores and logits behind vision, on ranks of its own."""
    return behind_vision(MODEL, data, **language)


def in_small_blocks() -> None:
    """The scores of few queries exist at once, so that a sequence has several blocks."""
    score_attention.MOST_SCORES = 150


def scores_capped_before_their_scale() -> None:
    """Scores are capped first and divided by the root of the size of a head afterwards."""
    correct = score_attention.attend_by_scores

    def before(q: Any, k: Any, v: Any, allowed: Any, scoring: Any, drop: Any) -> torch.Tensor:
        cap = scoring.cap / scoring.scale
        return correct(q, k, v, allowed, replace(scoring, cap=cap), drop)

    from mimo_launch.layers import attention

    attention.attend_by_scores = before


def slope_forgotten() -> None:
    """The backward passes gradients of capped scores on as if they were not capped."""
    correct = score_attention.soft_capped
    score_attention.soft_capped = lambda x, cap: x + (correct(x, cap) - x).detach()


def padding_capped() -> None:
    """Logits of padding are capped, too: words that do not exist have probabilities."""
    correct, masked = language_model.soft_capped, language_model.mask_padding
    language_model.soft_capped = lambda logits, cap: logits

    def capped_last(logits: Any, part: range, vocab: int) -> torch.Tensor:
        return correct(masked(logits, part, vocab), 2.0)

    language_model.mask_padding = capped_last


def blocks_end_with_the_chunk() -> None:
    """The queries of every block see as many keys as if they were the last of their chunk."""
    in_small_blocks()
    correct = SequenceContext.lower_right

    def first(self: Any, queries: int, keys: int) -> torch.Tensor:
        return correct(self, min(queries + 1, keys), keys)[..., :queries, :]

    SequenceContext.lower_right = first


CAP_BUGS = {
    "scores capped before their scale": (scores_capped_before_their_scale, capped()),
    "slope forgotten": (slope_forgotten, capped(tp=2)),
    "padding capped": (padding_capped, capped(tp=2)),
    "blocks a query late": (blocks_end_with_the_chunk, capped(cp=2)),
}
