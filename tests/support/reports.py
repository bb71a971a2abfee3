"""Reports of plans, with estimates for the device of the spec or another one."""

from collections.abc import Iterable
from typing import Any

from mimo_launch.drawing.plan_report import rank_report_of, report_of
from mimo_launch.drawing.rows import RankReport, Report
from mimo_launch.estimate.device_constants import Calibration
from mimo_launch.estimate.estimates import Estimator
from mimo_launch.plan.plan import Plan


def build_report(
    plan: Plan, calibration: Calibration | None = None, *, worst: bool = False, **asked: Any
) -> Report:
    """Return the report of all ranks; with `worst`, of the largest samples; else as `report_of`."""
    return report_of(Estimator.of(plan, calibration, worst=worst), **asked)


def build_rank_report(plan: Plan, rank: int) -> RankReport:
    """Return the report of one rank."""
    return rank_report_of(Estimator.of(plan), rank)


def build_rank_reports(plan: Plan, ranks: Iterable[int]) -> list[RankReport]:
    """Return the reports of some ranks, which share their estimates."""
    estimator = Estimator.of(plan)
    return [rank_report_of(estimator, rank) for rank in ranks]
