"""How a search goes on from layouts that fit, that are too large, and that take long to plan."""

from typing import Any

import pytest
from tests.support.poor_specs import B70, TEXT, job, module

from mimo_launch.estimate.estimates import Estimator
from mimo_launch.layout.space import Point
from mimo_launch.plan.plan import Plan
from mimo_launch.search.judge import Bound, Judge
from mimo_launch.search.search import Search
from mimo_launch.search.team import Team

LIGHT = {"sharding": "full", "recompute": "full"}


@pytest.mark.parametrize(
    ("grid", "microbatches", "more", "is_lightened"),
    [
        ({"tp": 2, "dp": 32}, 5, {}, True),
        # Sixteen stages with 80 microbatches: a plan takes more than a quarter of what is left.
        ({"tp": 2, "pp": 16, "dp": 2}, 80, LIGHT, False),
    ],
    ids=["too large", "long to plan"],
)
def test_only_layouts_that_are_too_large_are_replaced_by_lighter_ones(
    monkeypatch: pytest.MonkeyPatch,
    grid: dict[str, int],
    microbatches: int,
    more: dict[str, Any],
    is_lightened: bool,
) -> None:
    lightened, lighter = list[Point](), Judge.lighter

    def noted(judge: Judge, point: Point, *others: Any) -> list[tuple[Point, Bound]]:
        lightened.append(point)
        return lighter(judge, point, *others)

    monkeypatch.setattr(Judge, "lighter", noted)
    base = job({"language": module(B70, 0, 63, tp=4, dp=16, **LIGHT)}, 640, 10, data=TEXT)
    other = job({"language": module(B70, 0, 63, **grid, **more)}, 640, microbatches, data=TEXT)
    judge = Judge(Estimator.of(Plan.of(base)).brief, limit=72 * 10**9)
    search = Search(judge=judge, left=8, team=Team(judge))
    search.look([Point.of(other)])
    search.drain(alone=True)
    assert bool(lightened) == is_lightened
