"""Writes events to the run folder.

Decides: one JSON object per line, written as it happens, so that a killed run keeps what it did; a
run that goes on drops what it will do again; a full disk loses nothing while the run lasts.
Relies on: `events` for the fields.
Leaves: drawing to `cli`.
"""

import json
import os
from pathlib import Path

from mimo_launch.train.events import (
    CheckpointSaved,
    EvalFinished,
    Event,
    Listener,
    RunStarted,
    StepFinished,
    WriteFailed,
    as_record,
)


class MetricsFile:
    """Listener that appends steps and evaluations to a JSON-lines file.

    Lines that cannot be written are kept and tried again at every event; `tell` hears of the first
    failure. With `stops_on_error` a failure is raised instead.
    """

    def __init__(self, path: Path, tell: Listener, *, stops_on_error: bool = False) -> None:
        self._path, self._tell, self._stops = path, tell, stops_on_error
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._pending = b""
        self._keep_steps: int | None = None
        self._failing = False

    def __call__(self, event: Event) -> None:
        """Write a step or an evaluation; other events are not metrics."""
        if isinstance(event, RunStarted):
            self._keep_steps = event.first_step
        elif isinstance(event, StepFinished | EvalFinished):
            self._pending += json.dumps(as_record(event)).encode() + b"\n"
        elif not isinstance(event, CheckpointSaved):
            return
        try:
            self._write()
            if isinstance(event, CheckpointSaved):
                # Metrics are never behind the checkpoint that a run goes on from.
                os.fsync(self._fd)
        except OSError as error:
            if self._stops:
                raise
            if not self._failing:
                self._failing = True
                self._tell(WriteFailed(file=str(self._path), reason=str(error)))

    def _write(self) -> None:
        if self._keep_steps is not None:
            self._drop_after(self._keep_steps)
            self._keep_steps = None
        while self._pending:
            # Part of it may fit on a disk that is almost full.
            written = os.write(self._fd, self._pending)
            self._pending = self._pending[written:]
        self._failing = False

    def _drop_after(self, step: int) -> None:
        """Leave the records of the first `step` steps, and no half of a line."""
        lines = self._path.read_bytes().splitlines(keepends=True)
        kept = [line for line in lines if line.endswith(b"\n") and _step_of(line) <= step]
        if kept == lines:
            return
        # Under another name first: a crash leaves the old file or the new one.
        fresh = self._path.with_name(self._path.name + ".new")
        with fresh.open("wb") as file:
            file.writelines(kept)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._path)
        os.close(self._fd)
        self._fd = os.open(self._path, os.O_WRONLY | os.O_APPEND)

    def close(self) -> None:
        """Write what is left, if it fits now, and close the file."""
        try:
            self._write()
        except OSError:
            if self._stops:
                raise
        finally:
            os.close(self._fd)


def _step_of(line: bytes) -> float:
    """Return the step of a record; a line that is no record belongs to none."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")
