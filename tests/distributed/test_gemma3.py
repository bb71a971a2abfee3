"""A decoder of ours is a Gemma of `transformers`: a step, folders of all versions, windows."""

from typing import Any

import pytest
from tests.support.planted_images import seen_whole
from tests.support.planted_sliding import sliding
from tests.support.proof import failures, verdicts
from tests.support.specs import BEHIND_VISION

LAYOUTS: dict[str, dict[str, Any]] = {
    **BEHIND_VISION,
    "experts": {
        "dp": 2, "experts": {"ep": 2},
        "model": {"moe": {"experts": 4, "top_k": 2, "width": 32, "every": 2}},
    },
}  # fmt: skip
OFTEN = {"tp 2, cp 2, documents", "experts"}


@pytest.mark.parametrize(
    "layout", [pytest.param(x, marks=() if x in OFTEN else pytest.mark.sweep) for x in LAYOUTS]
)
def test_gradients_with_windows_are_those_of_one_rank(layout: str) -> None:
    assert failures(verdicts(sliding(**LAYOUTS[layout]))) == []


WHOLE_IMAGES: dict[str, dict[str, Any]] = {
    "tp 2": {"tp": 2, "sequence_parallel": True},
    "tp 4, cp 2": {"tp": 4, "cp": 2},
    "cp 2": {"cp": 2},
    "cp 4": {"cp": 4},
    "pp 2, full sharding": {"pp": 2, "sharding": "full"},
    "cp 2, pp 2, documents": {"cp": 2, "pp": 2, "data": {"max_documents": 3}},
    "dp 2, recompute": {"dp": 2, "recompute": "full"},
    "cp 2, packed": {"cp": 2, "data": {"packing": True}},
    "sinks, cp 2": {"cp": 2, "model": {"attention_sinks": True}},
    "three axes, one window": {
        "cp": 2,
        "model": {"sliding_window": None, "head_dim": 12, "mrope": [2, 2, 2]},
    },
}


@pytest.mark.parametrize(
    "layout",
    [
        pytest.param(x, marks=() if x == "cp 2, pp 2, documents" else pytest.mark.sweep)
        for x in WHOLE_IMAGES
    ],
)
def test_gradients_of_images_seen_whole_are_those_of_one_rank(layout: str) -> None:
    assert failures(verdicts(seen_whole(**WHOLE_IMAGES[layout]))) == []
