"""Bounds that need no plan: never above the estimates of a plan, and not far below."""

import pytest
from hypothesis import Phase, given, settings
from tests.support.poor_specs import POOR
from tests.support.specs import layout_specs

from mimo_launch.estimate.estimates import Estimator
from mimo_launch.plan.plan import Plan
from mimo_launch.search.bounds import Bounds
from mimo_launch.spec.spec import Spec


def shares(made: Spec) -> tuple[float, float]:
    """Return the bounds of time and memory as shares of the estimates."""
    estimator = Estimator.of(Plan.of(made))
    bounds, estimates = Bounds(), estimator.estimates()
    most = max(row.total_bytes for row in estimates.ranks)
    return bounds.seconds(estimator) / estimates.step_seconds, bounds.bytes(estimator) / most


@pytest.mark.parametrize("examples", [30, pytest.param(150, marks=pytest.mark.sweep)])
def test_bounds_are_never_above_the_estimates(examples: int) -> None:
    @settings(max_examples=examples, phases=[Phase.generate], deadline=None)
    @given(made=layout_specs(supported_only=False))
    def each(made: Spec) -> None:
        seconds, needed = shares(made)
        assert seconds <= 1 + 1e-9
        assert needed <= 1

    each()


@pytest.mark.parametrize("poor", POOR)
def test_bounds_of_large_jobs_are_near_the_estimates(poor: str) -> None:
    seconds, needed = shares(POOR[poor])
    assert 0.8 <= seconds <= 1 + 1e-9
    assert 0.5 <= needed <= 1


def test_stages_are_costed_once_for_layouts_that_cut_them_alike() -> None:
    made = POOR[next(each for each in POOR if each.startswith("64, 7B"))]
    bounds, estimator = Bounds(), Estimator.of(Plan.of(made))
    first = bounds.seconds(estimator)
    assert bounds.costed == 1 + 2
    assert bounds.seconds(estimator) == first
    assert bounds.costed == 1 + 2
