"""Every kind of module computes in bf16 what it computes in float64, but for rounding."""

from itertools import chain
from typing import Any

import pytest
from tests.support.running_ranks import run_on_running_ranks
from tests.support.specs import HEARING, OF_PHI4, box, hybrid, spec

from mimo_launch.spec.spec import Spec
from mimo_launch.verify.compare import norm_of
from mimo_launch.verify.proof import StepOutcome, rank_outcomes

ENCODERS: dict[str, dict[str, Any]] = {
    "vit": {"positions": "learned+rope2d", "image": [2, 2], "class_token": True},
    "dinov3": {},
    "gemma4_vision": {"standardize": True, "clipped_linears": True, "hidden": 16},
    "llama4_vision": {"image": [2, 2]},
    "ovis2_vision": {},
    **{kind: {} for kind in HEARING},
    "conformer of Phi-4": OF_PHI4,
}
LANGUAGES: dict[str, dict[str, Any]] = {
    "experts": {"moe": {"experts": 4, "top_k": 2, "width": 8, "shared": 8, "aux_loss": 0.1}},
    **{letter: hybrid({}, f"{letter}*") for letter in "MGC"},
    "xielu": {"activation": "xielu"},
    "per-layer embeddings": {"per_layer_embeddings": {"width": 4, "padding": 0}},
}


def outcome(made: Spec, precision: str) -> StepOutcome:
    """Run one step on one rank."""
    train = made.train.model_copy(update={"precision": precision})
    asked = made.model_copy(update={"train": train})
    [[found]] = run_on_running_ranks(rank_outcomes, asked, None, world_size=1)
    return found


@pytest.mark.parametrize("name", list(chain(ENCODERS, LANGUAGES)))
def test_a_step_in_bf16_is_near_that_in_float64(name: str) -> None:
    encoder = {"kind": name, **ENCODERS.get(name, {})} if name in ENCODERS else {}
    modules = {"seen": box(0, model=encoder), "language": box(0, model=LANGUAGES.get(name, {}))}
    made = spec(modules, microbatches=2, mbs=2, max_frames=24, max_patches=36)
    exact, rounded = (outcome(made, precision) for precision in ("fp64", "bf16"))
    assert rounded.loss == pytest.approx(exact.loss, rel=0.02)
    near = {(each.name, each.offsets): each.values.double() for each in rounded.gradients}
    right = {(each.name, each.offsets): each.values for each in exact.gradients}
    assert near.keys() == right.keys()
    differences = [near[key] - values for key, values in right.items()]
    assert norm_of(differences) < 0.1 * norm_of(right.values())
