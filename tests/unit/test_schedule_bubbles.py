"""Bubble filling: how much encoder time hides, and that nothing comes before its input."""

import pytest
from hypothesis import given, settings
from tests.support.programs import computes, layout_of, layouts, peaks, texts
from tests.support.specs import Box, box

from mimo_launch.layout.layout import Layout
from mimo_launch.schedule.actions import Kind
from mimo_launch.schedule.data_flow import needs_backward
from mimo_launch.schedule.deadlock_proof import simulate
from mimo_launch.schedule.generate import generate, generate_forward
from mimo_launch.schedule.simulation_result import Costs, lower_bound

CASES = settings(max_examples=40, deadline=None)
PP_FASTEST = ("pp", "tp", "cp", "dp")


def third(layout: Layout) -> Costs:
    """Forward 1 and backward 2 for language; the encoders take a third of that, evenly spread."""
    share = {
        module.name: module.group_size / 3 / len(layout.encoders) for module in layout.encoders
    }
    return Costs(
        forward={"language": 1.0, **share},
        backward={"language": 2.0, **{name: 2 * each for name, each in share.items()}},
    )


def makespan(layout: Layout, costs: Costs) -> float:
    simulation = simulate(layout, generate(layout), costs)
    assert simulation.stuck == ()
    return simulation.makespan


def saved(m: int, k: int, **modules: Box) -> float:
    """Share of the encoders' time in three phases that bubble filling hides."""
    phases, bubbles = (
        layout_of(m, size, kind, mbs=8, **modules)
        for kind, size in (("1f1b", m), ("bubble_filling", k))
    )
    language = layout_of(m, None, language=modules["language"])
    three = makespan(phases, third(phases))
    alone = makespan(language, Costs(backward={"language": 2.0}))
    return (three - makespan(bubbles, third(bubbles))) / (three - alone)


def test_most_of_the_encoder_hides_in_the_bubbles_of_four_stages():
    """Three phases: 8/3 + 33 + 16/3 = 41 units, 8 of them for the encoder."""
    modules = {"vision": box(0, dp=4), "language": box(0, pp=4)}
    phases = layout_of(8, 8, mbs=4, **modules)
    assert makespan(phases, third(phases)) == pytest.approx(41)
    assert saved(8, 1, **modules) >= 0.60
    assert saved(8, 2, **modules) >= 0.55


@pytest.mark.parametrize(
    ("modules", "least"),
    [
        ({"vision": box(0, pp=4), "language": box(0, pp=4)}, 0.7),
        ({"vision": box(0, dp=8), "language": box(0, dp=2, pp=4)}, 0.55),
        ({"vision": box(0, dp=8), "language": box(0, dp=2, pp=4, order=PP_FASTEST)}, 0.55),
        ({"vision": box(0, dp=8), "language": box(0, tp=2, pp=4)}, 0.55),
        ({"vision": box(0, dp=4), "audio": box(0, dp=4), "language": box(0, pp=4)}, 0.5),
        # Ranks of one tp group are rarely idle at the same time, unless they hold one stage.
        ({"vision": box(0, tp=2, dp=4), "language": box(0, tp=2, pp=4)}, 0.55),
        ({"vision": box(0, tp=2, dp=2), "language": box(0, pp=4)}, 0.2),
        ({"vision": box(0, tp=4), "language": box(0, pp=4)}, 0.0),
    ],
    ids=["pp", "dp 2", "pp fastest", "tp 2", "two", "tp inside", "tp 2 across", "tp 4 across"],
)
def test_other_grids_hide_what_their_ranks_have_room_for(modules, least):
    assert saved(8, 2, **modules) >= least - 1e-9


def test_a_step_is_no_shorter_than_the_way_through_all_stages_of_an_encoder():
    layout = layout_of(1, vision=box(0, pp=3), language=box(3, pp=2))
    costs = Costs({"vision": 5.0, "language": 1.0}, {"vision": 7.0, "language": 2.0})
    assert (
        lower_bound(layout, costs)
        == 3 * 5 + 2 * 3 + 3 * 7
        == simulate(layout, generate(layout), costs).makespan
    )


def test_a_step_is_no_shorter_than_all_work_of_a_rank():
    layout = layout_of(8, 1, vision=box(0), language=box(0))
    costs = Costs({"vision": 5.0, "language": 1.0}, {"vision": 7.0, "language": 2.0})
    assert lower_bound(layout, costs) == 8 * (5 + 7 + 1 + 2)


@pytest.mark.parametrize("k", [1, 2, 4])
@pytest.mark.parametrize("m", [4, 8, 16])
@pytest.mark.parametrize("p", [2, 3, 4, 8])
def test_bubble_filling_lies_between_the_bound_and_the_phases(p, m, k):
    modules = {"vision": box(0, dp=p), "language": box(0, pp=p)}
    layout = layout_of(m, k, "bubble_filling", mbs=p, **modules)
    phases = layout_of(m, m, mbs=p, **modules)
    costs = third(layout)
    found = makespan(layout, costs)
    assert lower_bound(layout, costs) <= found + 1e-9
    assert found <= makespan(phases, third(phases)) + 1e-9


@pytest.mark.parametrize("backward", [1, 2])
@pytest.mark.parametrize("ratio", [1 / 10, 1 / 3, 1 / 2, 1])
@pytest.mark.parametrize("k", [1, 2, 4])
def test_it_gains_when_encoders_cost_more_or_less_than_assumed(ratio, backward, k):
    """The programs stay those of the usual costs; `ratio` is the true share of the encoder."""
    modules = {"vision": box(0, dp=4), "language": box(0, pp=4)}

    def simulation(layout: Layout) -> float:
        one = {"language": 1.0, "vision": ratio * layout["vision"].group_size}
        costs = Costs(one, {name: backward * each for name, each in one.items()})
        return makespan(layout, costs)

    three = simulation(layout_of(8, 8, mbs=4, **modules))
    hidden = three - simulation(layout_of(8, k, "bubble_filling", mbs=4, **modules))
    assert hidden >= 0.15 * 8 * ratio * (1 + backward)


@pytest.mark.parametrize("k", [1, 2])
def test_sends_that_wait_for_their_receive_are_no_more_than_groups_and_partners(k):
    modules = {"vision": box(0, dp=4), "language": box(0, pp=4)}
    layout = layout_of(8, k, "bubble_filling", mbs=4, **modules)
    simulation = simulate(layout, generate(layout), third(layout))
    assert max(simulation.peak_posted) <= 8 // k * 4 + 1


def test_a_small_program_by_hand():
    """Groups are sent pairwise; a group's gradients leave after its last microbatch."""
    layout = layout_of(2, 1, "bubble_filling", vision=box(1), language=box(0, pp=2))
    first, second = texts(generate(layout))
    assert first == (
        "vision>RECV_F0 language.0F0 language.0SEND_F0+vision>RECV_F1 language.0F1 "
        "language.0SEND_F1+language.0RECV_B0 language.0B0 vision>SEND_B0+language.0RECV_B1 "
        "language.0B1 vision>SEND_B1"
    )
    assert second.startswith("vision.0F0 vision>SEND_F0 vision.0F1 vision>SEND_F1")
    assert computes(second).split()[-1] == "vision.0B1"


def test_a_rank_without_the_encoder_has_no_action_of_it():
    layout = layout_of(4, 2, "bubble_filling", vision=box(2, dp=2), language=box(0, pp=4))
    programs = generate(layout)
    held = [{a.module for slot in p for a in slot if a.kind.is_compute} for p in programs]
    assert held == [{"language"}, {"language"}, {"vision", "language"}, {"vision", "language"}]
    assert all(not a.kind.is_collective for p in programs for slot in p for a in slot)


def test_a_frozen_encoder_runs_forward_only():
    layout = layout_of(
        4, 1, "bubble_filling", mbs=2, vision=box(0, dp=2, frozen=True), language=box(0, pp=2)
    )
    programs = generate(layout)
    kinds = {a.kind for p in programs for slot in p for a in slot if a.module == "vision"}
    assert kinds == {Kind.FORWARD, Kind.SEND_F, Kind.RECV_F}
    assert simulate(layout, programs).stuck == ()


@pytest.mark.parametrize("modules", [
    {"vision": box(0, dp=2), "language": box(0, tp=2)},
    {"vision": box(2), "language": box(0, pp=2)},
])  # fmt: skip
def test_without_bubbles_to_fill_it_is_1f1b(modules):
    layout, plain = (layout_of(4, 2, kind, **modules) for kind in ("bubble_filling", "1f1b"))
    assert texts(generate(layout)) == texts(generate(plain))
    assert texts(generate_forward(layout)) == texts(generate_forward(plain))


def test_language_keeps_the_memory_of_1f1b():
    layout = layout_of(8, 2, "bubble_filling", vision=box(0, tp=4), language=box(0, pp=4))
    simulation = simulate(layout, generate(layout), third(layout))
    assert peaks(layout, simulation, "language") == [4, 3, 2, 1]


@CASES
@given(layouts(16, kinds=("bubble_filling",)))
def test_every_program_ends_under_any_costs(layout):
    programs = generate(layout)
    for costs in (Costs(), third(layout), Costs(forward={"language": 0.1}, backward={})):
        simulation = simulate(layout, programs, costs)
        assert simulation.stuck == ()
        assert lower_bound(layout, costs) <= simulation.makespan + 1e-9
    assert simulate(layout, generate_forward(layout)).stuck == ()


@CASES
@given(layouts(16, kinds=("bubble_filling",)))
def test_every_rank_computes_every_index_in_order(layout):
    for rank, program in enumerate(generate(layout)):
        runs: dict[tuple[str, int | None, Kind], list[int]] = {}
        for action in (slot[0] for slot in program if slot[0].kind.is_compute):
            runs.setdefault((action.module, action.stage, action.kind), []).append(action.index)
        wanted = {}
        for module in layout.modules_of(rank):
            indices = list(range(layout.samples.microbatches // module.group_size))
            for stage in module.stages_of(rank):
                wanted[module.name, stage.index, Kind.FORWARD] = indices
                if needs_backward(layout, module, stage.index):
                    wanted[module.name, stage.index, Kind.BACKWARD] = indices
        assert runs == wanted
