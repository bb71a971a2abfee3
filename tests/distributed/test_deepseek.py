"""Latent attention and experts in groups over every layout; folders of DeepSeek-V3."""

from typing import Any

import pytest
from tests.support.lists import by_lists
from tests.support.planted_latent import EXPERTS, MLA, latent
from tests.support.proof import failures, verdicts

LAYOUTS: dict[str, dict[str, Any]] = {
    "one rank": {},
    "tp 2": {"tp": 2},
    "tp 4, sequence parallel": {"tp": 4, "sequence_parallel": True},
    "cp 4, packed": {"cp": 4, "data": {"packing": True}},
    "pp 2, full sharding": {"pp": 2, "sharding": "full"},
    "dp 2, recompute": {"dp": 2, "recompute": "full"},
    "tp 2, cp 2, sequence parallel, documents": {
        "tp": 2, "cp": 2, "sequence_parallel": True, "data": {"max_documents": 3},
    },
    "queries of the stream, tp 2": {"tp": 2, "model": {"mla": {**MLA, "q_rank": None}}},
    "windows, values as large as keys": {
        "cp": 2,
        "model": {
            "mla": {**MLA, "v_head_dim": 10, "interleaved": False}, "attention_sinks": True,
            "sliding_window": {"size": 5, "full": [1], "rope_theta": 20.0},
        },
    },
    "experts over ep": {"dp": 2, **EXPERTS},
    "experts, tp 2, pp 2": {"tp": 2, "pp": 2, "sequence_parallel": True, **EXPERTS},
}  # fmt: skip
OFTEN = {"tp 2, cp 2, sequence parallel, documents", "experts, tp 2, pp 2"}


@pytest.mark.parametrize(
    "layout", [pytest.param(x, marks=() if x in OFTEN else pytest.mark.sweep) for x in LAYOUTS]
)
def test_gradients_of_latent_attention_are_those_of_one_rank(layout: str) -> None:
    assert failures(verdicts(latent(**LAYOUTS[layout]))) == []


@pytest.mark.sweep
def test_latent_attention_goes_over_lists() -> None:
    """Values are smaller than keys, and filled up with zeros."""
    made = latent(cp=2, data={"packing": True}, model={"attention_sinks": True})
    assert failures(verdicts(made, prepare=by_lists)) == []
