"""A tower of Gemma 4 has the gradients of one rank on every layout."""

from pathlib import Path
from typing import Any

import pytest
from tests.distributed.test_checkpoints import VISION, make_spec, numbers, run, run_anew
from tests.support.planted_gemma4_vision import CLIPPED, MODEL, SPLIT, pooled
from tests.support.proof import failures, verdicts

from mimo_launch.spec.spec import Spec

SP = {"sequence_parallel": True}
# Grids of vision, grids of language, and further sections.
LAYOUTS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "one rank": ({}, {"first": 0}, {}),
    "not standardized": ({"model": MODEL | {"standardize": False}}, {"first": 0}, {}),
    "tp": ({"tp": 2}, {"first": 0, "tp": 2}, {}),
    "clipped": ({"model": CLIPPED}, {"first": 0}, {}),
    "clipped, tp": (
        {"model": CLIPPED, "tp": 2, "recompute": ["norms"]}, {"first": 0, "tp": 2}, {},
    ),
    "clipped, sequence parallel, cp": ({"model": CLIPPED, **SPLIT}, {}, {}),
    "clipped, pp, shared keys": (
        {"model": CLIPPED | {"kv_heads": 1}, "pp": 2, "tp": 2}, {"first": 0, "tp": 4}, {},
    ),
    "clipped, full sharding": (
        {"model": CLIPPED, "dp": 2, "tp": 2, "sharding": "full", "recompute": "full"}, {}, {},
    ),
    "clipped, adapter": (
        {"model": CLIPPED, "tp": 2, "cp": 2, "adapter": {"rank": 2}}, {}, {},
    ),
    "clipped, biases": (
        {"model": CLIPPED | {"qkv_bias": True, "block_bias": True}, "tp": 2, "dp": 2}, {}, {},
    ),
    "sequence parallel": ({"tp": 2, **SP}, {}, {}),
    "cp 3": ({"cp": 3, "recompute": "full"}, {}, {}),
    "sequence parallel, cp": (SPLIT, {}, {}),
    "pp, sequence parallel": ({"pp": 2, "tp": 2, **SP}, {"pp": 2}, {}),
    "pp, cp": ({"pp": 2, "cp": 2, "recompute": ["norms", "mlp"]}, {}, {}),
    "colocated, groups": ({"dp": 4}, {"first": 0, "tp": 2, "dp": 2}, {"mbs": 4}),
    "encoder microbatches": ({"dp": 2}, {"pp": 2}, {"microbatches": 4, "encoder_microbatches": 2}),
    "full sharding": ({"dp": 2, "tp": 2, "sharding": "full", "recompute": "full"}, {}, {}),
    "sharded optimizer": ({"dp": 2, "cp": 2, "sharding": "optimizer"}, {}, {}),
    "overlapping, projector alone": (
        {"cp": 2, "dp": 2, "frozen": "except_projector"}, {"first": 2, "dp": 2, "pp": 2}, {},
    ),
    "frozen": ({"tp": 2, "frozen": True}, {"cp": 2}, {}),
    "packed documents": ({"tp": 2}, {"cp": 2}, {"max_documents": 3}),
    "windows, states of two layers": (
        {"cp": 2, "model": MODEL | {"windows": {"side": 1, "full": [1]}, "features": [0, 1]}},
        {}, {},
    ),
    "biases, two maps": (
        {"tp": 2, "model": MODEL | {
            "patch_bias": True, "qkv_bias": True, "block_bias": True, "final_norm": True,
            "projector": "mlp", "projector_bias": True, "layer_scale": 0.5, "shuffle": 1,
        }},
        {}, {},
    ),
}  # fmt: skip
OFTEN = {
    *("sequence parallel, cp", "pp, sequence parallel"),
    *("clipped", "clipped, sequence parallel, cp"),
}


@pytest.mark.parametrize(
    "layout", [pytest.param(x, marks=() if x in OFTEN else pytest.mark.sweep) for x in LAYOUTS]
)
def test_gradients_are_those_of_one_rank(layout: str) -> None:
    vision, language, sections = LAYOUTS[layout]
    assert failures(verdicts(pooled(vision, language, **sections))) == []


def saving(layout: str, steps: int) -> Spec:
    """A run that saves after three steps."""
    return make_spec(
        layout, steps, modules={("vision", "model"): VISION | CLIPPED | {"shuffle": 1}}
    )


def test_a_checkpoint_goes_on_on_another_layout(tmp_path: Path) -> None:
    """The last steps are those of a run on one rank."""
    alone = numbers(run(saving("one rank", 5), tmp_path / "alone"))
    run(saving("cp2 tp2 sp", 3), tmp_path / "run")
    went_on = numbers(run_anew(saving("encoder pp2", 5), tmp_path / "run"))
    assert sorted(went_on) == [4, 5]
    for step, values in went_on.items():
        assert values == pytest.approx(alone[step], rel=1e-9)


def test_maps_between_clips_drop_inputs_of_their_updates() -> None:
    """Each map draws by itself."""
    adapter = {"kind": "lora", "rank": 2, "dropout": 0.3, "targets": ["attention", "mlp"]}
    made = pooled({"model": CLIPPED, "tp": 2, "adapter": adapter}, {"first": 0, "tp": 2})
    assert not failures(verdicts(made))
