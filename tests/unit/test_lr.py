"""Learning rates against values computed by hand."""

from itertools import pairwise
from math import cos, pi

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.specs import box, spec

from mimo_launch.optimizer.module_optimizers import learning_rate, rate_at
from mimo_launch.spec.optimizers import LrSchedule

KINDS = ("constant", "cosine", "wsd")


def rates(kind: str, peak: float, warmup: int, steps: int, **keys) -> list[float]:
    """Learning rate of every step of a run."""
    schedule = LrSchedule(kind=kind, warmup=warmup, **keys)
    return [learning_rate(peak, schedule, warmup, step, steps) for step in range(steps)]


@pytest.mark.parametrize("kind", KINDS)
def test_warm_up_rises_linearly_and_reaches_the_peak_at_its_last_step(kind):
    assert rates(kind, peak=8.0, warmup=4, steps=20, decay=4)[:4] == [2.0, 4.0, 6.0, 8.0]


@pytest.mark.parametrize("kind", KINDS)
def test_without_warm_up_the_first_step_is_at_the_peak(kind):
    assert rates(kind, peak=8.0, warmup=0, steps=20, decay=4)[0] == 8.0


def test_constant_stays_at_the_peak():
    assert rates("constant", peak=3.0, warmup=2, steps=6, min_lr=1.0) == [1.5, 3, 3, 3, 3, 3]


def test_cosine_falls_from_the_peak_to_the_floor_at_the_last_step():
    assert rates("cosine", peak=5.0, warmup=0, steps=5, min_lr=1.0) == pytest.approx(
        [5.0, 3 + 2 * cos(pi / 4), 3.0, 3 - 2 * cos(pi / 4), 1.0]
    )


def test_cosine_begins_after_the_warm_up():
    assert rates("cosine", peak=4.0, warmup=2, steps=5) == pytest.approx([2, 4, 4, 2, 0])


def test_wsd_stays_at_the_peak_and_falls_linearly_over_its_last_steps():
    assert rates("wsd", peak=9.0, warmup=1, steps=8, decay=4, min_lr=1.0) == pytest.approx(
        [9, 9, 9, 9, 7, 5, 3, 1]
    )


def test_wsd_without_decay_stays_at_the_peak():
    assert rates("wsd", peak=9.0, warmup=3, steps=5) == [3, 6, 9, 9, 9]


@pytest.mark.parametrize("kind", ["cosine", "wsd"])
def test_a_floor_above_the_peak_does_not_raise_the_rate(kind):
    """A module with its own small `lr` shares `min_lr` with the others."""
    assert rates(kind, peak=1.0, warmup=0, steps=6, decay=3, min_lr=2.0) == [1.0] * 6


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("warmup", "steps"), [(0, 1), (1, 1), (3, 3), (5, 3), (2, 3)])
def test_short_runs_have_a_rate_at_every_step(kind, warmup, steps):
    found = rates(kind, peak=1.0, warmup=warmup, steps=steps, decay=1, min_lr=0.25)
    assert all(0 < rate <= 1 for rate in found)


@given(
    st.sampled_from(KINDS),
    st.integers(0, 20),
    st.integers(1, 60),
    st.integers(0, 20),
    st.floats(0, 1),
)
def test_after_the_warm_up_the_rate_never_rises_nor_passes_the_floor(
    kind, warmup, steps, decay, floor
):
    found = rates(kind, 1.0, warmup, steps, decay=decay, min_lr=floor)[warmup:]
    assert all(after <= before + 1e-12 for before, after in pairwise(found))
    assert all(floor - 1e-12 <= rate <= 1 for rate in found)


def test_steps_after_the_run_stay_at_the_last_rate():
    """A resumed run may be asked for more steps than its schedule knows."""
    schedule = LrSchedule(kind="cosine", min_lr=1.0)
    assert learning_rate(5.0, schedule, 0, 7, 5) == pytest.approx(1.0)
    schedule = LrSchedule(kind="wsd", decay=2, min_lr=1.0)
    assert learning_rate(5.0, schedule, 0, 7, 5) == pytest.approx(1.0)


@pytest.mark.parametrize(("warmup", "first"), [(None, 4.0), (0, 8.0), (4, 2.0)])
def test_a_module_may_have_a_warm_up_of_its_own(warmup: int | None, first: float) -> None:
    made = spec(
        {"vision": box(0, optimizer={"warmup": warmup}), "language": box(1)},
        optimizer={"lr": 8.0, "schedule": {"kind": "constant", "warmup": 2}},
        train={"steps": 8, "precision": "fp64"},
    )
    assert [rate_at(made, step, "vision") for step in (0, 7)] == [first, 8.0]
    assert rate_at(made, 0) == rate_at(made, 0, "language") == 4.0
