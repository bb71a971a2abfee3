"""Hybrid models on named layouts: loss, every gradient and the update are those of one rank."""

from typing import Any

import pytest
from tests.support.proof import failures, verdicts
from tests.support.specs import box, hybrid, spec

from mimo_launch.checks.all_checks import check
from mimo_launch.spec.spec import Spec

SP, DELTA, SHORT = {"sequence_parallel": True}, "G-MG*-", "C-C*-"
# fmt: off
LAYOUTS: dict[str, dict[str, Any]] = {
    "one rank": {},
    "tp2": {"tp": 2},
    "tp2, sequence parallel": {"tp": 2, **SP},
    "tp4, replicated groups": {"tp": 4, "groups": 2},
    "tp2, one group": {"tp": 2, "groups": 1, **SP},
    "pp3": {"pp": 3},
    "pp2, an odd cut": {"pp": 2, "pattern": "MM*-M"},
    "dp2, fully sharded, recomputed": {"dp": 2, "sharding": "full", "recompute": "full"},
    "cp2": {"cp": 2},
    "cp2, shared group": {"cp": 2, "groups": 1},
    "cp3 tp2, sequence parallel": {"cp": 3, "tp": 2, **SP},
    "tp2 cp2 pp2": {"tp": 2, "cp": 2, "pp": 2, "groups": 2},
    "DeltaNet, one rank": {"pattern": DELTA},
    "DeltaNet, tp2, sequence parallel": {"pattern": DELTA, "tp": 2, **SP},
    "DeltaNet, tp2, one key head": {"pattern": DELTA, "tp": 2, "groups": 1, **SP},
    "DeltaNet, pp2": {"pattern": DELTA, "pp": 2},
    "DeltaNet, dp2, fully sharded, recomputed": {
        "pattern": DELTA, "dp": 2, "sharding": "full", "recompute": "full",
    },
    "DeltaNet, cp2, shared key head": {"pattern": DELTA, "cp": 2, "groups": 1},
    "DeltaNet, cp2 tp2": {"pattern": DELTA, "cp": 2, "tp": 2, **SP},
    "convolutions, one rank": {"pattern": SHORT},
    "convolutions, tp2 pp2, sequence parallel": {"pattern": SHORT, "tp": 2, "pp": 2, **SP},
    "convolutions, cp3 tp2, an odd cut": {"pattern": SHORT, "cp": 3, "tp": 2},
    "convolutions, dp2, fully sharded, recomputed": {
        "pattern": SHORT, "dp": 2, "sharding": "full", "recompute": "full",
    },
}
# fmt: on


def language_only(pattern: str = "M-M*-", groups: int = 0, **rest: Any) -> Spec:
    """Text alone, packed documents among it, on one grid."""
    module = box(0, **rest)
    module["model"] = hybrid(module["grid"], pattern, groups)
    return spec({"language": module}, microbatches=2, mbs=2, text_only=1.0, max_documents=3)


# In the default suite, which has others among its topologies and planted bugs.
FIRST = {
    "tp4, replicated groups", "tp2, one group", "pp2, an odd cut", "dp2, fully sharded, recomputed",
    "cp2, shared group", "cp3 tp2, sequence parallel", "DeltaNet, tp2, one key head",
    "DeltaNet, cp2 tp2", "DeltaNet, dp2, fully sharded, recomputed",
    "convolutions, cp3 tp2, an odd cut", "convolutions, tp2 pp2, sequence parallel",
    "convolutions, dp2, fully sharded, recomputed",
}  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in FIRST else pytest.mark.sweep) for n in LAYOUTS],
)
def test_a_hybrid_model_is_that_of_one_rank(name: str) -> None:
    """float64, two clipped SGD steps, several documents in most samples."""
    made = language_only(**LAYOUTS[name])
    assert not [item for item in check(made) if item.is_error]
    assert failures(verdicts(made)) == []


def test_one_head_whose_time_steps_would_all_be_cut() -> None:
    """`min_step` above every step that the model starts with leaves something to compare."""
    made = language_only("MM*")
    model = made.language.model
    mamba = model.mamba.model_copy(update={"heads": 1, "groups": 1, "min_step": 0.05})
    model = model.model_copy(update={"mamba": mamba})
    module = made.language.model_copy(update={"model": model})
    made = made.model_copy(update={"modules": {"language": module}})
    assert not [item for item in check(made) if item.is_error]
    assert failures(verdicts(made)) == []


WITH_ENCODERS = {
    "disjoint": lambda: spec(
        {"vision": box(0, dp=2), "language": box(2, tp=2, pp=2, model=hybrid({"tp": 2}, "M-*M-"))},
        microbatches=3,
        mbs=2,
    ),
    "colocated, interleaved": lambda: spec(
        {"vision": box(0, dp=2), "language": box(0, pp=2, model=hybrid({"tp": 1}, "M*-MM-*"))},
        kind="interleaved",
        virtual_stages=2,
        microbatches=4,
        encoder_microbatches=2,
        mbs=2,
    ),
    "colocated, cp2, tied": lambda: spec(
        {
            "vision": box(0, tp=2),
            "language": box(0, cp=2, model=hybrid({"cp": 2}, "*M-") | {"tied": True}),
        },
        microbatches=2,
        mbs=2,
        max_images=2,
    ),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if "interleaved" in n else pytest.mark.sweep) for n in WITH_ENCODERS],
)
def test_a_hybrid_model_behind_an_encoder(name: str) -> None:
    made = WITH_ENCODERS[name]()
    assert not [item for item in check(made) if item.is_error]
    assert failures(verdicts(made)) == []
