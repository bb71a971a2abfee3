"""The parts of a Ministral 3 over every layout: queries that grow with positions; its folders."""

from typing import Any

import pytest
from tests.support.planted_growth import grown
from tests.support.proof import failures, verdicts
from tests.support.specs import BEHIND_VISION

LAYOUTS: dict[str, dict[str, Any]] = {
    **BEHIND_VISION,
    "windows, cp 2": {"cp": 2, "model": {"sliding_window": {"size": 5, "full": [1]}}},
    "windows with their own base": {
        "model": {"sliding_window": {"size": 5, "full": [1], "rope_theta": 20.0}},
    },
    "neighbours rotate, documents": {
        "model": {"rotary_interleaved": True, "rotary_factor": 1.0}, "data": {"max_documents": 3},
    },
    "three axes, cp 2, documents": {
        "cp": 2, "model": {"mrope": [1, 1, 1], "rope_scaling": None}, "data": {"max_documents": 3},
    },
    "capped, sinks": {"model": {"attention_softcap": 5.0, "attention_sinks": True}},
    "latent attention, tp 2": {
        "tp": 2,
        "model": {
            "kv_heads": 4, "head_dim": 10, "rotary_factor": 1.0,
            "mla": {"kv_rank": 12, "q_rank": 14, "rope_head_dim": 4, "v_head_dim": 6},
        },
    },
    "further tokens, cp 2": {"cp": 2, "model": {"mtp": {"depth": 1}}},
}  # fmt: skip
OFTEN = {"tp 2, cp 2, documents", "windows with their own base"}


@pytest.mark.parametrize(
    "layout", [pytest.param(x, marks=() if x in OFTEN else pytest.mark.sweep) for x in LAYOUTS]
)
def test_gradients_of_growing_queries_are_those_of_one_rank(layout: str) -> None:
    assert failures(verdicts(grown(**LAYOUTS[layout]))) == []
