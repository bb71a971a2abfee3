"""Images in tiles: gradients are those of one rank on every layout."""

from typing import Any

import pytest
from tests.support.planted_tiles import LAST, TILES, tiled
from tests.support.proof import failures, verdicts
from tests.support.specs import box, spec

DATA: dict[str, Any] = {"max_images": 2, "text_only": 0.2, "mbs": 2}


@pytest.mark.parametrize(
    "vision",
    [
        {},
        {"tp": 2, "cp": 2, "sequence_parallel": True},
        pytest.param({"tp": 2, "pp": 2}, marks=pytest.mark.sweep),
        pytest.param({"cp": 3, "recompute": "full"}, marks=pytest.mark.sweep),
        pytest.param(
            {"tp": 2, "pp": 2, "sequence_parallel": True, "frozen": "except_projector"},
            marks=pytest.mark.sweep,
        ),
        {"dp": 2, "sharding": "full"},
    ],
    ids=["one", "sp cp", "tp pp", "cp 3", "frozen", "full sharding"],
)
def test_gradients_are_those_of_one_rank(vision: dict[str, Any]) -> None:
    assert failures(verdicts(tiled(**vision))) == []


@pytest.mark.parametrize(
    "vision",
    [
        {},
        {"tp": 2, "cp": 2, "sequence_parallel": True},
        {"tp": 2, "pp": 2},
        pytest.param({"cp": 3, "recompute": "full"}, marks=pytest.mark.sweep),
        {"pp": 2, "frozen": "except_projector"},
        {"dp": 2, "sharding": "full"},
        {"model": {**LAST, "pooling": None, "projector": "linear", "class_token": True}},
        {"model": {**LAST, "pooling": "linear", "projector_norm_eps": 1e-5, "projector_out": 24}},
    ],
    ids=["one", "sp cp", "tp pp", "cp 3", "frozen", "full sharding", "linear", "map behind"],
)
def test_gradients_are_those_of_one_rank_with_the_whole_image_last(vision: dict[str, Any]) -> None:
    assert failures(verdicts(tiled(**{"model": LAST, **vision}))) == []


def test_beside_language_with_a_class_token() -> None:
    model = {**TILES, "class_token": True}
    modules = {"vision": box(0, dp=4, model=model), "language": box(0, tp=2, dp=2)}
    made = spec(modules, microbatches=2, encoder_microbatches=1, **DATA)
    assert failures(verdicts(made)) == []
