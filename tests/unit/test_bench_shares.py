"""Where time goes: by hand, and against the simulator, in which transfers take no time."""

from dataclasses import asdict

import pytest
from hypothesis import example, given, settings
from tests.support.specs import box, layout_specs, spec
from tests.support.timelines import DEEP, SHARED

from mimo_launch.bench.result import spread
from mimo_launch.bench.time_shares import (
    Measured,
    align,
    bubbles_of,
    shares_of,
    step_seconds,
    steps_of,
)
from mimo_launch.comm.step_clock import Noted, Section, TokenExchange
from mimo_launch.layout.layout import build_layout
from mimo_launch.schedule.actions import parse_program
from mimo_launch.schedule.deadlock_proof import simulate
from mimo_launch.schedule.generate import generate
from mimo_launch.spec.spec import Spec

CASES = settings(max_examples=25, deadline=None)
PAIR = spec({"vision": box(0), "language": box(1)})
GRAPH = spec(
    {
        "vision": box(0, dp=2),
        "merger": box(0, tp=2, model={"kind": "connector", "queries": 2}, reads=["vision"]),
        "language": box(2, pp=2),
        "drawer": box(0, dp=2, model={"kind": "flow"}, reads=["language"]),
    },
    microbatches=2,
    mbs=2,
)
Times = tuple[tuple[str | Section | TokenExchange, float, float], ...]


def noted(*times: tuple[str | Section | TokenExchange, float, float]) -> list[Noted]:
    """Return what a clock notes, slots written as in programs."""
    return [
        (parse_program(what)[0] if is_slot(what) else what, start, end)  # type: ignore[arg-type]
        for what, start, end in times
    ]


def is_slot(what: str | Section | TokenExchange) -> bool:
    return isinstance(what, str) and not isinstance(what, Section)


def pair(late: float = 0.0) -> list[list[Noted]]:
    """Return one step of an encoder and a language model that begins `late`, in seconds.

    Rows are on their way for 1 s each way; the rest of each transfer is waiting.
    """
    vision = noted(
        ("vision.0F0", late + 0, late + 2),
        ("vision>SEND_F0", late + 2, late + 2),
        ("vision>RECV_B0", late + 2, late + 9),
        ("vision.0B0", late + 9, late + 12),
        (Section.PARTIAL_SUMS, late + 12, late + 12),
        (Section.TOTALS, late + 12, late + 13),
        (Section.UPDATE, late + 13, late + 14),
        (Section.STEP, late + 0, late + 15),
    )
    language = noted(
        ("vision>RECV_F0", late + 0, late + 3),
        ("language.0F0", late + 3, late + 5),
        ("language.0B0", late + 5, late + 8),
        ("vision>SEND_B0", late + 8, late + 8),
        (Section.PARTIAL_SUMS, late + 8, late + 8),
        (Section.TOTALS, late + 8, late + 13),
        (Section.UPDATE, late + 13, late + 15),
        (Section.STEP, late + 0, late + 15),
    )
    return [vision, language]


def test_a_step_by_hand() -> None:
    by_rank = [steps_of(each) for each in pair()]
    vision, language = shares_of(build_layout(PAIR), by_rank)
    expected = {"compute": 5, "all_to_all": 0, "bridge": 1, "p2p": 0, "gradient_sync": 1}
    for shares, rest in (
        (vision, {"optimizer": 1, "idle": 7}),
        (language, {"optimizer": 2, "idle": 6}),
    ):
        assert {k: v * 15 for k, v in asdict(shares).items()} == pytest.approx(expected | rest)
    # The programs take 12 s from the first start to the last end, 5 s of which each computes.
    assert bubbles_of(by_rank) == pytest.approx([7 / 12, 7 / 12])


def test_who_comes_first_where_tokens_travel_waits() -> None:
    """Each meeting takes as long as on the rank that came last; its other ranks were idle."""
    pair, other = TokenExchange((0, 1)), TokenExchange((2, 3))
    layout = build_layout(spec({"language": box(0, dp=4)}))

    def rank(meeting: TokenExchange, *spans: tuple[float, float], shift: float = 0.0) -> Times:
        return (
            *((meeting, shift + start, shift + end) for start, end in spans),
            ("language.0F0", shift + 0, shift + 10),
            (Section.STEP, shift + 0, shift + 10),
        )

    # Clocks of ranks may differ. In the second meeting the other rank is late.
    times = (
        rank(pair, (1, 5), (6, 7)),
        rank(pair, (3, 5), (5.5, 7), shift=100),
        rank(other, (1, 9), (9, 10)),
        rank(other, (1, 9), (9.5, 10)),
    )
    # Two steps, so that meetings are counted anew in each.
    by_rank = [steps_of(noted(*each, *each)) for each in times]
    first, second, third, last = (
        [10 * each for each in (s.compute, s.all_to_all, s.idle)]
        for s in shares_of(layout, [steps[:1] for steps in by_rank])
    )
    assert first == pytest.approx([5, 2 + 1, 2])
    assert second == pytest.approx([6.5, 2 + 1, 0.5])
    assert third == pytest.approx([1, 8 + 0.5, 0.5])
    assert last == pytest.approx([1.5, 8 + 0.5, 0])
    assert by_rank[0][0].meetings == by_rank[0][1].meetings


def test_what_lies_between_steps_is_idle_and_part_of_the_step_it_leads_to() -> None:
    first, second = pair(), pair(late=20)
    by_rank = [steps_of([*a, *b]) for a, b in zip(first, second, strict=True)]
    assert step_seconds(by_rank) == [15, 20]
    vision, _ = shares_of(build_layout(PAIR), by_rank)
    assert vision.idle * 35 == pytest.approx(2 * 7 + 5)


def test_times_are_shifted_to_the_clock_of_all() -> None:
    early = [steps_of(each) for each in pair()]
    shifted = [
        steps_of(each, shift) for each, shift in zip(pair(late=100), (-100, -100), strict=True)
    ]
    assert shares_of(build_layout(PAIR), shifted) == shares_of(build_layout(PAIR), early)


def test_an_edge_between_stages_is_p2p() -> None:
    made = spec({"vision": box(0), "language": box(1, pp=2)})
    times: tuple[Times, ...] = (
        (("vision>SEND_F0", 0, 0),),
        (("vision>RECV_F0", 0, 1), ("language.0F0", 1, 4), ("language.0SEND_F0", 4, 4)),
        (("language.1RECV_F0", 0, 6), ("language.1F0", 6, 10)),
    )
    by_rank = [steps_of(noted(*rank, (Section.STEP, 0, 10))) for rank in times]
    _, first, last = shares_of(build_layout(made), by_rank)
    assert (first.bridge, first.p2p) == pytest.approx((0.1, 0))
    assert (last.bridge, last.p2p, last.compute, last.idle) == pytest.approx((0, 0.2, 0.4, 0.4))


@CASES
@example(DEEP)
@example(SHARED)
@example(GRAPH)
@given(layout_specs(supported_only=False))
def test_shares_are_what_the_simulator_says(made: Spec) -> None:
    """Simulated transfers arrive when they are sent: all of their time is waiting."""
    layout = build_layout(made)
    simulation = simulate(layout, generate(layout))
    by_rank = [
        steps_of(
            [*((e.slot, e.start, e.stop) for e in events), (Section.STEP, 0, simulation.makespan)]
        )
        for events in simulation.events
    ]
    bubbles = bubbles_of(by_rank)
    for rank, shares in enumerate(shares_of(layout, by_rank)):
        assert sum(asdict(shares).values()) == pytest.approx(1)
        assert shares.compute == pytest.approx(1 - simulation.bubble(rank))
        assert (shares.bridge, shares.p2p) == pytest.approx((0, 0))
        assert bubbles[rank] == (
            None if not layout.modules_of(rank) else pytest.approx(simulation.bubble(rank))
        )


def test_waiting_for_the_other_end_of_a_tied_embedding_is_idle() -> None:
    tied = box(0, pp=2, model={"tied": True, "layers": 2})
    layout = build_layout(spec({"language": tied}))
    early, late = (
        steps_of(noted((Section.PARTIAL_SUMS, start, 8), (Section.STEP, 0, 10))) for start in (2, 6)
    )
    first, last = shares_of(layout, [early, late])
    assert (first.gradient_sync, first.idle) == pytest.approx((0.2, 0.8))
    assert (last.gradient_sync, last.idle) == pytest.approx((0.2, 0.8))


def test_ranks_of_two_hosts_begin_together() -> None:
    """Hosts count seconds from different moments; on a host one rank may begin after another."""
    begins = {"first": (5.0, 5.25), "second": (900.0, 901.0)}
    measured = [
        Measured(
            host=host,
            began=began,
            noted=[(Section.STEP, began, began + 1)],
            allocated=None,
            used=None,
            resident=0,
            skipped=0,
        )
        for host, times in begins.items()
        for began in times
    ]
    starts = [steps[0].span[0] for steps in align(measured)]
    assert starts == [0, 0.25, 0, 1]


def test_the_spread_of_times() -> None:
    five = spread([4.0, 1.0, 2.0, 3.0, 10.0])
    assert (five.minimum, five.q1, five.median, five.q3, five.maximum) == (1, 2, 3, 4, 10)
    one = spread([2.0])
    assert {one.minimum, one.q1, one.median, one.q3, one.maximum} == {2.0}


def test_several_sums_of_a_step_are_one_section_from_the_first_to_the_last() -> None:
    """Each action at the end of a step is noted by itself."""
    sums = Section.PARTIAL_SUMS
    first, second = steps_of(
        noted((sums, 1, 2), (sums, 3, 5), (Section.STEP, 0, 6), (sums, 7, 8), (Section.STEP, 6, 9)),
        shift=10,
    )
    assert (first.sections[sums], second.sections[sums]) == ((11, 15), (17, 18))
