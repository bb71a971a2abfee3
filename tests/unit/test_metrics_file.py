"""metrics.jsonl: one curve whatever happens."""

import dataclasses
import errno
import json
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.support.histories import USAGE

from mimo_launch.launcher.worker_errors import cause_of
from mimo_launch.layout.step_views import Imbalance
from mimo_launch.runtime.progress import Best, Cause
from mimo_launch.train.events import (
    CheckpointSaved,
    EvalFinished,
    Event,
    PlanCompared,
    RunFinished,
    RunResumed,
    RunStarted,
    RunStopped,
    StepFinished,
    Usage,
    WriteFailed,
)
from mimo_launch.train.history import read_history
from mimo_launch.train.metrics_file import MetricsFile, MetricsNotWritten, as_record, from_record


def started(first_step: int) -> RunStarted:
    return RunStarted(
        name="r",
        plan="0",
        steps=9,
        world_size=1,
        modules=(),
        log_every=1,
        first_step=first_step,
    )


def step(number: int, **other: Any) -> StepFinished:
    known = {
        "loss": 1.0, "grad_norm": 1.0, "grad_norms": {}, "lr": 0.1, "lrs": {}, "tokens": 3,
        "tokens_per_s": 2.0, "skipped": False,
    }  # fmt: skip
    return StepFinished(step=number, **{**known, **other})


def test_the_page_has_every_field_and_shows_a_step_as_it_is_written() -> None:
    """The example is of two replicas, so that it has an imbalance."""
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    lines = [json.loads(line) for line in re.findall(r"^\{.*\}$", page, re.MULTILINE)]
    even = {"vision": Imbalance(before=1.5, after=1.0)}
    written = [
        as_record(step(1, imbalance=even, usage=USAGE)),
        as_record(EvalFinished(step=1, eval_loss=0.5, digit_accuracy=None, samples=8)),
        as_record(RunResumed(step=1, resumed_from="checkpoints/step-00000001", changes=())),
        as_record(
            PlanCompared(
                step=1,
                estimated_step_s=0.5,
                measured_step_s=0.5,
                estimated_memory=1,
                measured_memory=1,
            )
        ),
    ]
    assert [list(line) for line in lines] == [list(each) for each in written]
    assert lines[0]["imbalance"]["vision"].keys() == written[0]["imbalance"]["vision"].keys()
    named = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    kinds = (StepFinished, Usage, EvalFinished, RunResumed, PlanCompared)
    fields = [field.name for kind in kinds for field in dataclasses.fields(kind)]
    fields.remove("usage")  # Its fields are beside the others.
    assert sorted(named) == sorted(fields)


def steps_in(path: Path) -> list[int]:
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


def test_a_run_that_goes_on_drops_what_it_does_again(tmp_path: Path) -> None:
    """The evaluation of the last kept step stays; half a line goes."""
    path = tmp_path / "metrics.jsonl"
    file = MetricsFile(path, print)
    for event in (started(0), step(1), step(2)):
        file(event)
    file(EvalFinished(step=2, eval_loss=0.5, digit_accuracy=None, samples=8))
    file(step(3))
    file.close()
    with path.open("a") as half:
        half.write('{"step": 4, "lo')
    again = MetricsFile(path, print)
    again(started(2))
    again(step(3))
    again.close()
    assert steps_in(path) == [1, 2, 2, 3]
    assert [entry.name for entry in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_a_resumed_run_says_so_behind_the_steps_that_it_keeps(tmp_path: Path) -> None:
    """Half a line, and steps that come again, are dropped first."""
    path = tmp_path / "metrics.jsonl"
    file = MetricsFile(path, print)
    for event in (started(0), step(1), step(2), step(3)):
        file(event)
    file.close()
    with path.open("a") as half:
        half.write('{"step": 4, "lo')
    for changes in ((), ("optimizer.lr: 0.1 -> 0.2",)):
        again = MetricsFile(path, print)
        again(RunResumed(step=2, resumed_from="step-2", changes=changes))
        again(started(2))
        again(step(3))
        again.close()
    assert steps_in(path) == [1, 2, 2, 2, 3]
    found = read_history(path)
    assert [record["step"] for record in found.steps] == [1, 2, 3]
    assert found.resumed_after() == [2]
    assert [record["changes"] for record in found.resumes] == [[], ["optimizer.lr: 0.1 -> 0.2"]]


def test_a_run_that_starts_anew_in_its_folder_drops_everything(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n')
    file = MetricsFile(path, print)
    file(started(0))
    file(step(1))
    file(step(2))
    file.close()
    assert steps_in(path) == [1, 2]


class Disk:
    """Takes the place of `os.write`: has room for `room` bytes."""

    def __init__(self, room: int) -> None:
        self.room, self._write = room, os.write

    def __call__(self, fd: int, data: bytes) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = self._write(fd, data[: self.room])
        self.room -= written
        return written


def test_a_full_disk_loses_no_line_and_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "metrics.jsonl"
    told: list[Event] = []
    file = MetricsFile(path, told.append)
    file(started(0))
    disk = Disk(room=20)
    monkeypatch.setattr(os, "write", disk)
    for number in (1, 2, 3):
        file(step(number))
    assert [type(event) for event in told] == [WriteFailed]
    assert len(path.read_bytes()) == 20
    disk.room = 10_000
    saved = CheckpointSaved(step=3, checkpoint="c", num_bytes=1, stall_s=0.0, seconds=0.0)
    file(saved)
    assert steps_in(path) == [1, 2, 3]
    disk.room = 0
    file(step(4))
    assert len(told) == 2
    file.close()


def test_steps_that_come_again_are_dropped_once_a_full_disk_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "metrics.jsonl"
    file = MetricsFile(path, print)
    for event in (started(0), step(1), step(2), step(3)):
        file(event)
    file.close()

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    told: list[Event] = []
    again = MetricsFile(path, told.append)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        again(started(2))
        again(step(3))
    assert [type(event) for event in told] == [WriteFailed]
    assert steps_in(path) == [1, 2, 3]
    again(step(4))
    again.close()
    assert steps_in(path) == [1, 2, 3, 4]
    assert [entry.name for entry in tmp_path.iterdir()] == ["metrics.jsonl"]


@pytest.mark.parametrize("stops", [False, True])
@pytest.mark.parametrize(
    "end",
    [
        RunFinished(steps=2, seconds=1.0, skipped=0, saved=True),
        RunStopped(step=2, signal=15, checkpoint=None),
    ],
)
def test_records_that_cannot_be_written_at_the_end_are_an_error(
    end: Event, stops: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run without its last records has failed; another attempt would not bring them back."""
    path = tmp_path / "metrics.jsonl"
    file = MetricsFile(path, print, stops_on_error=stops)
    file(started(0))
    disk = Disk(room=20)
    monkeypatch.setattr(os, "write", disk)
    for number in (1, 2):
        with suppress(OSError):
            file(step(number))
    with pytest.raises(MetricsNotWritten, match=rf"the last 2 records .* No space.*'{path}'") as e:
        file(end)
    assert cause_of(e.value) is Cause.FINAL
    file.close()
    room = MetricsFile(path, print)
    disk.room = 10_000
    room(step(3))
    room(end)


def test_a_full_disk_ends_the_run_if_it_should(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the file, since it is all that the report of the run says."""
    path = tmp_path / "metrics.jsonl"
    file = MetricsFile(path, print, stops_on_error=True)
    monkeypatch.setattr(os, "write", Disk(room=0))
    with pytest.raises(OSError, match=rf"No space left.*: '{path}'"):
        file(step(1))
    with pytest.raises(OSError, match=rf"No space left.*: '{path}'"):
        file.close()


def test_an_evaluation_without_accuracy_is_read_as_it_was_written() -> None:
    for accuracy in (None, 0.5):
        event = EvalFinished(step=3, eval_loss=1.0, digit_accuracy=accuracy, samples=2)
        assert from_record(json.loads(json.dumps(as_record(event)))) == event


def test_the_record_of_an_early_end_has_the_best_step(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    file = MetricsFile(path, lambda event: None)
    for number in range(1, 5):
        file(step(number))
    best = Best(2, 0.5, since=2)
    file(RunFinished(steps=4, seconds=1.0, skipped=0, best=best, ended_early=True))
    file.close()
    last = json.loads(path.read_text().splitlines()[-1])
    assert last == {"step": 4, "ended_early": True, "best_step": 2}
    assert read_history(path).ended_early


def test_a_number_that_is_not_finite_is_null() -> None:
    nan = float("nan")
    event = step(1, loss=nan, grad_norm=float("inf"), grad_norms={"vision": nan, "language": 1.0})
    record = as_record(event)
    assert (record["loss"], record["grad_norm"]) == (None, None)
    assert record["grad_norms"] == {"vision": None, "language": 1.0}
