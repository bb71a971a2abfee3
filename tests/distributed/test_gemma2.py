"""The parts of a Gemma 2 over every layout: capped scores and logits; its folders."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.families import FAMILIES
from tests.support.hugging_face import (
    VOCAB,
    joined,
    logits_on_rank,
    made,
    save,
    tiny,
    widen,
    widen_softmax,
)
from tests.support.planted_caps import capped, in_small_blocks
from tests.support.proof import failures, verdicts
from tests.support.specs import BEHIND_VISION
from tests.support.whole_models import deviation as deviation_of

from mimo_launch.launcher.run_on_ranks import run_ranks
from mimo_launch.layers.score_attention import queries_at_once
from mimo_launch.layout.layout import world_size

LAYOUTS: dict[str, dict[str, Any]] = {
    **BEHIND_VISION,
    "sinks, cp 2": {"cp": 2, "model": {"attention_sinks": True}},
    "images seen whole, cp 2": {"cp": 2, "model": {"bidirectional_images": True}},
    "latent attention, tp 2": {
        "tp": 2,
        "model": {
            "kv_heads": 4, "head_dim": 10,
            "mla": {"kv_rank": 12, "q_rank": 14, "rope_head_dim": 4, "v_head_dim": 6},
        },
    },
}  # fmt: skip
OFTEN = {"tp 2, cp 2, documents"}


@pytest.mark.parametrize(
    "layout", [pytest.param(x, marks=() if x in OFTEN else pytest.mark.sweep) for x in LAYOUTS]
)
def test_gradients_with_caps_are_those_of_one_rank(layout: str) -> None:
    assert failures(verdicts(capped(**LAYOUTS[layout]))) == []


@pytest.mark.parametrize(
    "layout",
    [pytest.param(x, marks=() if x == "cp 4, packed" else pytest.mark.sweep) for x in LAYOUTS],
)
def test_blocks_of_queries_are_those_of_one_rank(layout: str) -> None:
    """With scores of so few queries at once that every chunk of a sequence has several blocks."""
    assert failures(verdicts(capped(**LAYOUTS[layout]), prepare=in_small_blocks)) == []


@pytest.mark.sweep
@pytest.mark.parametrize("layout", ["one rank", "cp2", "tp2"])
def test_logits_of_long_sequences_are_those_of_transformers(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 2,560 tokens: their scores exist in several blocks, without a smaller bound of them.

    In float64, because angles of late tokens in float32 have fewer digits.
    """
    model = tiny("gemma2", torch.float64, sliding_window=700)
    save(model, tmp_path / "model")
    widen(model)
    widen_softmax(monkeypatch)
    window = {"sliding_window": {"size": 700, "full": [1]}}
    asked = made("gemma2", layout, tmp_path / "model", "fp64", model=window)
    batch = asked.batch.model_copy(update={"seq": 2560})
    asked = asked.model_copy(update={"batch": batch})
    assert queries_at_once(2, 2560) < 2560 // 2
    parts = run_ranks(logits_on_rank, asked, tmp_path, world_size=world_size(asked))
    assert deviation_of(joined(asked, parts, VOCAB), FAMILIES["gemma2"].wanted(model, asked)) < 1e-9
