"""Programs of all ranks: tables by hand, closed forms, and properties of random layouts."""

from collections import Counter, defaultdict

import pytest
from hypothesis import given, settings
from tests.support.programs import chain, computes, layout_of, layouts, peaks, texts, timeline
from tests.support.specs import box, spec

from mimo_launch.layout.layout import Layout, ModuleLayout, build_layout
from mimo_launch.schedule.actions import Action, Kind
from mimo_launch.schedule.channels import partners
from mimo_launch.schedule.deadlock_proof import simulate
from mimo_launch.schedule.generate import generate, generate_forward, needs_backward
from mimo_launch.schedule.simulation_result import Costs

CASES = settings(max_examples=25, deadline=None)
BACKWARD_KINDS = {Kind.BACKWARD, Kind.SEND_B, Kind.RECV_B, Kind.EXCHANGE_B}


TWO_STAGES = chain(4, language=2)
# A layout, and the programs of its ranks.
BY_HAND: dict[str, tuple[Layout, list[str]]] = {
    "two stages and four microbatches": (
        TWO_STAGES,
        [
            "language.0F0 language.0SEND_F0 "
            "language.0F1 language.0SEND_F1+language.0RECV_B0 language.0B0 "
            "language.0F2 language.0SEND_F2+language.0RECV_B1 language.0B1 "
            "language.0F3 language.0SEND_F3+language.0RECV_B2 language.0B2 "
            "language.0RECV_B3 language.0B3",
            "language.1RECV_F0 language.1F0 language.1B0 "
            "language.1SEND_B0+language.1RECV_F1 language.1F1 language.1B1 "
            "language.1SEND_B1+language.1RECV_F2 language.1F2 language.1B2 "
            "language.1SEND_B2+language.1RECV_F3 language.1F3 language.1B3 "
            "language.1SEND_B3",
        ],
    ),
    "an upstream encoder, which is one more stage of the pipeline": (
        chain(2, vision=1, language=1),
        [
            "vision.0F0 vision>SEND_F0 vision.0F1 vision>SEND_F1+vision>RECV_B0 vision.0B0 "
            "vision>RECV_B1 vision.0B1",
            "vision>RECV_F0 language.0F0 language.0B0 vision>SEND_B0+vision>RECV_F1 "
            "language.0F1 language.0B1 vision>SEND_B1",
        ],
    ),
    "a shared encoder, which runs in phases of k microbatches": (
        layout_of(4, 2, vision=box(0), language=box(0)),
        [
            "vision.0F0 vision>EXCHANGE_F0 "
            "language.0F0 language.0B0 language.0F1 language.0B1 "
            "vision>EXCHANGE_B0 vision.0B0 "
            "vision.0F1 vision>EXCHANGE_F1 "
            "language.0F2 language.0B2 language.0F3 language.0B3 "
            "vision>EXCHANGE_B1 vision.0B1"
        ],
    ),
    # Vision's first stage and language's second hold no rows, so they only pass them on.
    "an exchange in which only ranks at the ends of a bridge take part": (
        layout_of(1, vision=box(0, pp=2), language=box(1, pp=2)),
        [
            "vision.0F0 vision.0SEND_F0+vision.0RECV_B0 vision.0B0",
            "vision.1RECV_F0 vision.1F0 vision>EXCHANGE_F0 "
            "language.0F0 language.0SEND_F0+language.0RECV_B0 language.0B0 "
            "vision>EXCHANGE_B0 vision.1B0 vision.1SEND_B0",
            "language.1RECV_F0 language.1F0 language.1B0 language.1SEND_B0",
        ],
    ),
    "shared and upstream encoders, which mix in one step": (
        layout_of(2, vision=box(0), audio=box(1), language=box(1)),
        [
            "vision.0F0 vision>SEND_F0 vision.0F1 vision>SEND_F1+vision>RECV_B0 vision.0B0 "
            "vision>RECV_B1 vision.0B1",
            "audio.0F0 audio>EXCHANGE_F0 vision>RECV_F0 language.0F0 language.0B0 "
            "vision>SEND_B0+vision>RECV_F1 language.0F1 language.0B1 vision>SEND_B1 "
            "audio>EXCHANGE_B0 audio.0B0",
        ],
    ),
    "frozen language, which still passes gradients to its encoders": (
        layout_of(1, vision=box(0), language=box(1, frozen=True)),
        [
            "vision.0F0 vision>SEND_F0+vision>RECV_B0 vision.0B0",
            "vision>RECV_F0 language.0F0 language.0B0 vision>SEND_B0",
        ],
    ),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_programs_are_those_by_hand_of(name):
    layout, wanted = BY_HAND[name]
    assert texts(generate(layout)) == wanted


def test_two_stages_take_turns_in_time():
    simulation = simulate(TWO_STAGES, generate(TWO_STAGES))
    assert [timeline(simulation, rank) for rank in (0, 1)] == ["FF.bFbFb.b", ".FbFbFbFb."]


def test_a_forward_step_has_no_backward_and_no_warm_up():
    layout = layout_of(2, vision=box(0), audio=box(1), language=box(1, pp=2))
    assert texts(generate_forward(layout)) == [
        "vision.0F0 vision>SEND_F0 vision.0F1 vision>SEND_F1",
        "audio.0F0 audio>EXCHANGE_F0 vision>RECV_F0 language.0F0 "
        "language.0SEND_F0+vision>RECV_F1 language.0F1 language.0SEND_F1",
        "language.1RECV_F0 language.1F0 language.1RECV_F1 language.1F1",
    ]


@pytest.mark.parametrize("vision_first", [0, 1])
def test_a_frozen_encoder_has_no_backward_on_any_rank(vision_first):
    layout = layout_of(3, vision=box(vision_first, frozen=True), language=box(1))
    actions = [a for program in generate(layout) for slot in program for a in slot]
    kinds = defaultdict(set)
    for action in actions:
        kinds[action.module].add(action.kind)
    assert not kinds["vision"] & BACKWARD_KINDS
    assert Kind.FORWARD in kinds["vision"]
    assert Kind.BACKWARD in kinds["language"]


def test_a_trainable_projector_alone_has_no_backward_before_the_last_stage():
    """Nor does any gradient travel to the stages before it."""
    layout = layout_of(3, vision=box(0, pp=3, frozen="except_projector"), language=box(3))
    first, middle, last, _ = (
        {str(action) for slot in program for action in slot} for program in generate(layout)
    )
    assert not {a for a in first | middle if "B" in a.partition(".")[2]}
    assert {a for a in last if "_B" in a or ".2B" in a} == {
        *(f"vision.2B{i}" for i in range(3)),
        *(f"vision>RECV_B{i}" for i in range(3)),
    }


@pytest.mark.parametrize("p", range(1, 9))
def test_1f1b_takes_the_time_of_the_closed_form(p):
    """2(m + p - 1) units, of which every rank computes 2m (arXiv:2104.04473, section 2.2)."""
    found = {}
    for m in range(1, 17):
        layout = chain(m, language=p)
        simulation = simulate(layout, generate(layout))
        assert simulation.stuck == ()
        found[m] = simulation.makespan, {simulation.busy(rank) for rank in range(p)}
    assert found == {m: (2 * (m + p - 1), {2 * m}) for m in range(1, 17)}


@pytest.mark.parametrize("p", range(1, 9))
def test_1f1b_keeps_as_many_microbatches_as_the_closed_form(p):
    """At most min(m, p - s) live microbatches at stage s."""
    for m in range(1, 17):
        layout = chain(m, language=p)
        found = peaks(layout, simulate(layout, generate(layout)), "language")
        assert found == [min(m, p - s) for s in range(p)], f"{m} microbatches"


@pytest.mark.parametrize("m", [1, 2, 5, 16])
@pytest.mark.parametrize("b", [1, 2, 4])
@pytest.mark.parametrize("a", [1, 2, 3])
def test_an_encoder_pipeline_and_language_are_one_pipeline_of_both_depths(a, b, m):
    layout = chain(m, vision=a, language=b)
    simulation = simulate(layout, generate(layout))
    assert simulation.makespan == 2 * (m + a + b - 1)
    assert peaks(layout, simulation, "vision") == [min(m, a + b - s) for s in range(a)]
    assert peaks(layout, simulation, "language") == [min(m, b - s) for s in range(b)]


@pytest.mark.parametrize("m", [1, 3, 8])
@pytest.mark.parametrize(("a", "c"), [(1, 4), (4, 1), (2, 3), (3, 3)])
def test_encoders_of_unequal_depth_take_the_time_of_the_deeper(a, c, m):
    layout = chain(m, vision=a, audio=c, language=2)
    simulation = simulate(layout, generate(layout))
    assert simulation.stuck == ()
    assert simulation.makespan == 2 * (m + max(a, c) + 2 - 1)


def test_costs_scale_model_time():
    layout = chain(4, language=3)
    costs = Costs(forward={"language": 2.0}, backward={"language": 5.0})
    simulation = simulate(layout, generate(layout), costs)
    assert simulation.makespan == (2 + 5) * (4 + 3 - 1)
    assert [simulation.busy(rank) for rank in range(3)] == [28.0, 28.0, 28.0]
    assert [simulation.bubble(rank) for rank in range(3)] == [pytest.approx(1 / 3)] * 3


def test_an_exchange_ends_for_all_when_the_last_rank_arrives():
    layout = layout_of(1, vision=box(0), language=box(0, tp=2))
    simulation = simulate(layout, generate(layout), Costs(forward={"vision": 3.0}))
    exchanges = [
        [(e.start, e.stop) for e in events if e.slot[0].kind is Kind.EXCHANGE_F]
        for events in simulation.events
    ]
    assert exchanges == [[(3.0, 3.0)], [(0.0, 3.0)]]


def test_an_idle_rank_has_an_empty_program():
    layout = build_layout(spec({"vision": box(0), "language": box(2)}, idle_ranks="1"))
    programs = generate(layout)
    assert programs[1] == ()
    simulation = simulate(layout, programs)
    assert simulation.stuck == ()
    assert (simulation.busy(1), simulation.bubble(1)) == (0.0, 1.0)


def test_groups_of_encoders_that_share_a_rank_end_if_a_send_waits_for_its_receive():
    modules = {"vision": box(2), "audio": box(2), "language": box(0, pp=2)}
    layout = build_layout(spec(modules, microbatches=6, mbs=1, encoder_microbatches=2))
    assert simulate(layout, generate(layout)).stuck == ()
    assert simulate(layout, generate(layout), rendezvous=True).stuck == ()


@CASES
@given(layouts())
def test_every_program_ends(layout):
    """Where ranks do not take turns between stages, even if a send waits for its receive."""
    waits = layout.schedule in ("1f1b", "gpipe")
    for rendezvous in (False, *[True] * waits):
        assert simulate(layout, generate(layout), rendezvous=rendezvous).stuck == ()
        assert simulate(layout, generate_forward(layout), rendezvous=rendezvous).stuck == ()


def test_programs_end_when_stages_of_a_pipeline_share_a_rank_with_another_encoder():
    layout = layout_of(3, vision=box(0), audio=box(0, pp=2), language=box(2))
    assert simulate(layout, generate(layout)).stuck == ()


@CASES
@given(layouts())
def test_every_stage_runs_every_microbatch_once_each_way(layout):
    """Frozen encoders have no backward; all others one per forward, after it."""
    total = layout.samples.microbatches
    for rank, program in enumerate(generate(layout)):
        runs: dict[tuple[str, int | None, Kind], list[int]] = defaultdict(list)
        for slot in program:
            assert len(slot) == 1 or not any(
                a.kind.is_compute or a.kind.is_collective for a in slot
            )
            for action in slot:
                if action.kind is Kind.BACKWARD:
                    assert action.index in runs[action.module, action.stage, Kind.FORWARD]
                if action.kind.is_compute:
                    runs[action.module, action.stage, action.kind].append(action.index)
        expected = {}
        for module, stage in ((m, s) for m in layout.modules_of(rank) for s in m.stages_of(rank)):
            indices = [*range(total // module.group_size)]
            expected[module.name, stage.index, Kind.FORWARD] = indices
            if needs_backward(layout, module, stage.index):
                expected[module.name, stage.index, Kind.BACKWARD] = indices
        assert {key: indices for key, indices in runs.items() if indices} == expected


def neighbours(layout: Layout, action: Action) -> tuple[list[Action], list[Action]]:
    """Transfers that bring what a stage needs, and those that take away what it made."""
    module, way, index = layout[action.module], action.kind.value, action.index
    stage = module.stages[action.stage]
    forward = action.kind is Kind.FORWARD

    def bridge(encoder: ModuleLayout, index: int, verb: str) -> Action:
        filled = layout.schedule == "bubble_filling" and layout.language.grid.size("pp") > 1
        word = "EXCHANGE" if encoder.in_phases and not filled else verb
        group = index // encoder.group_size if module.is_language else index
        return Action(encoder.name, None, Kind[f"{word}_{way}"], group)

    def at_end(verb: str, *, is_upper: bool) -> list[Action]:
        if not (stage.is_first if is_upper else stage.is_last):
            before = stage.index - 1
            if verb == "SEND" and not forward and not needs_backward(layout, module, before):
                return []  # Nothing before this stage trains.
            return [Action(module.name, stage.index, Kind[f"{verb}_{way}"], index)]
        if module.is_language and is_upper:
            fed = [e for e in layout.encoders if forward or needs_backward(layout, e)]
            return [bridge(encoder, index, verb) for encoder in fed]
        return [] if module.is_language or is_upper else [bridge(module, index, verb)]

    return at_end("RECV", is_upper=forward), at_end("SEND", is_upper=not forward)


@CASES
@given(layouts())
def test_each_stage_receives_before_it_computes_and_sends_after(layout):
    """And nothing is moved that no stage needs."""
    for program in generate(layout):
        at = {a: number for number, slot in enumerate(program) for a in slot}
        assert len(at) == sum(len(slot) for slot in program)
        moved = {action for action in at if not action.kind.is_compute}
        for action in at.keys() - moved:
            inputs, outputs = neighbours(layout, action)
            assert all(at[each] < at[action] for each in inputs)
            assert all(at[action] < at[each] for each in outputs)
            moved -= {*inputs, *outputs}
        assert moved == set()


@CASES
@given(layouts())
def test_every_send_has_one_receive_at_the_other_end(layout):
    ends: Counter[tuple] = Counter()
    for rank, program in enumerate(generate(layout)):
        for action in (a for slot in program for a in slot):
            if action.kind.is_compute or action.kind.is_collective:
                continue
            way = action.kind.value[-1]
            lower = action.kind in (Kind.RECV_F, Kind.SEND_B)
            edge = None if action.stage is None else action.stage - lower
            for other in partners(layout, rank, action):
                sends = action.kind.value.startswith("SEND")
                pair = (rank, other) if sends else (other, rank)
                key = (action.module, edge, way, action.index, pair)
                ends[key] += 1 if sends else 100
    assert set(ends.values()) <= {101}


@CASES
@given(layouts())
def test_model_time_follows_the_data(layout):
    """No stage starts a microbatch before the stage that feeds it has ended it."""
    simulation = simulate(layout, generate(layout))
    times = {
        (rank, event.slot[0]): (event.start, event.stop)
        for rank, events in enumerate(simulation.events)
        for event in events
        if event.slot[0].kind.is_compute
    }
    for (rank, action), (start, stop) in times.items():
        module = layout[action.module]
        if action.stage is None or action.stage + 1 == len(module.stages):
            continue
        place = module.grid.index("pp", rank)
        steps = (place + 1) % module.grid.size("pp") - place
        down = rank + steps * module.grid.strides["pp"]
        after = Action(action.module, action.stage + 1, action.kind, action.index)
        its_start, its_stop = times[down, after]
        if action.kind is Kind.FORWARD:
            assert stop <= its_start
        else:
            assert its_stop <= start


def test_ranks_of_one_role_share_one_program():
    layout = layout_of(2, vision=box(0, dp=2), language=box(2, tp=2, dp=2, pp=2))
    programs = generate(layout)
    assert [programs.index(program) for program in programs] == [0, 0, 2, 2, 2, 2, 6, 6, 6, 6]
    assert computes(texts(programs)[2]) == ("language.0F0 language.0F1 language.0B0 language.0B1")
