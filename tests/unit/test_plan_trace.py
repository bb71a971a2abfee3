"""Traces that viewers can open: every span, named tracks, arrows."""

import json
from collections import Counter, defaultdict
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from tests.support.specs import box, layout_specs, spec
from tests.support.timelines import DEEP, SHARED, made_of

from mimo_launch.drawing.spans import Span, Timeline, Unit, planned
from mimo_launch.drawing.trace import edge_of, ranks_shown, render_trace
from mimo_launch.plan.plan import Plan
from mimo_launch.schedule.actions import parse_action
from mimo_launch.spec.spec import Spec

CASES = settings(max_examples=25, deadline=None)


def events(timeline: Timeline, **options: Any) -> list[dict[str, Any]]:
    return json.loads(render_trace(timeline, name="a name", **options))["traceEvents"]


@CASES
@example(DEEP)
@example(SHARED)
@given(layout_specs(supported_only=False))
def test_trace_has_every_span_and_named_tracks(made: Spec) -> None:
    timeline = planned(Plan.of(made))
    found = events(timeline)
    slices = [event for event in found if event["ph"] == "X"]
    want = Counter((s.rank, s.action.module, s.action.kind, s.action.index) for s in timeline.spans)
    args = [(e["pid"], *(e["args"][k] for k in ("module", "kind", "index"))) for e in slices]
    assert Counter(args) == want
    names = {(e["pid"], e.get("tid"), e["name"]) for e in found if e["ph"] == "M"}
    for event in slices:
        assert (event["pid"], event["tid"], "thread_name") in names
        assert (event["pid"], None, "process_name") in names
        assert (event["tid"] == 0) == (event["args"]["kind"] in ("F", "B"))
        assert event["dur"] > 0
    tracks = defaultdict(list)
    for event in slices:
        tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for track in tracks.values():
        assert all(before[1] <= after[0] for before, after in pairwise(sorted(track)))


@CASES
@example(DEEP)
@given(layout_specs(supported_only=False))
def test_arrows_join_sends_with_their_receives(made: Spec) -> None:
    timeline = planned(Plan.of(made))
    found = events(timeline)
    ends = {end: {e["id"]: e for e in found if e["ph"] == end} for end in "sf"}
    assert ends["s"].keys() == ends["f"].keys()
    assert len(ends["s"]) == sum(len(span.peers) for span in timeline.spans)

    def slice_of(end: dict[str, Any]) -> dict[str, Any]:
        (only,) = (
            e
            for e in found
            if e["ph"] == "X"
            and (e["pid"], e["tid"]) == (end["pid"], end["tid"])
            and e["ts"] <= end["ts"] < e["ts"] + e["dur"]
        )
        return only

    kinds = {"SEND_F": "RECV_F", "SEND_B": "RECV_B"}
    for number, start in list(ends["s"].items())[:40]:
        stop = ends["f"][number]
        assert start["ts"] <= stop["ts"]
        assert found.index(start) < found.index(stop)
        sent, received = slice_of(start)["args"], slice_of(stop)["args"]
        assert stop["pid"] in sent["to"]
        assert kinds[sent["kind"]] == received["kind"]
        assert (sent["module"], sent["index"]) == (received["module"], received["index"])


def test_arrows_of_several_steps_keep_their_order() -> None:
    send, receive = parse_action("vision>SEND_F0"), parse_action("vision>RECV_F0")
    assert edge_of(send) == edge_of(receive)
    spans = [
        *(Span(0, send, t, t + 1, (1,)) for t in (0.0, 10.0)),
        *(Span(1, receive, t, t + 3) for t in (0.0, 9.0)),
    ]
    found = events(Timeline(Unit.SECONDS, 2, tuple(spans)))
    assert [(e["ph"], e["ts"]) for e in found if e["ph"] in "sf"] == [
        ("s", 0.0),
        ("f", 0.0),
        ("s", 10e6),
        ("f", 10e6),
    ]


def test_trace_of_one_rank_is_its_own() -> None:
    found = events(planned(Plan.of(SHARED)), ranks=[4])
    assert {event["pid"] for event in found} == {4}
    assert not [event for event in found if event["ph"] in "sf"]


def test_a_trace_of_many_ranks_has_one_of_each_kind() -> None:
    timeline = planned(Plan.of(spec({"vision": box(0, dp=96), "language": box(96, pp=3)}, mbs=96)))
    found = events(timeline)
    assert {event["pid"] for event in found} == {0, 96, 97, 98}
    ends = [event["id"] for event in found if event["ph"] in "sf"]
    # From 0 to 96, and between stages, both ways.
    assert len(ends) == len(set(ends)) * 2 == 12
    assert {event["pid"] for event in events(timeline, ranks=[5, 96])} == {5, 96}
    assert {event["pid"] for event in events(timeline, ranks=range(99))} == set(range(99))


def test_a_trace_is_no_larger_than_viewers_open_with_ease() -> None:
    """Of ranks that are all of another kind, as many as fit, and at least one."""
    timeline = made_of(*((rank, "language.0F0", n, n + 1) for rank in range(5) for n in range(6)))
    assert ranks_shown(timeline) == (0, 1, 2, 3, 4)
    assert ranks_shown(timeline, most_spans=20) == (0, 1, 2)
    assert ranks_shown(timeline, most_spans=5) == (0,)


@pytest.mark.parametrize("unit", list(Unit))
def test_trace_of_nothing_still_names_its_ranks(unit: Unit) -> None:
    for timeline in (Timeline(unit, 2, ()), made_of((1, "language.0F0", 0, 0), unit=unit)):
        assert {event["pid"] for event in events(timeline)} == {0, 1}
