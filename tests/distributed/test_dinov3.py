"""A DINOv3 has the gradients of one rank on every layout; `test_towers` has its features."""

from pathlib import Path
from typing import Any

import pytest
from tests.distributed.test_checkpoints import VISION, make_spec, numbers, run, run_anew
from tests.support.planted_dinov3 import MODEL, centred
from tests.support.proof import failures, verdicts

from mimo_launch.spec.spec import Spec

SP = {"sequence_parallel": True}
# Grids of vision, grids of language, and further sections.
LAYOUTS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "one rank": ({}, {"first": 0}, {}),
    "tp": ({"tp": 2}, {"first": 0, "tp": 2}, {}),
    "sequence parallel": ({"tp": 2, **SP}, {}, {}),
    # Values have biases, and keys have none.
    "keys and values shared": ({"tp": 2, "model": MODEL | {"kv_heads": 1}}, {}, {}),
    "cp 3": ({"cp": 3, "recompute": "full"}, {}, {}),
    "sequence parallel, cp": ({"tp": 2, "cp": 2, **SP}, {}, {}),
    "pp, sequence parallel": ({"pp": 2, "tp": 2, **SP}, {"pp": 2}, {}),
    "pp, cp": ({"pp": 2, "cp": 2}, {}, {}),
    "colocated, groups": ({"dp": 4}, {"first": 0, "tp": 2, "dp": 2}, {"mbs": 4}),
    "encoder microbatches": ({"dp": 2}, {"pp": 2}, {"microbatches": 4, "encoder_microbatches": 2}),
    "full sharding": ({"dp": 2, "tp": 2, "sharding": "full", "recompute": "full"}, {}, {}),
    "overlapping, projector alone": (
        {"cp": 2, "dp": 2, "frozen": "except_projector"}, {"first": 2, "dp": 2, "pp": 2}, {},
    ),
    "frozen": ({"tp": 2, "frozen": True}, {"cp": 2}, {}),
}  # fmt: skip
OFTEN = {"keys and values shared", "sequence parallel, cp", "pp, sequence parallel"}


@pytest.mark.parametrize(
    "layout", [pytest.param(x, marks=() if x in OFTEN else pytest.mark.sweep) for x in LAYOUTS]
)
def test_gradients_are_those_of_one_rank(layout: str) -> None:
    vision, language, sections = LAYOUTS[layout]
    assert failures(verdicts(centred(vision, language, **sections))) == []


def saving(layout: str, steps: int) -> Spec:
    """A run that saves after three steps."""
    return make_spec(layout, steps, modules={("vision", "model"): VISION | MODEL | {"shuffle": 1}})


def test_a_checkpoint_goes_on_on_another_layout(tmp_path: Path) -> None:
    """The last steps are those of a run on one rank."""
    alone = numbers(run(saving("one rank", 5), tmp_path / "alone"))
    run(saving("cp2 tp2 sp", 3), tmp_path / "run")
    went_on = numbers(run_anew(saving("encoder pp2", 5), tmp_path / "run"))
    assert sorted(went_on) == [4, 5]
    for step, values in went_on.items():
        assert values == pytest.approx(alone[step], rel=1e-9)
