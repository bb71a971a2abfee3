"""The proof by classes of ranks: its verdict and the times of computes are those of all ranks."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from tests.support.class_proof import COSTS, prove_as_all_ranks, same_as_all_ranks
from tests.support.programs import layout_of, texts, with_program
from tests.support.specs import box, layout_specs, spec

from mimo_launch.checks.load_and_check import load_and_check
from mimo_launch.plan.plan import Plan
from mimo_launch.schedule import deadlock_proof
from mimo_launch.schedule.actions import parse_action
from mimo_launch.schedule.channels import Meetings, channels_of, p2p_group_of, p2p_groups_of
from mimo_launch.schedule.deadlock_proof import by_class, simulate
from mimo_launch.schedule.generate import generate
from mimo_launch.schedule.rank_classes import ClassMeetings, refined
from mimo_launch.schedule.simulation_result import Simulation
from mimo_launch.spec.spec import Spec

TOPOLOGIES = sorted((Path(__file__).parents[2] / "topologies").rglob("*.yaml"))


@pytest.mark.parametrize("file", TOPOLOGIES, ids=lambda file: file.stem)
def test_a_topology_is_proved_as_by_all_ranks(file: Path) -> None:
    made = load_and_check(file).spec
    assert made is not None
    plan = Plan.of(made)
    assert same_as_all_ranks(plan.layout, plan.training, plan.units)
    assert same_as_all_ranks(plan.layout, plan.evaluation, COSTS)


@settings(deadline=None)
@given(layout_specs(supported_only=False))
def test_random_specs_are_proved_as_by_all_ranks(made: Spec) -> None:
    prove_as_all_ranks(Plan.of(made), mistakes=4)


def test_programs_of_the_generator_need_no_second_look() -> None:
    """Of layouts whose ranks differ in whom they meet, too: the classes alone reach their ends."""
    for file in TOPOLOGIES:
        made = load_and_check(file).spec
        assert made is not None
        plan = Plan.of(made)
        assert by_class(plan.layout, plan.training).stuck == ()
    # Language replica 0 gets its rows from ranks of stage 0, replica 1 from ranks of stage 1.
    modules = {"vision": box(0, dp=16), "language": box(0, tp=2, dp=4, pp=2)}
    plan = Plan.of(spec(modules, microbatches=8, kind="bubble_filling", encoder_microbatches=2))
    assert by_class(plan.layout, plan.training).stuck == ()
    assert same_as_all_ranks(plan.layout, plan.training, COSTS)


def test_a_mistake_of_one_rank_of_many_alike_is_found() -> None:
    layout = layout_of(2, vision=box(0, dp=6), language=box(6, pp=2, dp=6))
    programs = generate(layout)
    short = texts(programs)[17].rpartition(" ")[0]
    assert not same_as_all_ranks(layout, with_program(programs, 17, short))


def test_of_ranks_alike_only_one_is_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the time to plan grows with the number of ranks."""
    ran: list[int] = []

    def watched(*args: Any, **how: Any) -> Simulation:
        found = simulate(*args, **how)
        ran.append(sum(map(bool, found.events)))
        return found

    monkeypatch.setattr(deadlock_proof, "simulate", watched)
    layout = layout_of(2, vision=box(0, dp=6), language=box(6, pp=2, dp=6))
    assert all(by_class(layout, generate(layout)).events)
    assert ran == [3]


def test_of_ranks_that_hold_a_tied_embedding_one_may_do_otherwise() -> None:
    """Rank 4 runs another program than 3 and 5 do: rank 1 meets another class than 0 and 2 do."""
    modules = {"language": box(0, tp=3, pp=2, model={"tied": True})}
    plan = Plan.of(spec(modules, microbatches=2))
    for place, slot in enumerate(plan.training[4]):
        rest = plan.training[4][place + 1 :]
        for program in ((*plan.training[4][:place], *rest), (*rest, slot)):
            same_as_all_ranks(plan.layout, (*plan.training[:4], program, plan.training[5]))


def test_alike_ranks_have_one_role_and_alike_ranks_beside_them() -> None:
    layout = layout_of(1, vision=box(0), language=box(0, dp=4))
    assert refined(layout.roles, layout.modules) == (0, 1, 1, 1)
    layout = layout_of(1, language=box(0, tp=2, dp=3), vision=box(6, dp=3))
    assert refined(layout.roles, layout.modules) == (0, 0, 0, 0, 0, 0, 1, 1, 1)
    # Rank 2 is labelled, so rank 3 is beside another one than ranks 1 and 5 are.
    assert refined("aabaaaccc", layout.modules) == (0, 0, 1, 2, 0, 0, 3, 3, 3)


def test_whom_a_rank_meets_at_the_ends_of_a_step() -> None:
    model = {"tied": True}
    layout = layout_of(1, vision=box(8), language=box(0, tp=2, dp=2, pp=2, model=model))
    language, meetings = layout.language, Meetings(layout)
    assert set(language.grid.slice(dp=1)) == {2, 3, 6, 7}
    for rank in (2, 3, 6, 7):
        assert set(meetings.team(rank, parse_action("language:SHARE"))) == {2, 3, 6, 7}
        assert set(meetings.team(rank, parse_action("language:SUM_TIED"))) == {
            rank % 4,
            rank % 4 + 4,
        }
    assert set(meetings.team(6, parse_action("language:SUM_TP"))) == {6, 7}
    assert list(meetings.team(6, parse_action("step:NORM"))) == list(range(9))


@pytest.mark.parametrize("file", TOPOLOGIES, ids=lambda file: file.stem)
def test_there_is_a_process_group_for_each_channel_and_no_other(file: Path) -> None:
    made = load_and_check(file).spec
    assert made is not None
    plan = Plan.of(made)
    used = {
        p2p_group_of(channel)
        for programs in (plan.training, plan.evaluation, plan.decoding)
        for rank, program in enumerate(programs)
        for channel in channels_of(plan.layout, rank, program)
    }
    made_at_start = set(p2p_groups_of(plan.layout))
    assert used <= made_at_start
    # Those of backwards that nobody needs, and of rows that this layout copies inside of a rank.
    is_frozen = any(module.frozen for module in made.modules.values())
    if not is_frozen and made.schedule.kind != "bubble_filling" and plan.layout.is_star:
        assert used == made_at_start
    assert len({str(group) for group in made_at_start}) == len(made_at_start)


@pytest.mark.parametrize(("rank", "ways"), [(0, {"up"}), (1, {"up", "down"}), (3, {"down"})])
def test_rows_from_the_end_of_a_pipeline_need_groups_one_way(rank: int, ways: set[str]) -> None:
    layout = layout_of(4, 1, "bubble_filling", vision=box(rank), language=box(0, pp=4))
    forward = [str(group) for group in p2p_groups_of(layout) if group.is_bridge and group.forward]
    assert {name.rpartition(".")[2] for name in forward} == ways


def test_exchanges_that_share_classes_are_one() -> None:
    """The third component has a class of the first and one of the second."""
    layout = layout_of(1, vision=box(0, dp=3), language=box(3, dp=3))
    meetings = ClassMeetings(layout, (0, 1, 0, 2, 3, 1))
    assert meetings.ranks == (0, 1, 3, 4)
    assert {meetings.component(rank, "vision") for rank in meetings.ranks} == {(0, 1, 3, 4)}


def test_a_class_meets_all_that_its_ranks_meet() -> None:
    layout = layout_of(1, vision=box(0, dp=2), language=box(2, dp=4, tp=2))
    meetings = ClassMeetings(layout, (0, 0, 1, 1, 1, 1, 2, 2, 2, 2))
    assert meetings.ranks == (0, 2, 6)
    [one, other] = meetings.channels(0, parse_action("vision>SEND_F0"))
    assert (one.dst, other.dst) == (2, 6)
    assert [each.src for each in meetings.channels(6, parse_action("vision>RECV_F0"))] == [0]
    assert meetings.team(2, parse_action("language.0F0")) == (2, 6)
