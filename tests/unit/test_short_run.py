"""A run is made short without losing what its settings mean."""

from typing import Any

import pytest
from tests.support.specs import box, spec

from mimo_launch.checks.all_checks import check
from mimo_launch.spec.sections import EvalSpec
from mimo_launch.spec.spec import Spec
from mimo_launch.verify.coverage import not_proved
from mimo_launch.verify.shrink import MIN_EPS, RUN_STEPS, short_run, shrink
from mimo_launch.verify.training_proof import SKIPPED, STOP_AFTER


def made(schedule: dict[str, Any], own: dict[str, Any], **optimizer: Any) -> Spec:
    modules = {"vision": box(0, optimizer=own), "language": box(0, optimizer={"warmup": 0})}
    settings = {"lr": 1e-5, "betas": [0.8, 0.9], "weight_decay": 0.3, "clip": 2.5, **optimizer}
    return spec(
        modules, optimizer={**settings, "schedule": schedule}, train={"steps": 9000, "seed": 3}
    )


@pytest.mark.parametrize(
    ("common", "own", "short"),
    [(0, 0, (0, 0)), (0, None, (0, None)), (1, 500, (1, 3)), (900, 500, (3, 2)), (50, 50, (2, 2))],
)
def test_warm_ups_of_0_stay_0_and_those_that_differ_still_do(
    common: int, own: int | None, short: tuple[int, int | None]
) -> None:
    asked = made({"kind": "wsd", "warmup": common, "decay": 800}, {"warmup": own})
    small = short_run(asked, shrink(asked))
    modules = small.modules
    assert (small.optimizer.schedule.warmup, modules["vision"].optimizer.warmup) == short
    assert modules["language"].optimizer.warmup == 0
    assert small.optimizer.schedule.decay == 2
    assert small.train.steps == RUN_STEPS
    assert not [finding for finding in check(small) if finding.is_error]


@pytest.mark.parametrize(("steps", "short"), [(0, 0), (1, 1), (800, 2)])
def test_a_decay_of_0_stays_0(steps: int, short: int) -> None:
    asked = made({"kind": "wsd", "decay": steps}, {})
    assert short_run(asked, shrink(asked)).optimizer.schedule.decay == short


def test_percentages_become_steps_that_differ() -> None:
    asked = made({"kind": "wsd", "warmup": "1%", "decay": "20%"}, {"warmup": "5%"})
    small = short_run(asked, shrink(asked))
    schedule = small.optimizer.schedule
    assert (schedule.warmup, small.modules["vision"].optimizer.warmup, schedule.decay) == (2, 3, 2)


def test_rates_moments_decay_and_clipping_stay() -> None:
    asked = made({"kind": "cosine", "warmup": 9}, {"lr": 0, "weight_decay": 0})
    small = short_run(asked, shrink(asked))
    kept = ("kind", "lr", "betas", "eps", "weight_decay", "clip")
    assert [getattr(small.optimizer, k) for k in kept] == [
        getattr(asked.optimizer, k) for k in kept
    ]
    assert small.modules["vision"].optimizer.lr == 0
    assert small.modules["vision"].optimizer.weight_decay == 0


def test_an_eps_below_what_noise_allows_is_larger_in_a_proof_and_said() -> None:
    asked = made({}, {}, eps=1e-12)
    found = {(r.section, r.key): r for r in not_proved(asked, short_run(asked, shrink(asked)))}
    eps = found["optimizer", "eps"]
    assert (eps.asked, eps.proved) == (1e-12, MIN_EPS)


def test_what_is_evaluated_has_several_batches() -> None:
    asked = made({}, {})
    assert short_run(asked, shrink(asked)).eval is None
    asked = asked.model_copy(update={"eval": EvalSpec()})
    small = short_run(asked, shrink(asked))
    assert small.eval is not None
    assert small.eval.samples > small.batch.global_
    assert small.eval.every is None


def test_an_early_end_needs_one_evaluation_in_a_short_run() -> None:
    ends = EvalSpec(every=1000, stop_after=9, metric="photos.loss")
    asked = made({}, {}).model_copy(update={"eval": ends})
    small = short_run(asked, shrink(asked))
    assert small.eval is not None
    assert (small.eval.stop_after, small.eval.metric) == (1, "loss")
    said = {(r.section, r.key): (r.asked, r.proved) for r in not_proved(asked, small)}
    assert said["eval", "stop_after"] == (9, 1)
    assert said["eval", "metric"] == ("photos.loss", "loss")


def test_what_is_evaluated_while_training_is_in_a_short_run_too() -> None:
    """After the step that is skipped, and between a resume and the end."""
    asked = made({}, {}).model_copy(update={"eval": EvalSpec(every=1000, at_start=True)})
    small = short_run(asked, shrink(asked))
    assert small.eval is not None
    assert small.eval.every == SKIPPED + 1
    assert small.eval.at_start
    assert small.eval.stop_after is None
    assert STOP_AFTER < 2 * small.eval.every < RUN_STEPS
    assert STOP_AFTER % small.eval.every  # A run that is told to stop does not evaluate.
