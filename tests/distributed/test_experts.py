"""Mixtures of experts on named layouts: loss, balance, every gradient and the update of one rank.

The planted bugs of tests/support/planted_experts.py are rejected with all others.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tests.support.planted_experts import mixture, routed
from tests.support.proof import failures, verdicts
from tests.support.specs import box, hybrid, spec

from mimo_launch.checks.all_checks import check
from mimo_launch.data.build import build_dataset
from mimo_launch.data.order.sample_order import global_order, make_step_data, steps_of
from mimo_launch.data.random_draws import Split
from mimo_launch.data.record_facts import RecordFacts
from mimo_launch.data.synthetic import SyntheticSamples
from mimo_launch.kinds.vocabulary import IGNORE_LABEL
from mimo_launch.layout.step_data import SampleData
from mimo_launch.spec.spec import Spec
from mimo_launch.verify.proof import verify_spec
from mimo_launch.verify.shrink import shrink

SP, FULL = {"sequence_parallel": True}, {"sharding": "full"}
EP2, ETP2 = {"ep": 2}, {"tp": 2}
DEEP = {"every": 2, "scale": 2.5}
SIGMOID = {"score": "sigmoid", "shared": 8}
BIASED = {"score": "sigmoid", "shared": 8, "aux_loss": 0.0, "bias_update_rate": 0.01}

LAYOUTS: dict[str, Callable[[], Spec]] = {
    "one rank": lambda: routed({}),
    "ep2": lambda: routed(EP2, dp=2),
    "ep4, one expert each": lambda: routed({"ep": 4}, dp=4),
    "ep2 by two replicas": lambda: routed(EP2, dp=4),
    "ep2 inside tp": lambda: routed(EP2, SIGMOID, tp=2),
    "ep2 inside tp, sequence parallel": lambda: routed(EP2, SIGMOID, tp=2, **SP),
    "replicas along tp": lambda: routed({}, tp=2),
    "ep2 inside cp": lambda: routed(EP2, cp=2),
    "split experts": lambda: routed(ETP2, dp=2),
    "ep2 x tp2 over tp2 dp2": lambda: routed({**EP2, **ETP2}, tp=2, dp=2),
    "ep2 in two stages": lambda: routed(EP2, pp=2, dp=2),
    "fully sharded, recomputed": lambda: routed(
        EP2, SIGMOID, tp=2, cp=2, recompute="full", **SP, **FULL
    ),
    "biased": lambda: routed(EP2, BIASED | {"score": "softmax"}, tp=2, dp=2, packing=True),
    "biased in two stages, fully sharded, recomputed": lambda: routed(
        EP2, BIASED | {"aux_loss": 0.5}, tp=2, cp=2, pp=2, recompute="full", **SP, **FULL
    ),
    "a bias that stays": lambda: routed({}, BIASED | {"bias_update_rate": 0.0}),
    "stages interleave the ranks of experts": lambda: routed(
        {**EP2, **ETP2}, {"top_k": 1, "normalize": False}, order=("pp", "tp", "cp", "dp"),
        tp=2, pp=2, dp=2,
    ),
}  # fmt: skip


def fewer_tokens_than_ranks() -> Spec:
    """Three tokens over tp 4: one of its ranks has none to route."""
    made = shrink(routed({"ep": 4}, tp=4))
    batch = made.batch.model_copy(update={"seq": 3, "global_": 8})
    data = made.data.model_copy(update={"min_text": 3})
    schedule = made.schedule.model_copy(update={"microbatches": 8})
    return made.model_copy(update={"batch": batch, "data": data, "schedule": schedule})


def test_a_rank_without_tokens_takes_part() -> None:
    """It sends nothing, computes with its expert, and gets nothing back."""
    made = fewer_tokens_than_ranks()
    assert not [item for item in check(made) if item.is_error]
    assert failures(verify_spec(made)) == []


def test_microbatches_without_labels_are_balanced(monkeypatch: pytest.MonkeyPatch) -> None:
    """They add nothing to the main loss, and their tokens count in the other one."""
    model = hybrid({"tp": 2}, "ME*") | mixture()
    language = box(0, tp=2, pp=2, model=model, experts=EP2)
    made = shrink(spec({"language": language}, microbatches=6, mbs=1, text_only=1.0))
    describe, facts = SyntheticSamples.describe, SyntheticSamples.facts
    text = SyntheticSamples.text

    def described(self: SyntheticSamples, split: Split, index: int) -> SampleData:
        found = describe(self, split, index)
        return found if index % 3 == 0 else replace(found, num_labels=0)

    def known(self: SyntheticSamples, split: Split, ids: npt.NDArray[np.int64]) -> RecordFacts:
        found = facts(self, split, ids)
        return replace(found, labels=np.where(ids % 3, 0, found.labels))

    def unlabelled(self: SyntheticSamples, split: Split, index: int) -> Any:
        tokens, labels = text(self, split, index)
        return tokens, labels if index % 3 == 0 else np.full_like(labels, IGNORE_LABEL)

    monkeypatch.setattr(SyntheticSamples, "describe", described)
    monkeypatch.setattr(SyntheticSamples, "facts", known)
    monkeypatch.setattr(SyntheticSamples, "text", unlabelled)
    dataset = build_dataset(made)
    for ids in steps_of(global_order(made, dataset), 2):
        labels = [sample.num_labels for sample in make_step_data(dataset, "train", ids, 0).samples]
        assert 0 < labels.count(0) < len(labels)
    assert failures(verify_spec(made)) == []


def behind_vision(first: int = 0, vision: dict[str, Any] | None = None, **settings: Any) -> Spec:
    """Vision in front of, or on the ranks of, experts over dp 2."""
    model = mixture(**DEEP) | {"layers": 2}
    language = box(first, dp=2, model=model, experts=EP2, **settings.pop("language", {}))
    return spec(
        {"vision": box(0, **(vision or {"dp": 2})), "language": language},
        **{"microbatches": 2, "mbs": 2, **settings},
    )


WITH_MORE: dict[str, Callable[[], Spec]] = {
    "colocated": lambda: behind_vision(encoder_microbatches=1),
    "disjoint, packed records": lambda: behind_vision(2, packing=True),
    "packed documents, frozen": lambda: behind_vision(
        max_documents=3, language={"frozen": True}
    ),
    "bubbles filled": lambda: spec(
        {
            "vision": box(0, dp=4),
            "language": box(0, pp=2, dp=2, model=mixture(), experts=EP2),
        },
        kind="bubble_filling", microbatches=4, encoder_microbatches=2, mbs=2,
    ),
    "interleaved, tied": lambda: spec(
        {
            "vision": box(4),
            "language": box(
                0, pp=2, dp=2, model=mixture(**DEEP) | {"tied": True, "layers": 4}, experts=EP2
            ),
        },
        kind="interleaved", virtual_stages=2, microbatches=2, mbs=2,
    ),
    "hybrid": lambda: spec(
        {
            "language": box(
                0, tp=2, cp=2, model=hybrid({"tp": 2, "cp": 2}, "M*ME") | mixture(shared=8),
                experts={**EP2, **ETP2}, **SP,
            )
        },
        microbatches=2, mbs=2, text_only=1.0, max_documents=2,
    ),
}  # fmt: skip


# What the others prove, too, is left to `nox -s sweep`.
SELDOM = (
    "ep4, one expert each", "ep2 by two replicas", "ep2 inside tp, sequence parallel",
    "ep2 in two stages", "stages interleave the ranks of experts", "colocated", "bubbles filled",
    "interleaved, tied",
)  # fmt: skip


def cases(names: Iterable[str]) -> list[Any]:
    """Return parameters of a test, some of which are for `nox -s sweep`."""
    marks = {name: [pytest.mark.sweep] if name in SELDOM else [] for name in names}
    return [pytest.param(name, marks=marks[name]) for name in marks]


@pytest.mark.parametrize("name", cases(LAYOUTS))
def test_experts_are_those_of_one_rank(name: str) -> None:
    """float64, two clipped SGD steps."""
    made = LAYOUTS[name]()
    assert not [item for item in check(made) if item.is_error]
    assert failures(verdicts(made)) == []


@pytest.mark.parametrize("name", cases(WITH_MORE))
def test_experts_beside_encoders_and_other_layers(name: str) -> None:
    made = WITH_MORE[name]()
    assert not [item for item in check(made) if item.is_error]
    assert failures(verdicts(made)) == []


@pytest.mark.parametrize("more", [{}, {"dp": 2, "recompute": "full"}])
def test_balance_counts_where_scores_can_change(more: dict[str, Any]) -> None:
    """Below the first map that is updated, no router's scores do."""
    adapter = {"kind": "lora", "rank": 2, "targets": ["experts"]}
    language = routed({}, adapter=adapter, **more).modules["language"].model_dump(mode="json")
    vision = box(0, frozen=True)
    assert not failures(verdicts(spec({"vision": vision, "language": language})))


def test_a_frozen_router_is_balanced_where_what_it_reads_trains() -> None:
    """Also in a step without images: its part of the loss depends on what trains, not on data."""
    made = spec(
        {
            "vision": box(0),
            "language": box(
                0,
                model={**hybrid({}, "E*"), **mixture()},
                adapter={"rank": 2, "targets": ["attention"]},
            ),
        },
        text_only=1.0,
    )
    assert not failures(verdicts(made))
