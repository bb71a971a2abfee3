"""The report of a job with any graph of modules: its roles, bridges and losses."""

import json
from collections import Counter
from io import StringIO

import pytest
from rich.console import Console
from tests.support.reports import build_rank_report, build_report
from tests.support.specs import box, spec

from mimo_launch.cli.plan_tables import job_parts, rank_parts
from mimo_launch.data.expected_steps import expected_steps
from mimo_launch.drawing.plan_report import report_json
from mimo_launch.drawing.spans import planned
from mimo_launch.drawing.svg import render_svg
from mimo_launch.drawing.trace import render_trace
from mimo_launch.estimate.step_work import StepWork
from mimo_launch.layout.bridge_routing import route
from mimo_launch.layout.layout import build_layout
from mimo_launch.layout.step_views import StepViews
from mimo_launch.plan.plan import Plan
from mimo_launch.spec.base import Axis

STAR = spec({"vision": box(0), "language": box(0)})
GRAPH = spec(
    {
        "vision": box(0, dp=2, model={"hidden": 16}),
        "merger": box(0, tp=2, model={"kind": "connector", "queries": 3}, reads=["vision"]),
        "language": box(2, pp=2, reads=["vision", "merger"], loss_weight=0.5),
        "drawer": box(0, dp=2, model={"kind": "flow"}, reads=["language"]),
    },
    microbatches=2,
    mbs=2,
    eval={"samples": 4},
)
PLAN = Plan.of(GRAPH)


def text_of(parts) -> str:
    console = Console(width=160, record=True, file=StringIO())
    for part in parts:
        console.print(part)
    return console.export_text()


def test_modules_have_roles_and_what_they_read() -> None:
    rows = {row.name: (row.role, row.reads) for row in build_report(PLAN).modules}
    assert rows == {
        "vision": ("encoder", ()),
        "merger": ("connector", ("vision",)),
        "language": ("language", ("vision", "merger")),
        "drawer": ("generator", ("language",)),
    }


def test_losses_are_means_of_the_terms_that_training_divides_by() -> None:
    losses, step = build_report(PLAN).losses, expected_steps(GRAPH).sampled[0]
    assert [(row.module, row.weight) for row in losses] == [("language", 0.5), ("drawer", 1.0)]
    assert [row.terms for row in losses] == [step.num_labels, step.num_terms("drawer")]
    half = spec({"vision": box(0), "language": box(0, loss_weight=0.5)})
    assert [row.weight for row in build_report(Plan.of(half)).losses] == [0.5]


def test_links_of_every_bridge_are_the_rows_that_travel_in_a_step() -> None:
    report, views = build_report(PLAN), StepViews(PLAN.layout, expected_steps(GRAPH).sampled[0])
    assert [(row.source, row.target) for row in report.bridges] == [
        ("vision", "merger"),
        ("vision", "language"),
        ("merger", "language"),
        ("language", "drawer"),
    ]
    for row in report.bridges:
        moved: dict[tuple[int, int], int] = {}
        for index in range(row.groups):
            for each in route(views, row.encoder, index):
                pair = each.src, each.dst
                moved[pair] = moved.get(pair, 0) + each.num_rows
        assert {(link.src, link.dst): link.rows for link in row.links} == moved
        assert row.bytes == sum(moved.values()) * GRAPH.row_width(row.source) * 8
    to_drawer = report.bridges[-1]
    assert (to_drawer.sharing, to_drawer.rows, to_drawer.how) == (2, 7, "pairwise")


def test_estimates_take_each_transfer_for_as_large_as_it_is() -> None:
    step = expected_steps(GRAPH).sampled[0]
    views = StepViews(PLAN.layout, step)
    for name, bridge in PLAN.layout.bridges.items():
        sent: Counter[int] = Counter()
        received: Counter[int] = Counter()
        for each in route(views, name, 1):
            sent[each.src] += each.num_rows
            received[each.dst] += each.num_rows
        most = max(sent.values()), max(received.values())
        work, ends = StepWork(PLAN.layout, step), (bridge.source, bridge.target)
        source, target = (range(PLAN.layout[each].grid.size(Axis.DP)) for each in ends)
        assert most == (
            max(work.sent(bridge, replica)[1] for replica in source),
            max(work.received(bridge, replica)[1] for replica in target),
        ), name


def test_a_rank_has_both_ends_of_its_bridges() -> None:
    peers = build_rank_report(PLAN, 0).peers
    assert {(peer.bridge, peer.way, peer.peer) for peer in peers} == {
        ("vision>merger", "copy", 0),
        ("vision>merger", "receive", 1),
        ("vision", "send", 2),
        ("merger", "send", 2),
        ("language>drawer", "receive", 3),
    }
    sent = {(peer.bridge, peer.way, peer.peer) for peer in build_rank_report(PLAN, 3).peers}
    assert sent == {("language>drawer", "send", 0), ("language>drawer", "send", 1)}


def test_json_has_the_keys_of_graphs_only_for_graphs() -> None:
    star, graph = (json.loads(report_json(build_report(Plan.of(made)))) for made in (STAR, GRAPH))
    assert "losses" not in star
    assert [row["module"] for row in graph["losses"]] == ["language", "drawer"]
    for name, keys in {
        "modules": {"role", "reads"},
        "bridges": {"source", "target", "bytes"},
    }.items():
        assert all(keys.isdisjoint(row) for row in star[name])
        assert all(keys <= row.keys() for row in graph[name])
    assert graph["header"]["nominal_rows"].keys() == {"vision", "merger", "drawer"}
    json.loads(report_json(build_rank_report(PLAN, 3)))


@pytest.mark.parametrize(
    "words",
    [
        r"language -> drawer  fan-out 1:2     pairwise  7",
        "merger -> language",
        "sends to merger rank: rows",
        "drawer    1       9      patches",
        "dF0 dB0: the same of drawer",
    ],
)
def test_tables_name_what_a_graph_has(words: str) -> None:
    assert words in text_of(job_parts(build_report(PLAN), 160))


def test_tables_of_a_rank_name_bridges_by_both_ends() -> None:
    text = text_of(rank_parts(build_rank_report(PLAN, 3), 160))
    assert "language -> drawer  sends to" in text
    assert "language>drawer>SEND_F0" in text


def test_pictures_and_traces_have_modules_but_no_bridges_as_modules() -> None:
    timeline = planned(PLAN)
    assert timeline.modules == ("language", "drawer", "merger", "vision")
    assert "language&gt;drawer bridge: receive 0" in render_svg(timeline, name="g", plan_hash="h")
    events = json.loads(render_trace(timeline, name="g"))["traceEvents"]
    arrows = {event["name"] for event in events if event["ph"] in "sf"}
    # Rows that stay on their rank have no arrow.
    assert {"vision", "merger", "language>drawer"} <= arrows


def test_a_layout_of_stars_is_one() -> None:
    assert build_layout(STAR).is_star
    assert not PLAN.layout.is_star


def test_tokens_are_counted_without_the_work_of_a_forward() -> None:
    made = Plan.of(spec({"vision": box(0, cp=2), "language": box(0, cp=2)}, microbatches=2, mbs=2))
    for plan in (PLAN, made):
        step = StepWork(plan.layout, expected_steps(plan.spec).sampled[0])
        for module in plan.layout.modules:
            for replica in range(module.grid.size(Axis.DP)):
                held = tuple(work.held for work in step.forwards(module, replica))
                assert step.tokens_held(module, replica) == held
