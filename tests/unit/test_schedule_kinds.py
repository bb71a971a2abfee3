"""GPipe and interleaved 1F1B: tables by hand, and the closed forms of time and memory."""

from pathlib import Path

import pytest
from tests.support.programs import chain, computes, layout_of, peaks, texts, timeline
from tests.support.specs import box

from mimo_launch.layout.layout import build_layout
from mimo_launch.schedule.actions import Kind, parse_program
from mimo_launch.schedule.clock import times_in_order
from mimo_launch.schedule.deadlock_proof import simulate
from mimo_launch.schedule.generate import generate, generate_forward
from mimo_launch.schedule.simulation_result import Costs
from mimo_launch.spec.load import load_spec

TOPOLOGIES = Path(__file__).parents[2] / "topologies"
HALF = Costs(forward={"language": 0.5}, backward={"language": 0.5})


def test_gpipe_runs_all_forwards_and_then_all_backwards():
    layout = chain(2, language=2, kind="gpipe", vision=1)
    assert texts(generate(layout)) == [
        "vision.0F0 vision>SEND_F0 vision.0F1 vision>SEND_F1+vision>RECV_B0 vision.0B0 "
        "vision>RECV_B1 vision.0B1",
        "vision>RECV_F0 language.0F0 language.0SEND_F0+vision>RECV_F1 "
        "language.0F1 language.0SEND_F1+language.0RECV_B0 "
        "language.0B0 vision>SEND_B0+language.0RECV_B1 language.0B1 vision>SEND_B1",
        "language.1RECV_F0 language.1F0 language.1RECV_F1 language.1F1 "
        "language.1B0 language.1SEND_B0 language.1B1 language.1SEND_B1",
    ]
    simulation = simulate(layout, generate(layout))
    assert [timeline(simulation, rank) for rank in range(3)] == [
        "FF....bb",
        ".FF..bb.",
        "..FFbb..",
    ]


@pytest.mark.parametrize("m", [1, 2, 5, 8])
@pytest.mark.parametrize(("a", "p"), [(0, 1), (0, 4), (1, 2), (3, 2), (2, 4)])
def test_gpipe_takes_as_long_as_1f1b_and_keeps_every_microbatch(a, p, m):
    layout = chain(m, language=p, kind="gpipe", **({"vision": a} if a else {}))
    simulation = simulate(layout, generate(layout))
    assert simulation.makespan == 2 * (m + a + p - 1)
    assert peaks(layout, simulation, "language") == [m] * p
    if a:
        assert peaks(layout, simulation, "vision") == [m] * a


def test_gpipe_runs_once_per_group_of_an_encoder_in_phases():
    layout = layout_of(4, 2, "gpipe", vision=box(0), language=box(0))
    assert computes(texts(generate(layout))[0]) == (
        "vision.0F0 language.0F0 language.0F1 language.0B0 language.0B1 vision.0B0 "
        "vision.0F1 language.0F2 language.0F3 language.0B2 language.0B3 vision.0B1"
    )


def test_interleaved_follows_the_figure_of_the_paper():
    """Figure 4 of arXiv:2104.04473 at 2 ranks: microbatches take turns in runs of p."""
    layout = chain(4, language=2, kind="interleaved", v=2)
    assert [computes(text).replace("language.", "") for text in texts(generate(layout))] == [
        "0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3",
        "1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3",
    ]


def test_interleaved_transfers_wrap_from_the_last_rank_to_the_first():
    layout = chain(2, language=2, kind="interleaved", v=2)
    assert texts(generate(layout))[0] == (
        "language.0F0 language.0SEND_F0 language.0F1 language.0SEND_F1+language.2RECV_F0 "
        "language.2F0 language.2SEND_F0+language.2RECV_F1 "
        "language.2F1 language.2SEND_F1+language.2RECV_B0 "
        "language.2B0 language.2SEND_B0+language.2RECV_B1 "
        "language.2B1 language.2SEND_B1+language.0RECV_B0 "
        "language.0B0 language.0RECV_B1 language.0B1"
    )


@pytest.mark.parametrize("v", [2, 3, 4])
@pytest.mark.parametrize("p", [2, 3, 4, 8])
@pytest.mark.parametrize("runs", [1, 2, 3])
def test_interleaved_has_the_bubble_of_the_closed_form(p, v, runs):
    """(p - 1) / (m v) of the ideal time (arXiv:2104.04473, section 2.2), for backward 2, too."""
    m = p * runs
    layout = chain(m, language=p, kind="interleaved", v=v)
    for backward in (1, 2):
        costs = Costs(forward={"language": 1 / v}, backward={"language": backward / v})
        simulation = simulate(layout, generate(layout), costs)
        ideal = m * (1 + backward)
        assert simulation.stuck == ()
        assert (simulation.makespan - ideal) / ideal == pytest.approx((p - 1) / (m * v))


@pytest.mark.parametrize(("p", "v", "m"), [(2, 2, 8), (4, 2, 8), (4, 3, 16), (8, 2, 16)])
def test_interleaved_keeps_a_bounded_number_of_microbatches(p, v, m):
    """Warm-up, and one more: 2(p - s - 1) + (v - 1) p + 1 over the stages of place s."""
    layout = chain(m, language=p, kind="interleaved", v=v)
    simulation = simulate(layout, generate(layout))
    for rank in range(p):
        live = peak = 0
        for event in simulation.events[rank]:
            kind = event.slot[0].kind
            live += (kind is Kind.FORWARD) - (kind is Kind.BACKWARD)
            peak = max(peak, live)
        assert peak == min(m * v, 2 * (p - rank - 1) + (v - 1) * p + 1)
    of_stages = peaks(layout, simulation, "language")
    assert max(of_stages) <= 2 * p
    assert of_stages[-1] <= p


@pytest.mark.parametrize(("depth", "m"), [(1, 4), (2, 8), (3, 12)])
def test_an_encoder_ahead_of_an_interleaved_model_runs_as_it_takes_microbatches(depth, m):
    """At no point does language wait for an encoder that takes as long as one of its ranks."""
    layout = chain(m, language=4, kind="interleaved", v=2, vision=depth)
    programs = generate(layout)
    simulation = simulate(layout, programs, HALF)
    assert simulation.stuck == ()
    alone = chain(m, language=4, kind="interleaved", v=2)
    pipeline = simulate(alone, generate(alone), HALF).makespan
    # Runs of 4 microbatches in half the time that the encoder takes for them.
    assert pipeline + 2 * depth <= simulation.makespan <= pipeline + 2 * depth + 4
    order = [computes(text).split() for text in texts(programs)]
    for stage in range(depth):
        assert [a for a in order[stage] if "F" in a] == [f"vision.{stage}F{j}" for j in range(m)]


def test_interleaved_and_phases_mix_in_one_step():
    layout = layout_of(4, 2, "interleaved", 2, vision=box(0), language=box(0, pp=2))
    assert simulate(layout, generate(layout)).stuck == ()
    assert computes(texts(generate(layout))[0]) == (
        "vision.0F0 language.0F0 language.0F1 language.2F0 language.2F1 "
        "language.2B0 language.2B1 language.0B0 language.0B1 vision.0B0 "
        "vision.0F1 language.0F2 language.0F3 language.2F2 language.2F3 "
        "language.2B2 language.2B3 language.0B2 language.0B3 vision.0B1"
    )


def test_evaluation_takes_turns_between_virtual_stages():
    layout = chain(4, language=2, kind="interleaved", v=2)
    programs = generate_forward(layout)
    assert computes(texts(programs)[1]) == " ".join(
        f"language.{stage}F{j}" for run in (0, 2) for stage in (1, 3) for j in (run, run + 1)
    )
    assert simulate(layout, programs).makespan == 2 * 4 + 1


@pytest.mark.parametrize("p", [2, 4, 8])
def test_few_sends_wait_for_their_receive(p):
    """So many results a sender keeps at most: no transport needs to hold more."""
    for kind, v, most in (("gpipe", 1, 0), ("1f1b", 1, 1), ("interleaved", 2, p)):
        layout = chain(2 * p, language=p, kind=kind, v=v)
        simulation = simulate(layout, generate(layout))
        assert max(simulation.peak_posted) <= most


@pytest.mark.parametrize("path", sorted(TOPOLOGIES.rglob("*.yaml")), ids=lambda path: path.stem)
def test_what_runs_in_step_also_ends_under_rendezvous_sends(path: Path) -> None:
    """Then nothing that holds a host up until its transfers have met can hang a step."""
    spec = load_spec(path).spec
    assert spec is not None
    layout = build_layout(spec)
    stuck = simulate(layout, generate(layout), rendezvous=True).stuck
    assert bool(stuck) == (spec.schedule.kind in ("interleaved", "bubble_filling"))


def test_an_action_waits_for_the_end_of_what_it_reads() -> None:
    """Two stages with a microbatch each way, and a tick for each action."""
    first, second = (
        parse_program("language.0F0 language.0B0"),
        parse_program("language.1F0 language.1B0"),
    )
    order = [first[0], *second, first[1]]
    before = dict(zip(order[1:], order, strict=False))
    starts = times_in_order([first, second], lambda each: [before[each]] if each in before else [])
    assert [starts[each] for each in order] == [0, 1, 2, 3]
