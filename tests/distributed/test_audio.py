"""Audio encoders: gradients are those of one rank on every layout, with clips of many lengths."""

from typing import Any

import pytest
from tests.support.proof import failures, verdicts
from tests.support.specs import box, spec

AUDIO: dict[str, Any] = {"kind": "audio", "heads": 2, "stack": 2}
DATA: dict[str, Any] = {"max_images": 3, "max_frames": 16, "text_only": 0.2, "mbs": 2}


@pytest.mark.parametrize(
    ("model", "audio"),
    [
        pytest.param({}, {"tp": 2, "dp": 2}, marks=pytest.mark.sweep),
        (
            {"projector": "linear", "projector_bias": False},
            {"tp": 2, "cp": 2, "sequence_parallel": True},
        ),
        ({"stack": 3, "frames": 18}, {"cp": 3, "recompute": "full"}),
        ({"fixed_length": True, "frames": 12}, {"tp": 2, "pp": 2, "sequence_parallel": True}),
        (
            {"unpadded": True, "pooling": "mean", "projector": "linear"},
            {"tp": 2, "cp": 2, "pp": 2, "sequence_parallel": True},
        ),
        pytest.param(
            {"unpadded": True, "stack": 3, "frames": 18}, {"cp": 3}, marks=pytest.mark.sweep
        ),
        ({"stack": 1}, {"dp": 2, "sharding": "full", "frozen": "except_projector"}),
    ],
    ids=["tp dp", "sp cp", "cp 3", "pp sp", "unpadded", "unpadded cp 3", "full sharding"],
)
def test_gradients_are_those_of_one_rank(model: dict[str, Any], audio: dict[str, Any]) -> None:
    module = box(0, model={**AUDIO, **model}, **audio)
    first = 1 + int(module["ranks"].partition("-")[2])
    made = spec({"audio": module, "language": box(first)}, microbatches=2, **DATA)
    assert failures(verdicts(made)) == []


def test_beside_vision_on_the_ranks_of_language() -> None:
    modules = {
        "audio": box(0, dp=4, model=AUDIO),
        "vision": box(0, tp=2, cp=2),
        "language": box(0, tp=2, dp=2),
    }
    made = spec(modules, microbatches=2, encoder_microbatches=1, **DATA)
    assert failures(verdicts(made)) == []
