"""Encoders on ranks of their own that take groups of microbatches: tables, closed forms, a bug."""

from typing import Any

import pytest
from tests.support.programs import layout_of, texts
from tests.support.reports import build_report
from tests.support.specs import box, spec

from mimo_launch.layout.layout import Layout, build_layout
from mimo_launch.plan.plan import Plan
from mimo_launch.schedule import pipeline
from mimo_launch.schedule.actions import Action, Kind
from mimo_launch.schedule.deadlock_proof import DeadlockError, simulate
from mimo_launch.schedule.generate import generate
from mimo_launch.schedule.simulation_result import Costs
from mimo_launch.spec.spec import Spec


def made(k: int | None, groups: int, p: int = 1, a: int = 1, **settings: Any) -> Spec:
    """Vision of `a` stages in front of language of `p`, one rank each."""
    modules = {"vision": box(0, pp=a), "language": box(a, pp=p)}
    return spec(modules, microbatches=(k or 1) * groups, encoder_microbatches=k, **settings)


def test_rows_of_a_group_travel_together_both_ways() -> None:
    assert texts(generate(build_layout(made(2, 2)))) == [
        "vision.0F0 vision>SEND_F0 vision.0F1 vision>SEND_F1+vision>RECV_B0 vision.0B0 "
        "vision>RECV_B1 vision.0B1",
        "vision>RECV_F0 language.0F0 language.0B0 language.0F1 language.0B1 "
        "vision>SEND_B0+vision>RECV_F1 "
        "language.0F2 language.0B2 language.0F3 language.0B3 vision>SEND_B1",
    ]


@pytest.mark.parametrize("kind", ["1f1b", "gpipe"])
@pytest.mark.parametrize("p", [1, 2, 4])
@pytest.mark.parametrize("a", [1, 3])
@pytest.mark.parametrize(("k", "groups"), [(1, 5), (2, 3), (4, 1), (4, 5)])
def test_a_group_fills_and_drains_its_stages_and_nothing_else_waits(
    kind: str, p: int, a: int, k: int, groups: int
) -> None:
    """Each stage of the encoder works k units on a group, before the first and after the last."""
    m = k * groups
    schedule = build_report(Plan.of(made(k, groups, p, a, kind=kind))).schedule
    assert schedule.makespan == schedule.lower_bound == 2 * (m + p - 1 + a * k)


def test_a_group_is_live_as_a_whole_in_activations_and_memory() -> None:
    """The 1F1B of groups: two of them are in work in a stage right in front of language."""
    large = {"max_patches": 4096, "mbs": 4}
    reports = {k: build_report(Plan.of(made(k, 8 // k, **large))) for k in (1, 2, 4)}
    assert {k: each.stages[0].peak_live for k, each in reports.items()} == {1: 2, 2: 4, 4: 8}
    memory = {k: each.estimates.ranks[0].memory for k, each in reports.items()}
    for k in (2, 4):
        # Samples differ: a group of several is seldom as large as the largest, so many times.
        largest = k * memory[1].activations
        assert 0.8 * largest < memory[k].activations <= 1.01 * largest


def test_64_replicas_in_front_of_15_are_one_plan() -> None:
    """Each replica of the encoder has 15 samples of a group; the proof is of all 184 ranks."""
    modules = {"vision": box(0, dp=64), "language": box(64, tp=8, dp=15)}
    plan = Plan.of(spec(modules, microbatches=128, encoder_microbatches=64))
    plan.prove()
    samples = [
        plan.layout.samples.encoder(replica, 64, group, 64)
        for group in (0, 1)
        for replica in range(64)
    ]
    assert {len(each) for each in samples} == {15}
    assert sorted(sample for each in samples for sample in each) == list(range(15 * 128))


@pytest.mark.parametrize(
    ("encoders", "in_phases"),
    [
        ({"one": box(0, pp=2)}, set()),
        ({"one": box(0, dp=2), "other": box(0, tp=2)}, set()),
        ({"one": box(0, pp=2), "other": box(2, pp=2)}, set()),
        ({"one": box(0, pp=2), "other": box(0, dp=2)}, {"one", "other"}),
        ({"one": box(0, pp=2), "other": box(1, dp=2), "last": box(2)}, {"one", "other", "last"}),
        ({"one": box(0, pp=2), "other": box(1), "apart": box(2)}, {"one", "other"}),
        ({"one": box(0), "other": box(3, dp=2)}, {"other"}),
    ],
)
def test_encoders_that_share_ranks_run_in_phases_if_one_has_several_stages(
    encoders: dict[str, Any], in_phases: set[str]
) -> None:
    """Else ranks would run the stages of two pipelines in other orders. Language has rank 4."""
    layout = build_layout(spec({**encoders, "language": box(4)}, mbs=2))
    assert {each.name for each in layout.encoders if each.in_phases} == in_phases


def test_encoders_in_front_take_one_microbatch_where_others_run_in_phases() -> None:
    layout = layout_of(4, 2, near=box(1), vision=box(0), language=box(1, pp=2))
    assert (layout["near"].group_size, layout["vision"].group_size) == (2, 1)


def test_groups_one_after_the_other_are_reported_as_a_deadlock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As between phases: a pipeline that holds more than a group waits for the next one."""

    def in_turn(layout: Layout, stages: list[Any], *_: Any, backward: bool) -> list[Action]:
        return [
            Action(module.name, stage, kind, group)
            for module, stage in stages
            for group in range(layout.num_groups(module))
            for kind in (Kind.FORWARD, Kind.BACKWARD)
        ]

    layout = build_layout(made(2, 2, p=4))
    assert not _stuck(layout)
    monkeypatch.setattr(pipeline, "_upstream", in_turn)
    assert _stuck(layout)[:2] == (
        "rank 0 waits in vision>SEND_F0+vision>RECV_B0",
        "rank 1 waits in language.0SEND_F1+vision>RECV_F1",
    )
    with pytest.raises(DeadlockError):
        Plan.of(made(2, 2, p=4)).prove()


@pytest.mark.parametrize("rendezvous", [False, True])
def test_groups_end_where_sends_hold_ranks_up(rendezvous: bool) -> None:
    for k, groups, p, a in ((2, 3, 1, 1), (2, 4, 2, 2), (4, 2, 4, 3), (3, 2, 3, 1)):
        assert not _stuck(build_layout(made(k, groups, p, a)), rendezvous=rendezvous)


def _stuck(layout: Layout, *, rendezvous: bool = False) -> tuple[str, ...]:
    costs = Costs(forward={"vision": 3.0}, backward={"vision": 5.0})
    return simulate(layout, generate(layout), costs, rendezvous=rendezvous).stuck
