"""Losses of a user's own are the same on every layout; one that averages is found."""

from typing import Any

import pytest
from tests.support.proof import failures, training_verdicts, verdicts
from tests.support.specs import Box, box, spec

from mimo_launch.comm import autograd_collectives
from mimo_launch.models import language_model
from mimo_launch.spec.spec import Spec

COLUMNS = {"weight": 1, "teacher_logits": 3, "teacher_tokens": 3, "score": 3}


def loss(name: str = "All", **keys: Any) -> dict[str, Any]:
    """A loss of tests/support/custom_losses.py."""
    named = {"kind": f"tests.support.custom_losses:{name}", "columns": COLUMNS}
    return {**named, "token_columns": ["teacher_tokens"], "counts": "weight", **keys}


def own(first: int = 0, **grid: Any) -> Box:
    return box(first, **{"loss": loss(), **grid})


LAYOUTS: dict[str, Spec] = {
    "tp 2 cp 2": spec({"language": own(tp=2, cp=2)}, microbatches=2, mbs=2),
    "pp 2 dp 2, packed": spec(
        {"vision": box(0, dp=2), "language": own(pp=2, dp=2, sharding="full")},
        microbatches=2,
        mbs=2,
        packing=True,
    ),
    "tp 2 dp 2, sequence parallel, sharded": spec(
        {"language": own(tp=2, dp=2, sequence_parallel=True, sharding="full")},
        microbatches=2,
        mbs=2,
        max_documents=2,
    ),
    "tp 2 pp 2, interleaved, tied": spec(
        {"language": own(tp=2, pp=2, model={"tied": True})},
        kind="interleaved",
        virtual_stages=2,
        microbatches=2,
    ),
    "cp 2 dp 2, states alone": spec(
        {"vision": box(0, tp=2), "language": own(cp=2, dp=2, loss=loss("Scored", counts=None))},
        microbatches=2,
    ),
    "tp 2, no columns": spec(
        {"language": own(tp=2, loss={"kind": "tests.support.custom_losses:with_small_sums"})},
        microbatches=2,
    ),
    "tp 2 cp 2, sequence parallel, adapters": spec(
        {
            "language": own(
                tp=2,
                cp=2,
                sequence_parallel=True,
                adapter={"rank": 2, "targets": ["attention", "mlp"]},
            )
        },
        microbatches=2,
        mbs=2,
    ),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_loss_is_the_same_on_every_layout(name: str) -> None:
    assert failures(verdicts(LAYOUTS[name])) == []


@pytest.mark.sweep
def test_a_run_with_a_loss_goes_on_and_is_evaluated() -> None:
    made = spec({"language": own(tp=2, pp=2)}, microbatches=2, eval={"samples": 4, "every": 2})
    assert failures(training_verdicts(made)) == []


@pytest.mark.sweep
def test_a_run_with_a_loss_of_states_alone_goes_on() -> None:
    assert failures(training_verdicts(LAYOUTS["cp 2 dp 2, states alone"])) == []


@pytest.mark.sweep
def test_muon_moves_the_weights_of_a_loss() -> None:
    made = spec({"language": own(tp=2, pp=2)}, microbatches=2, optimizer={"kind": "muon"})
    assert failures(training_verdicts(made)) == []


def test_terms_divided_by_the_tokens_of_a_rank_are_found() -> None:
    made = spec({"language": own(tp=2, dp=2, loss=loss("shared", counts=None))}, mbs=2)
    assert any(each.startswith("language, loss") for each in failures(verdicts(made)))


def _sum_gradients() -> None:
    """Sum the gradients of gathered logits over tp, though they are complete on every rank."""
    wrong = autograd_collectives.gather_uneven_tokens
    language_model.gather_rows = wrong  # type: ignore[attr-defined]


@pytest.mark.sweep
def test_gradients_that_are_counted_for_each_tp_rank_are_found() -> None:
    made = spec({"language": own(tp=2)}, microbatches=2)
    assert failures(verdicts(made, prepare=_sum_gradients)) != []
