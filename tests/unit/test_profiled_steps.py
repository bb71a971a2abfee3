"""Which steps `--profile` asks for, whether memory is recorded, and the clock of timelines."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from mimo_launch.bench import profiling
from mimo_launch.bench.profiling import Profiler, RankTimes, Traced, on_one_clock
from mimo_launch.cli.train import profiled_steps
from mimo_launch.schedule.actions import parse_action


@pytest.mark.parametrize(
    ("text", "steps"),
    [(None, range(0)), ("10", range(9, 10)), (" 20-22 ", range(19, 22)), ("1-60", range(60))],
)
def test_one_number_is_the_step_of_that_number(text: str | None, steps: range) -> None:
    assert profiled_steps(text, 60) == steps


@pytest.mark.parametrize("text", ["0", "61", "60-61", "3-2", "-1", "1,2", "ten"])
def test_a_step_that_the_run_does_not_have_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        profiled_steps(text, 60)


@pytest.mark.parametrize(("asked", "records"), [(False, 0), (True, 1)])
def test_memory_is_recorded_only_if_it_is_asked_for(
    asked: bool, records: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Recording it makes a step several times as long."""
    recorded: list[str] = []
    monkeypatch.setattr(profiling.dist, "barrier", lambda: None)
    monkeypatch.setattr(profiling, "gather_objects", lambda mine: [mine])
    monkeypatch.setattr(profiling, "record_memory", lambda: recorded.append("on"))
    monkeypatch.setattr(profiling, "dump_memory", lambda file: recorded.append(file.name))
    monkeypatch.setattr(profiling, "profile", lambda **_: _Tracer())
    monkeypatch.setattr(Profiler, "_write_timeline", lambda *_: None)
    monkeypatch.setattr(profiling, "measured", lambda *_: None)
    traced = Traced(ranks=frozenset({0}), memory=asked)
    profiler = Profiler(_session("cuda"), tmp_path, range(2, 3), traced)
    for step in range(4):
        profiler.begin(step)
        profiler.finish(step)
    assert recorded == ["on", "step-3-rank-0.memory.pickle"][: 2 * records]


class _Tracer:
    """Stands for torch's profiler, which needs a GPU."""

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def export_chrome_trace(self, file: str) -> None: ...


def _session(device: str) -> Any:
    clock = SimpleNamespace(start=lambda: None, stop=list)
    return SimpleNamespace(
        rank=0,
        layout=None,
        device=SimpleNamespace(type=device),
        executor=SimpleNamespace(clock=clock),
        progress=SimpleNamespace(enter=lambda phase: None),
    )


def test_ranks_of_several_hosts_are_drawn_on_one_clock() -> None:
    """Host b has run for some days longer than host a; rank 1 left the barrier late."""
    slot, days = (parse_action("language.0F0"),), 3e5
    told = [
        RankTimes(host="a", began=10.0, slots=[(slot, 11.0, 12.0)]),
        RankTimes(host="a", began=10.5, slots=[(slot, 12.0, 13.0)]),
        RankTimes(host="b", began=days, slots=[(slot, days + 3, days + 4)]),
    ]
    found = [(start, end) for ((_, start, end),) in on_one_clock(told)]
    assert found == [(1.0, 2.0), (2.0, 3.0), (3.0, 4.0)]
