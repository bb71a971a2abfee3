"""The parts of a GLM-4 over every layout: neighbours that rotate; its folders."""

from typing import Any

import pytest
from tests.support.planted_gates import gated
from tests.support.proof import failures, verdicts
from tests.support.specs import BEHIND_VISION

ONE_AXIS = {"mrope": None, "mrope_interleaved": False}
LAYOUTS: dict[str, dict[str, Any]] = {
    **BEHIND_VISION,
    "whole heads, cp 2": {"cp": 2, "model": {"rotary_factor": 1.0, "mrope": [2, 2, 2]}},
    "one axis, tp 2": {"tp": 2, "model": {**ONE_AXIS, "post_norms": True}},
    "capped scores, cp 2": {"cp": 2, "model": {**ONE_AXIS, "attention_softcap": 50.0}},
}
OFTEN = {"capped scores, cp 2"}


@pytest.mark.parametrize(
    "layout", [pytest.param(x, marks=() if x in OFTEN else pytest.mark.sweep) for x in LAYOUTS]
)
def test_gradients_of_neighbours_are_those_of_one_rank(layout: str) -> None:
    keys = LAYOUTS[layout]
    paired = {"gated_attention": False, "rotary_interleaved": True}
    asked = gated(**{**keys, "model": paired | keys.get("model", {})})
    assert failures(verdicts(asked)) == []
