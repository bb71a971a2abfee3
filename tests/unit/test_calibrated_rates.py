"""Constants that `bench --calibrate` makes of measurements, of a machine with known ones."""

from collections.abc import Iterator
from dataclasses import replace
from statistics import median
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.specs import box, spec

from mimo_launch.bench import calibrate
from mimo_launch.bench.links import MeasuredLink
from mimo_launch.bench.time_shares import RankStep
from mimo_launch.comm.step_clock import Section
from mimo_launch.estimate.device_constants import Calibration
from mimo_launch.layout.layout import build_layout
from mimo_launch.schedule.actions import parse_program

MADE = spec({"language": box(0, model={"layers": 4}, dp=2)}, microbatches=3)
GIVEN = replace(Calibration(), action_overhead=0.0, step_overhead=0.0)


def measured(parts: Any = (), by_rank: Any = (), held: Any = ()) -> Any:
    """Measurements on two GPUs; `by_rank` has the steps of each."""
    session = SimpleNamespace(spec=MADE, layout=build_layout(MADE))
    session.device = SimpleNamespace(type="cuda")
    own = [SimpleNamespace(allocated=each) for each in held]
    found = calibrate._Measurements(session, parts, own)
    found.__dict__["by_rank"] = by_rank
    return found


def steps(seconds: float, rest: float = 0.0) -> Iterator[RankStep]:
    """Three steps whose forwards and backwards take so long; an update of 1 s and `rest` follow."""
    program = parse_program(" ".join(f"language.0F{n} language.0B{n}" for n in range(3)))
    each = seconds / len(program)
    for number in range(3):
        begin = number * (seconds + 1 + rest)
        end = begin + seconds
        times = [(slot, begin + n * each, begin + (n + 1) * each) for n, slot in enumerate(program)]
        sections = {Section.UPDATE: (end, end + 1), Section.STEP: (begin, end + 1 + rest)}
        yield RankStep(slots=times, sections=sections)


def passes() -> float:
    """The passes that the host starts for a step of a rank."""
    unit = replace(GIVEN, layer_overhead=1e6)
    costs = next(measured().costs(unit))
    return sum(times * sum(cost.starting) for cost, times in costs)


def kernels() -> float:
    costs = next(measured().costs(replace(GIVEN, layer_overhead=0.0)))
    return sum(times * sum(cost.mean) for cost, times in costs)


def test_links_of_hosts_and_between_hosts_are_told_apart() -> None:
    def part(host: str, *links: tuple[tuple[int, ...], float, float | None]) -> Any:
        both = [MeasuredLink(*each) for each in links]
        return SimpleNamespace(host=host, collectives=both[:-1], channels=both[-1:])

    parts = [
        part("a", ((0, 1), 2e-6, 100.0), ((0, 1), 4e-6, None), ((0, 1), 8e-6, 30.0)),
        part("a", ((0, 1), 6e-6, 300.0), ((0, 2), 1e-3, 7.0), ((1, 2), 1e-3, 9.0)),
        part("b", ((0, 2), 1e-3, 5.0)),
    ]
    assert dict(measured(parts).links()) == {
        "collective_latency": pytest.approx(4.0),
        "collective_bandwidth": 200.0,
        "p2p_latency": pytest.approx(8.0),
        "p2p_bandwidth": 30.0,
        "network_bandwidth": median([7.0, 9.0, 5.0]),
    }


def test_memory_that_the_allocator_cannot_use_is_what_it_reserves_beyond_tensors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(calibrate, "device_name", lambda device: "a GPU")
    part = SimpleNamespace(host="a", rates={}, starts={}, collectives=[], channels=[])
    held = [(100, 110), None, (100, 130), (200, 250)]
    found = dict(measured([part], held=held).constants())
    assert found["allocator_slack"] == pytest.approx(0.25)


def test_starts_are_those_of_a_layer_against_a_plain_block_or_an_encoder() -> None:
    starts = {"block": 2.0, "encoder": 1.0, "experts": 6.0, "dynamic": 1.5}
    part = SimpleNamespace(host="a", rates={}, starts=starts, collectives=[], channels=[])
    found = dict(measured([part]).starts())
    assert found == {"experts_starts": 3.0, "dynamic_starts": 1.5}


def test_a_host_that_limits_a_step_shows_what_a_layer_takes_it() -> None:
    """On one rank its kernels do not: what they take is the most that a layer can."""
    slow = passes() * 5e-3
    assert slow > 2 * kernels()
    found = measured(by_rank=[[*steps(slow)], [*steps(kernels())]])
    assert found.layer_overhead(GIVEN) == pytest.approx(5000.0)
    hidden = measured(by_rank=[[*steps(kernels())], [*steps(1.05 * kernels())]])
    assert hidden.layer_overhead(replace(GIVEN, layer_overhead=1e9)) == pytest.approx(
        1e6 * kernels() / passes()
    )
    assert hidden.layer_overhead(replace(GIVEN, layer_overhead=1e-6)) == 1e-6


def test_what_other_constants_do_not_explain_is_the_end_of_a_step() -> None:
    rest = measured(by_rank=[[*steps(passes() * 5e-3, rest=2.0)]] * 2).overheads(GIVEN)
    assert rest["step_overhead"] == pytest.approx(2e3, rel=1e-3)


def test_a_context_takes_what_neither_the_allocator_nor_nccl_holds() -> None:
    rows = [SimpleNamespace(ranks=(0, 2), memory=SimpleNamespace(device=5))]
    rows.append(SimpleNamespace(ranks=(1,), memory=SimpleNamespace(device=7)))
    of_ranks: Any = [
        SimpleNamespace(used=100, allocated=(40, 60)),
        SimpleNamespace(used=100, allocated=(60, 70)),
        SimpleNamespace(used=None, allocated=(40, 60)),
    ]
    estimates: Any = SimpleNamespace(ranks=rows)
    assert calibrate.contexts(estimates, of_ranks) == [100 - 60 - 5, 100 - 70 - 7]
