"""Spans: their JSON, and that they say what the report of `plan` says."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.support.reports import build_report
from tests.support.specs import layout_specs
from tests.support.timelines import DEEP, SHARED, parse_timeline

from mimo_launch.drawing.spans import (
    Span,
    Timeline,
    Unit,
    bubble_of,
    planned,
    timeline_json,
)
from mimo_launch.drawing.svg_layout import mean_bubble
from mimo_launch.plan.plan import Plan
from mimo_launch.schedule.actions import parse_action
from mimo_launch.spec.spec import Spec

CASES = settings(max_examples=25, deadline=None)


@CASES
@example(DEEP)
@given(layout_specs(supported_only=False))
def test_json_reads_back(made: Spec) -> None:
    timeline = planned(Plan.of(made))
    assert parse_timeline(timeline_json(timeline)) == timeline


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 1e9), st.floats(0, 1e9))))
def test_json_keeps_every_digit_of_measured_times(times: list[tuple[int, float, float]]) -> None:
    spans = tuple(
        Span(rank, parse_action("vision>RECV_B3"), min(a, b), max(a, b)) for rank, a, b in times
    )
    timeline = Timeline(Unit.SECONDS, 4, spans)
    assert parse_timeline(timeline_json(timeline)) == timeline


@CASES
@example(DEEP)
@example(SHARED)
@given(layout_specs(supported_only=False))
def test_timeline_says_what_the_report_says(made: Spec) -> None:
    timeline, report = planned(Plan.of(made)), build_report(Plan.of(made))
    assert timeline.makespan == report.schedule.makespan
    assert mean_bubble(timeline) == pytest.approx(report.schedule.bubble)
    by_rank = timeline.by_rank()
    for row in report.schedule.timeline:
        for rank in row.ranks:
            assert bubble_of(by_rank[rank], timeline.makespan) == pytest.approx(row.bubble)
            work = [str(span.action) for span in by_rank[rank] if span.is_compute]
            assert work == [each.action for each in row.work]
