"""A tower of Ovis2 has the gradients of one rank on every layout."""

from typing import Any

import pytest
from tests.support.planted_ovis2_vision import MODEL, SPLIT, worded
from tests.support.proof import failures, verdicts

SP = {"sequence_parallel": True}
# Grids of vision, grids of language, and further sections.
LAYOUTS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "one rank": ({}, {"first": 0}, {}),
    "tp": ({"tp": 2}, {"first": 0, "tp": 2}, {}),
    "sequence parallel": ({"tp": 2, **SP}, {}, {}),
    "cp 3": ({"cp": 3, "recompute": "full"}, {}, {}),
    "sequence parallel, cp": (SPLIT, {}, {}),
    "pp, sequence parallel": ({"pp": 2, "tp": 2, **SP}, {"pp": 2}, {}),
    "pp, cp": ({"pp": 2, "cp": 2, "recompute": ["norms", "mlp"]}, {}, {}),
    "colocated, groups": ({"dp": 4}, {"first": 0, "tp": 2, "dp": 2}, {"mbs": 4}),
    "full sharding": ({"dp": 2, "tp": 2, "sharding": "full", "recompute": "full"}, {}, {}),
    "sharded optimizer": ({"dp": 2, "cp": 2, "sharding": "optimizer"}, {}, {}),
    "projector alone": ({"cp": 2, "dp": 2, "frozen": "except_projector"}, {"dp": 2}, {}),
    "frozen": ({"tp": 2, "frozen": True}, {"cp": 2}, {}),
    "one tile, squares of one patch": (
        {"tp": 2, "cp": 2, "model": MODEL | {"tiles": {}, "shuffle": 1, "qkv_bias": True}}, {}, {},
    ),
    "three tiles in a line": (
        {"cp": 2, "model": MODEL | {"tiles": {"grids": [[1, 3], [3, 1]]}}}, {}, {},
    ),
}  # fmt: skip
OFTEN = {"sequence parallel, cp", "pp, sequence parallel"}


@pytest.mark.parametrize(
    "layout", [pytest.param(x, marks=() if x in OFTEN else pytest.mark.sweep) for x in LAYOUTS]
)
def test_gradients_are_those_of_one_rank(layout: str) -> None:
    vision, language, sections = LAYOUTS[layout]
    assert failures(verdicts(worded(vision, language, **sections))) == []
