"""What makes an evaluation the best, and what is asked before a run may need it."""

import math

import pytest
from tests.support.specs import box, spec

from mimo_launch.checks.all_checks import check
from mimo_launch.runtime.progress import Best
from mimo_launch.spec.sections import EvalSpec
from mimo_launch.train.best_evaluation import ended_early, evaluates_alike, has_ended, judged
from mimo_launch.train.events import EvalFinished

SHARDS = {"kind": "webdataset", "shards": "x.tar", "tokenizer": "x", "template": "chat"}


def found(loss: float, accuracy: float | None, eval_set: str | None = None) -> EvalFinished:
    return EvalFinished(
        step=9, eval_loss=loss, digit_accuracy=accuracy, samples=1, eval_set=eval_set
    )


@pytest.mark.parametrize(
    ("metric", "loss", "accuracy", "best"),
    [
        ("loss", 0.4, 0.1, Best(9, 0.4)),
        ("loss", 0.5, 0.9, Best(6, 0.5, since=2)),
        ("loss", math.nan, 0.9, Best(6, 0.5, since=2)),
        ("accuracy", 0.9, 0.6, Best(9, 0.6)),
        ("accuracy", 0.1, 0.5, Best(6, 0.5, since=2)),
        ("accuracy", 0.1, None, Best(6, 0.5, since=2)),
    ],
)
def test_smaller_losses_and_larger_accuracies_are_better(
    metric: str, loss: float, accuracy: float | None, best: Best
) -> None:
    """Than those of step 6; equal ones are not."""
    asked = EvalSpec(metric=metric)
    assert judged(asked, Best(6, 0.5, since=1), 9, [found(loss, accuracy)]) == best


@pytest.mark.parametrize(("metric", "loss", "best"), [("loss", 0.4, 0.4), ("loss", math.nan, None)])
def test_the_first_finite_number_is_the_best(metric: str, loss: float, best: float | None) -> None:
    first = judged(EvalSpec(metric=metric), None, 9, [found(loss, None)])
    assert first == (best and Best(9, best))
    assert judged(EvalSpec(metric=metric), first, 10, [found(0.1, None)]) == Best(10, 0.1)


@pytest.mark.parametrize(
    ("step", "since", "ended"),
    [(4, 1, (False, False)), (4, 2, (True, True)), (9, 1, (True, False)), (9, 2, (True, False))],
)
def test_a_run_ends_early_only_if_it_has_steps_left(
    step: int, since: int, ended: tuple[bool, bool]
) -> None:
    """Of nine, with patience for two evaluations; one without a best waits for its last step."""
    made = spec({"language": box(0)}, train={"steps": 9}, eval={"every": 1, "stop_after": 2})
    best = Best(1, 0.5, since)
    assert (has_ended(made, step, best), ended_early(made, step, best)) == ended
    assert (has_ended(made, step, None), ended_early(made, step, None)) == (step == 9, False)


def test_evaluations_by_another_number_or_of_other_samples_are_not_alike() -> None:
    data = {"kind": "digits", "shards": "a.tar"}
    old = {"eval": {"samples": 4, "metric": "loss", "every": 2}, "data": data}
    assert evaluates_alike(old, {**old, "eval": {**old["eval"], "every": 3}})
    assert evaluates_alike(old, {**old, "data": {**data, "shards": "b.tar"}})
    assert not evaluates_alike(old, {**old, "data": {**data, "kind": "synthetic"}})
    for other in ({"samples": 5}, {"metric": "accuracy"}):
        assert not evaluates_alike(old, {**old, "eval": {**old["eval"], **other}})


def test_only_the_set_of_the_metric_is_judged() -> None:
    both = [found(0.1, None, "charts"), found(0.4, None, "photos")]
    assert judged(EvalSpec(metric="photos.loss"), None, 9, both) == Best(9, 0.4)


@pytest.mark.parametrize(
    ("data", "sections", "path", "said"),
    [
        ({}, {}, "checkpoint.keep_best", "write `eval: {every: 100}`"),
        ({}, {"eval": {"metric": "a.loss"}}, "eval.metric", "write `metric: loss`"),
        (
            {**SHARDS, "eval_shards": {"a": "a.tar", "b": "b.tar"}},
            {"eval": {}},
            "eval.metric",
            "write `metric: a.loss` or write `metric: b.loss`",
        ),
        (
            {**SHARDS, "eval_shards": "a.tar"},
            {"eval": {"metric": "accuracy"}},
            "eval.metric",
            "write `metric: loss`",
        ),
    ],
)
def test_a_best_evaluation_needs_a_number_that_there_is(
    data: dict[str, object], sections: dict[str, object], path: str, said: str
) -> None:
    made = spec(
        {"language": box(0)}, checkpoint={"keep_best": True}, **({"data": data} if data else {}),
        **sections,
    )  # fmt: skip
    [only] = [each for each in check(made) if each.code == "best-evaluation-unknown"]
    assert (".".join(map(str, only.path)), said in only.help) == (path, True)


@pytest.mark.parametrize(
    ("evaluation", "path"),
    [({"metric": "accuracy"}, "eval.metric"), ({"stop_after": 2}, "eval.stop_after")],
)
def test_settings_of_a_best_evaluation_that_do_nothing_are_told(
    evaluation: dict[str, object], path: str
) -> None:
    made = spec({"language": box(0)}, eval=evaluation)
    told = [each for each in check(made) if each.code == "setting-without-effect"]
    assert path in [".".join(map(str, each.path)) for each in told]
