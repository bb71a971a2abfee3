"""Programs of all ranks: tables by hand, closed forms, and broken programs that must be caught."""

from collections import Counter, defaultdict

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st
from tests.support.specs import Box, box, brief, layout_specs, spec

from mimo_launch.layout.layout import Layout, ModuleLayout, build_layout
from mimo_launch.schedule import generate as generator
from mimo_launch.schedule.actions import Action, Kind, format_program, parse_program
from mimo_launch.schedule.channels import partners
from mimo_launch.schedule.generate import Programs, generate, generate_forward, needs_backward
from mimo_launch.schedule.simulate import Costs, Simulation, simulate

CASES = settings(max_examples=100, deadline=None)
BACKWARD_KINDS = {Kind.BACKWARD, Kind.SEND_B, Kind.RECV_B, Kind.EXCHANGE_B}


def layout_of(microbatches: int, k: int | None = None, **modules: Box) -> Layout:
    """Layout of some modules; `language` alone on rank 0 where none is given."""
    return build_layout(spec(modules, microbatches=microbatches, encoder_microbatches=k))


def chain(microbatches: int, language: int, **encoders: int) -> Layout:
    """Layout of pipelines of the given depths, one rank per stage, encoders first."""
    modules, first = {}, 0
    for name, depth in [*encoders.items(), ("language", language)]:
        modules[name] = box(first, pp=depth)
        first += depth
    return layout_of(microbatches, **modules)


def texts(programs: Programs) -> list[str]:
    """Programs as text, one per rank."""
    return [format_program(program) for program in programs]


def computes(program_text: str) -> str:
    """The forwards and backwards of a program."""
    return " ".join(
        str(action) for (action, *_) in parse_program(program_text) if action.kind.is_compute
    )


def timeline(simulation: Simulation, rank: int) -> str:
    """Forwards (F) and backwards (b) of a rank, one column per unit of model time."""
    cells = ["."] * int(simulation.makespan)
    for event in simulation.events[rank]:
        action = event.slot[0]
        if action.kind.is_compute:
            assert cells[int(event.start)] == "."
            cells[int(event.start)] = "F" if action.kind is Kind.FORWARD else "b"
    return "".join(cells)


def peaks(layout: Layout, simulation: Simulation, name: str) -> list[int]:
    """Most live microbatches of each stage of a module."""
    return [
        simulation.peak_live(rank, name, stage.index)
        for stage in layout[name].stages
        for rank in layout[name].stage_ranks(stage.index)
    ]


def test_two_stages_run_four_microbatches_as_in_the_table():
    layout = chain(4, language=2)
    assert texts(generate(layout)) == [
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
    ]
    simulation = simulate(layout, generate(layout))
    assert [timeline(simulation, rank) for rank in (0, 1)] == [
        "FF.bFbFb.b",
        ".FbFbFbFb.",
    ]


def test_an_upstream_encoder_is_one_more_stage_of_the_pipeline():
    layout = chain(2, vision=1, language=1)
    assert texts(generate(layout)) == [
        "vision.0F0 vision>SEND_F0 vision.0F1 vision>SEND_F1+vision>RECV_B0 vision.0B0 "
        "vision>RECV_B1 vision.0B1",
        "vision>RECV_F0 language.0F0 language.0B0 vision>SEND_B0+vision>RECV_F1 "
        "language.0F1 language.0B1 vision>SEND_B1",
    ]


def test_a_shared_encoder_runs_in_phases_of_k_microbatches():
    layout = layout_of(4, 2, vision=box(0), language=box(0))
    assert texts(generate(layout)) == [
        "vision.0F0 vision>EXCHANGE_F0 "
        "language.0F0 language.0B0 language.0F1 language.0B1 "
        "vision>EXCHANGE_B0 vision.0B0 "
        "vision.0F1 vision>EXCHANGE_F1 "
        "language.0F2 language.0B2 language.0F3 language.0B3 "
        "vision>EXCHANGE_B1 vision.0B1"
    ]


def test_only_ranks_at_the_ends_of_a_bridge_take_part_in_its_exchange():
    """Vision's first stage and language's second hold no rows, so they only pass them on."""
    layout = layout_of(1, vision=box(0, pp=2), language=box(1, pp=2))
    assert texts(generate(layout)) == [
        "vision.0F0 vision.0SEND_F0+vision.0RECV_B0 vision.0B0",
        "vision.1RECV_F0 vision.1F0 vision>EXCHANGE_F0 "
        "language.0F0 language.0SEND_F0+language.0RECV_B0 language.0B0 "
        "vision>EXCHANGE_B0 vision.1B0 vision.1SEND_B0",
        "language.1RECV_F0 language.1F0 language.1B0 language.1SEND_B0",
    ]


def test_shared_and_upstream_encoders_mix_in_one_step():
    layout = layout_of(2, vision=box(0), audio=box(1), language=box(1))
    assert texts(generate(layout)) == [
        "vision.0F0 vision>SEND_F0 vision.0F1 vision>SEND_F1+vision>RECV_B0 vision.0B0 "
        "vision>RECV_B1 vision.0B1",
        "audio.0F0 audio>EXCHANGE_F0 vision>RECV_F0 language.0F0 language.0B0 "
        "vision>SEND_B0+vision>RECV_F1 language.0F1 language.0B1 vision>SEND_B1 "
        "audio>EXCHANGE_B0 audio.0B0",
    ]


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


def test_frozen_language_still_passes_gradients_to_its_encoders():
    layout = layout_of(1, vision=box(0), language=box(1, frozen=True))
    assert texts(generate(layout)) == [
        "vision.0F0 vision>SEND_F0+vision>RECV_B0 vision.0B0",
        "vision>RECV_F0 language.0F0 language.0B0 vision>SEND_B0",
    ]


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


@st.composite
def layouts(draw: st.DrawFn, max_ranks: int = 32) -> Layout:
    """Layouts of every kind."""
    made = draw(layout_specs(max_ranks, supported_only=False))
    layout = build_layout(made)
    note(brief(made))
    return layout


@CASES
@given(layouts())
def test_every_program_ends(layout):
    for rendezvous in (False, True):
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
        for module in layout.modules_of(rank):
            stage, indices = module.stages_of(rank)[0].index, [*range(total // module.group_size)]
            expected[module.name, stage, Kind.FORWARD] = indices
            if needs_backward(layout, module):
                expected[module.name, stage, Kind.BACKWARD] = indices
        assert {key: indices for key, indices in runs.items() if indices} == expected


def neighbours(layout: Layout, action: Action) -> tuple[list[Action], list[Action]]:
    """Transfers that bring what a stage needs, and those that take away what it made."""
    module, way, index = layout[action.module], action.kind.value, action.index
    stage = module.stages[action.stage]
    forward = action.kind is Kind.FORWARD

    def bridge(encoder: ModuleLayout, microbatch: int, verb: str) -> Action:
        if encoder.in_phases:
            group = microbatch // encoder.group_size if module.is_language else microbatch
            return Action(encoder.name, None, Kind[f"EXCHANGE_{way}"], group)
        return Action(encoder.name, None, Kind[f"{verb}_{way}"], microbatch)

    def at_end(verb: str, *, is_upper: bool) -> list[Action]:
        if not (stage.is_first if is_upper else stage.is_last):
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
        down = rank + module.grid.strides["pp"]
        after = Action(action.module, action.stage + 1, action.kind, action.index)
        its_start, its_stop = times[down, after]
        if action.kind is Kind.FORWARD:
            assert stop <= its_start
        else:
            assert its_stop <= start


def with_program(programs: Programs, rank: int, text: str) -> Programs:
    """Replace the program of one rank."""
    return (*programs[:rank], parse_program(text), *programs[rank + 1 :])


def with_words(programs: Programs, rank: int, *changes: tuple[str, str]) -> Programs:
    """Replace words in the program of one rank, all at once; "" deletes a slot."""
    table = dict(changes)
    words = format_program(programs[rank]).split()
    assert table.keys() <= set(words)
    return with_program(programs, rank, " ".join(table.get(word, word) for word in words))


def test_a_send_before_its_forward_is_reported_with_those_that_miss_it():
    layout = chain(4, language=3)
    broken = with_words(
        generate(layout), 0,
        ("language.0SEND_F0", "language.0SEND_F1"),
        ("language.0SEND_F1", "language.0SEND_F0"),
    )  # fmt: skip
    assert simulate(layout, broken).stuck == (
        "rank 0 comes to language.0SEND_F1 before language.0F1",
        "rank 1 waits in language.1RECV_F0",
        "rank 2 waits in language.2RECV_F0",
    )


def test_receives_in_another_order_than_the_sends_are_reported():
    """Messages between two ranks stay in order: a transport need not look for a later one."""
    layout = chain(2, language=2)
    broken = with_program(
        generate(layout), 1,
        "language.1RECV_F1 language.1F1 language.1RECV_F0 language.1F0 "
        "language.1B0 language.1SEND_B0 language.1B1 language.1SEND_B1",
    )  # fmt: skip
    assert simulate(layout, broken).stuck == (
        "rank 0 waits in language.0SEND_F1+language.0RECV_B0",
        "rank 1 waits in language.1RECV_F1",
    )


@pytest.mark.parametrize(
    ("rank", "word", "report"),
    [
        (2, "vision>RECV_F1", "rank 2 comes to language.0F1 before vision>RECV_F1"),
        (3, "language.1RECV_F1", "rank 3 comes to language.1F1 before language.1RECV_F1"),
        (3, "language.1F1", "rank 3 comes to language.1B1 before language.1F1"),
        (1, "vision>RECV_B1", "rank 1 comes to vision.0B1 before vision>RECV_B1"),
        (2, "language.0B1", "rank 2 comes to audio>SEND_B1 before language.0B1"),
        (0, "audio.0F0", "rank 0 comes to audio>SEND_F0 before audio.0F0"),
    ],
)
def test_an_action_without_its_input_is_reported_with_what_it_misses(rank, word, report):
    layout = layout_of(2, audio=box(0), vision=box(1), language=box(2, pp=2))
    programs = [text.replace("+", " ").split() for text in texts(generate(layout))]
    programs[rank].remove(word)
    broken = with_program(generate(layout), rank, " ".join(programs[rank]))
    assert report in simulate(layout, broken).stuck


def test_an_exchange_before_its_rows_exist_is_reported():
    layout = layout_of(1, vision=box(0), language=box(0))
    broken = with_words(
        generate(layout), 0,
        ("vision.0F0", "vision>EXCHANGE_F0"),
        ("vision>EXCHANGE_F0", "vision.0F0"),
    )  # fmt: skip
    report = "rank 0 comes to vision>EXCHANGE_F0 before vision.0F0"
    assert simulate(layout, broken).stuck == (report,)


def test_an_action_that_runs_twice_is_reported():
    layout = chain(1, language=1)
    broken = with_program(generate(layout), 0, "language.0F0 language.0B0 language.0B0")
    assert simulate(layout, broken).stuck == ("rank 0 runs language.0B0 a second time",)


def test_a_send_that_is_never_received_is_reported():
    layout = chain(1, vision=1, language=1)
    broken = with_words(generate(layout), 0, ("vision>SEND_F0+vision>RECV_B0", "vision>SEND_F0"))
    broken = with_words(broken, 0, ("vision.0B0", ""))
    assert simulate(layout, broken).stuck == (
        "rank 1 posts vision>SEND_B0, which rank 0 never receives",
    )


def test_a_send_and_a_receive_that_wait_for_each_other_are_a_deadlock_under_rendezvous():
    """Where sends hold a rank up, opposite transfers must be posted together."""
    layout = chain(3, language=2)
    broken = with_words(
        generate(layout), 0,
        ("language.0SEND_F1+language.0RECV_B0", "language.0SEND_F1 language.0RECV_B0"),
    )  # fmt: skip
    broken = with_words(
        broken, 1, ("language.1SEND_B0+language.1RECV_F1", "language.1SEND_B0 language.1RECV_F1")
    )
    assert simulate(layout, broken).stuck == ()
    assert simulate(layout, broken, rendezvous=True).stuck == (
        "rank 0 waits in language.0SEND_F1",
        "rank 1 waits in language.1SEND_B0",
    )


def test_exchanges_in_another_order_are_reported_with_both_ranks():
    layout = layout_of(2, vision=box(0, dp=2), audio=box(0, dp=2), language=box(0, tp=2))
    wanted = "vision.0F0 vision>EXCHANGE_F0 audio.0F0 audio>EXCHANGE_F0 language.0F0 "
    text = texts(generate(layout))[1]
    assert text.startswith(wanted)
    broken = with_program(generate(layout), 1, text.replace(
        wanted, "vision.0F0 audio.0F0 audio>EXCHANGE_F0 vision>EXCHANGE_F0 language.0F0 ",
    ))  # fmt: skip
    assert simulate(layout, broken).stuck == (
        "rank 0 waits in vision>EXCHANGE_F0",
        "rank 1 waits in audio.0F0",
    )


def test_ranks_that_compute_together_in_another_order_are_reported():
    layout = layout_of(1, vision=box(0, tp=2), audio=box(0, tp=2), language=box(2))
    broken = with_words(
        generate(layout), 1, ("vision.0F0", "audio.0F0"), ("audio.0F0", "vision.0F0")
    )
    assert simulate(layout, broken).stuck[:2] == (
        "rank 0 waits in vision.0F0",
        "rank 1 waits in audio.0F0",
    )


def test_an_exchange_that_one_rank_skips_is_reported_on_the_others():
    layout = layout_of(1, vision=box(0), language=box(0, tp=2))
    broken = with_words(generate(layout), 1, ("vision>EXCHANGE_B0", ""))
    assert simulate(layout, broken).stuck == ("rank 0 waits in vision>EXCHANGE_B0",)


def test_warm_up_counted_from_the_head_is_reported(monkeypatch):
    """With encoders of 1 and 4 stages the shallow one then runs ahead of what language takes."""
    monkeypatch.setattr(
        generator,
        "distance_to_loss",
        lambda _layout, module, stage: 0 if module.is_language else 4 - stage,
    )
    layout = chain(8, vision=1, audio=4, language=1)
    stuck = simulate(layout, generate(layout), rendezvous=True).stuck
    assert stuck[0] == "rank 0 waits in vision>SEND_F2"
    assert len(stuck) == 6


def test_a_program_cut_short_is_reported_where_it_is_missed():
    """A rank that ends early is not stuck itself: those that wait for it are."""
    layout = chain(2, vision=1, language=1)
    broken = with_program(generate(layout), 1, "vision>RECV_F0 language.0F0 language.0B0")
    assert simulate(layout, broken).stuck == ("rank 0 waits in vision>SEND_F1+vision>RECV_B0",)


def test_ranks_of_one_role_share_one_program():
    layout = layout_of(2, vision=box(0, dp=2), language=box(2, tp=2, dp=2, pp=2))
    programs = generate(layout)
    assert [programs.index(program) for program in programs] == [0, 0, 2, 2, 2, 2, 6, 6, 6, 6]
    assert computes(texts(programs)[2]) == ("language.0F0 language.0F1 language.0B0 language.0B1")
