"""The report of `plan` says what the layout, the routes and the programs say."""

import json
import time
from collections import Counter

import pytest
from hypothesis import example, given, settings
from tests.support.reports import build_rank_report, build_rank_reports, build_report
from tests.support.specs import box, hybrid, layout_specs, spec

from mimo_launch.data.expected_steps import expected_steps
from mimo_launch.drawing.meeting_rows import fan
from mimo_launch.drawing.plan_report import report_json
from mimo_launch.drawing.rows import Report
from mimo_launch.kinds.vocabulary import padded_vocab_size
from mimo_launch.layout.bridge_routing import route
from mimo_launch.layout.layout import build_layout
from mimo_launch.layout.step_views import StepViews
from mimo_launch.plan import plan as plan_module
from mimo_launch.plan.plan import Plan
from mimo_launch.schedule.actions import format_program
from mimo_launch.schedule.deadlock_proof import DeadlockError
from mimo_launch.schedule.generate import generate
from mimo_launch.spec.spec import Spec

CASES = settings(max_examples=15, deadline=None)
# Every axis at once, which no file may ask for yet.
DEEP = spec(
    {"vision": box(0, dp=2, pp=2), "language": box(4, tp=2, cp=2, dp=1, pp=2)},
    microbatches=4,
    mbs=2,
)


SPARSE = hybrid({"tp": 2}, "ME*MEE") | {"moe": {"experts": 8, "top_k": 2, "width": 8, "shared": 8}}
# Two stages of tp 2, dp 2; in each, ep 2 beside two replicas.
EXPERTS = spec(
    {"language": box(0, tp=2, dp=2, pp=2, sequence_parallel=True, model=SPARSE, experts={"ep": 2})},
    microbatches=4,
    mbs=2,
)


def program_of(report: Report, rank: int) -> str:
    return next(row.program for row in report.schedule.programs if rank in row.ranks)


@CASES
@example(DEEP)
@given(layout_specs())
def test_program_of_each_rank_is_the_one_that_runs(made: Spec) -> None:
    plan = Plan.of(made)
    report = build_report(plan)
    alone = build_rank_reports(plan, range(len(plan.training)))
    for rank, (program, own) in enumerate(zip(plan.training, alone, strict=True)):
        assert program_of(report, rank) == own.program == format_program(program)


def test_programs_of_evaluations_are_there_where_there_are_evaluations() -> None:
    modules = {"vision": box(0), "language": box(1, pp=2)}
    none = build_report(Plan.of(spec(modules))).schedule
    assert (none.evaluation, none.decoding) == ((), ())
    plan = Plan.of(spec(modules, eval={"every": 1, "samples": 1}))
    schedule, rank = build_report(plan).schedule, build_rank_report(plan, 2)
    assert [row.program for row in schedule.evaluation] == list(
        map(format_program, plan.evaluation)
    )
    assert [row.ranks for row in schedule.decoding] == [(0,), (1,), (2,)]
    assert rank.evaluation == "language.1RECV_F0 language.1F0"
    assert rank.decoding == "language.1RECV_F0 language.1F0 language:SHARE"


def test_groups_along_the_same_axes_are_shown_once() -> None:
    rows = [(row.module, row.axes) for row in build_report(Plan.of(DEEP)).groups]
    assert rows == [
        ("vision", ("dp",)),
        ("vision", ("pp",)),
        ("language", ("tp",)),
        ("language", ("cp",)),
        ("language", ("pp",)),
    ]
    of_rank = build_rank_report(Plan.of(DEEP), 4).groups
    assert [(row.module, row.axes) for row in of_rank] == rows[2:]


@CASES
@example(DEEP)
@given(layout_specs())
def test_every_rank_has_one_row_program_and_timeline(made: Spec) -> None:
    layout, report = build_layout(made), build_report(Plan.of(made))
    everyone = list(range(layout.world_size))
    assert [row.rank for row in report.ranks] == everyone
    for rows in (report.schedule.programs, report.schedule.timeline):
        assert sorted(rank for row in rows for rank in row.ranks) == everyone
    for module in layout.modules:
        held = [h for row in report.ranks for h in row.modules if h.module == module.name]
        assert len(held) == module.grid.num_ranks
        assert len({tuple(h.coords.values()) for h in held}) == module.grid.num_ranks
        stages = [row for row in report.stages if row.module == module.name]
        assert sorted(rank for row in stages for rank in row.ranks) == list(module.grid.ranks)
        layers = [n for row in stages for n in range(row.first_layer, row.last_layer + 1)]
        assert layers == list(range(made.modules[module.name].model.layers))


@CASES
@example(DEEP)
@given(layout_specs())
def test_links_are_the_routes_of_all_groups(made: Spec) -> None:
    layout, data = build_layout(made), expected_steps(made).sampled[0]
    report = build_report(Plan.of(made))
    for bridge in report.bridges:
        want: Counter[tuple[int, int]] = Counter()
        for group in range(bridge.groups):
            for transfer in route(StepViews(layout, data), bridge.encoder, group):
                want[transfer.src, transfer.dst] += transfer.num_rows
        assert {(link.src, link.dst): link.rows for link in bridge.links} == want
        assert bridge.rows == sum(s.rows(bridge.encoder) for s in data.samples)
        assert bridge.local_rows == sum(n for (src, dst), n in want.items() if src == dst)


@CASES
@example(DEEP)
@given(layout_specs())
def test_ranks_tell_the_same_of_their_rows(made: Spec) -> None:
    """What a rank's own report says it sends is what its peer's says it receives."""
    plan = Plan.of(made)
    report = build_report(plan)
    links = {(b.encoder, link.src, link.dst): link.rows for b in report.bridges for link in b.links}
    sent, received = {}, {}
    for rank, own in enumerate(build_rank_reports(plan, range(report.header.world_size))):
        for row in own.peers:
            if row.way in ("send", "copy"):
                sent[row.bridge, rank, row.peer] = sum(row.rows)
            if row.way in ("receive", "copy"):
                received[row.bridge, row.peer, rank] = sum(row.rows)
    assert sent == received == links


@CASES
@example(DEEP)
@given(layout_specs())
def test_samples_of_a_module_tile_the_step(made: Spec) -> None:
    plan = Plan.of(made)
    for module in plan.layout.modules:
        seen, split = Counter[int](), Counter[int]()
        for own in build_rank_reports(plan, module.grid.slice(tp=0, cp=0, pp=0)):
            for row in (row for row in own.samples if row.module == module.name):
                for count, ranges in ((seen, row.ranges), (split, row.split)):
                    for first, last in ranges:
                        count.update(range(first, last + 1))
        assert seen.keys() == {*range(made.batch.global_)}
        assert split == Counter({sample: number for sample, number in seen.items() if number > 1})


def test_header_and_modules_of_a_mixed_job() -> None:
    made = spec(
        {
            "vision": box(0, dp=4),
            "audio": box(6, dp=1, frozen=True),
            "depth": box(3, dp=2),
            "language": box(0, tp=2, dp=2),
        },
        microbatches=4,
        encoder_microbatches=2,
    )
    report = build_report(Plan.of(made))
    row_places = {row.name: row.placement for row in report.modules}
    assert row_places == {
        "vision": "colocated",
        "audio": "disjoint",
        "depth": "overlapping",
        "language": None,
    }
    bridges = {row.encoder: row for row in report.bridges}
    assert {name: (row.fan, row.how, row.group_size) for name, row in bridges.items()} == {
        "vision": ("fan-in", "collective", 2),
        "audio": ("fan-out", "pairwise", 1),
        "depth": ("one-to-one", "collective", 2),
    }
    assert not bridges["audio"].has_backward
    assert bridges["audio"].components == ()
    live = {row.module: row.peak_live for row in report.stages}
    assert live == {"vision": 2, "audio": 0, "depth": 2, "language": 1}
    # Rank 5 is idle: a row without modules, not counted in the bubble; it agrees on the norms.
    assert report.ranks[5].modules == ()
    assert program_of(report, 5) == "step:NORM step:UPDATE"


def test_1f1b_matches_its_closed_form() -> None:
    made = spec({"vision": box(0), "language": box(1, pp=3)}, microbatches=6)
    schedule = build_report(Plan.of(made)).schedule
    stages = 4
    assert schedule.makespan == schedule.lower_bound == 2 * (6 + stages - 1)
    assert schedule.bubble == pytest.approx((stages - 1) / (6 + stages - 1))
    live = [row.peak_live for row in build_report(Plan.of(made)).stages]
    assert live == [min(6, stages - stage) for stage in range(stages)]


def test_group_size_changes_memory_and_not_the_work() -> None:
    def made(k: int) -> Spec:
        modules = {"vision": box(0, dp=2), "language": box(0, dp=2)}
        return spec(modules, microbatches=4, encoder_microbatches=k)

    reports = {k: build_report(Plan.of(made(k))) for k in (1, 2, 4)}
    assert {k: r.schedule.makespan for k, r in reports.items()} == {1: 16, 2: 16, 4: 16}
    assert {k: r.stages[0].peak_live for k, r in reports.items()} == {1: 1, 2: 2, 4: 4}


@pytest.mark.parametrize(
    ("gpus", "tp_crossing", "crossing_rows"), [(2, 0, 10), (8, 0, 0), (3, 1, 7)]
)
def test_what_crosses_nodes(gpus: int, tp_crossing: int, crossing_rows: int) -> None:
    made = spec(
        {"vision": box(0, dp=2), "language": box(2, tp=2, dp=2)},
        mbs=2,
        max_patches=4,
        nodes={"gpus": gpus},
    )
    report = build_report(Plan.of(made))
    tp = next(row for row in report.groups if (row.module, row.axes) == ("language", ("tp",)))
    assert tp.num_crossing == sum(a // gpus != b // gpus for a, b in tp.groups) == tp_crossing
    (bridge,) = report.bridges
    want = sum(link.rows for link in bridge.links if link.src // gpus != link.dst // gpus)
    assert bridge.crossing_rows == want == crossing_rows
    assert [row.node for row in report.ranks] == [rank // gpus for rank in range(6)]


def test_fan_has_a_word_for_any_two_sizes() -> None:
    words = {(2, 2): "one-to-one", (4, 2): "fan-in", (1, 3): "fan-out", (3, 2): "uneven"}
    assert {pair: fan(*pair) for pair in words} == words


def test_deadlock_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    made = spec({"vision": box(0), "language": box(1)}, microbatches=2)
    programs = generate(build_layout(made))
    monkeypatch.setattr(plan_module, "generate", lambda _: (programs[0][::-1], programs[1]))
    for build in (build_report, lambda plan: build_rank_report(plan, 0)):
        with pytest.raises(DeadlockError) as caught:
            build(Plan.of(made))
        assert len(caught.value.stuck) == 2


def test_rank_outside_the_world_is_an_error() -> None:
    with pytest.raises(ValueError, match="rank 1 is not in 0-0"):
        build_rank_report(Plan.of(spec({})), 1)


def many_ranks(*, colocated: bool) -> Spec:
    """4,096 ranks: fan-in 8:1, disjoint or on the same ranks."""
    if colocated:
        modules = {"vision": box(0, dp=4096), "language": box(0, tp=8, dp=512)}
    else:
        modules = {"vision": box(0, dp=2048), "language": box(2048, tp=8, dp=256)}
    replicas = 512 if colocated else 256
    return spec(
        modules,
        microbatches=4,
        encoder_microbatches=2 if colocated else None,
        mbs=8192 // (4 * replicas),
        nodes={"gpus": 8},
    )


@pytest.mark.parametrize("colocated", [False, True])
def test_4096_ranks_take_seconds(colocated: bool) -> None:
    start = time.process_time()
    report = json.loads(report_json(build_report(Plan.of(many_ranks(colocated=colocated)))))
    elapsed = time.process_time() - start
    assert len(report["ranks"]) == 4096
    (bridge,) = report["bridges"]
    assert sum(link["rows"] for link in bridge["links"]) == bridge["rows"]
    assert bridge["fan"] == "fan-in"
    # Measured: 1 s on one core.
    assert elapsed < 10


def test_experts_are_where_their_grid_says() -> None:
    (row,) = build_report(Plan.of(EXPERTS)).experts
    held = [(place.first_expert, place.last_expert, place.ranks) for place in row.places]
    assert held == [(0, 3, (0, 2, 4, 6)), (4, 7, (1, 3, 5, 7))]
    assert (row.ep, row.dp, row.per_rank, row.layers) == (2, 2, 4, 3)


def test_a_token_uses_the_updates_of_its_own_experts_only() -> None:
    def parameters(**adapted: object) -> tuple[int, int]:
        model = {"moe": {"experts": 8, "top_k": 2, "width": 8}}
        language = box(0, dp=2, model=model, experts={"ep": 2}, **adapted)
        (row,) = build_report(Plan.of(spec({"language": language}, mbs=2))).experts
        return row.parameters, row.active_parameters

    (total, active), bare = parameters(adapter={"rank": 4, "targets": ["experts"]}), parameters()
    assert total > bare[0]
    assert 8 * (active - bare[1]) == 2 * (total - bare[0])


def test_layers_by_kind_are_all_of_a_module_but_its_ends() -> None:
    report = build_report(Plan.of(EXPERTS))
    kinds = {row.kind: row for row in report.layers}
    assert {kind: row.layers for kind, row in kinds.items()} == {
        "Mamba-2": 2, "experts": 3, "attention": 1
    }  # fmt: skip
    assert [row.kind for row in report.layers if row.has_experts] == ["experts"]
    model = EXPERTS.language.model
    width, words = model.hidden, padded_vocab_size(EXPERTS)
    # A norm, the router, four experts of this rank and half of the one that all tokens share.
    assert kinds["experts"].parameters == width * (1 + 8 + 4 * 2 * 8 + 2 * 4)
    tokens = EXPERTS.batch.global_ * EXPERTS.batch.seq
    of_experts = 3 * 2 * tokens * width * (8 + 2 * 3 * 8)
    assert kinds["experts"].tflop == pytest.approx(3 * of_experts / 1e12)
    head = 3 * 2 * tokens * width * words
    total = sum(row.tflop for row in report.layers) + head / 1e12
    assert report.estimates.tflop == pytest.approx(total)
    weights = sum(row.layers * row.parameters for row in report.layers)
    ends = 2 * width * words // 2 + width
    assert sum(each.parameters for each in report.estimates.ranks) == weights + ends
    # Activations at the peak are those of all layers, and what stands around them.
    kept = sum(row.layers * row.kept_bytes for row in report.layers)
    assert all(row.kept_bytes > 0 for row in report.layers)
    assert kept < sum(each.memory.activations for each in report.estimates.ranks)


def test_a_batch_of_very_many_samples_is_planned_from_thousands() -> None:
    modules = {"vision": box(0, dp=2, tp=2), "language": box(4, tp=2)}
    few, many = (spec(modules, microbatches=4, mbs=size) for size in (2**10, 2**15))
    [small], [large] = (build_report(Plan.of(made)).bridges for made in (few, many))
    assert large.rows == pytest.approx(32 * small.rows, rel=0.01)
