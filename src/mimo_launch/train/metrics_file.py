"""Writes the file `metrics.jsonl` of a run as steps happen, and knows events as its records.

Decides: one JSON object per line, written immediately, so that a killed run keeps its metrics;
which fields a record leaves out, and that a non-finite number is null; that a resumed run drops the
steps that it will repeat; that nothing is lost while the run lasts if the disk is full, and that a
run fails if its records cannot be written at its end.
Relies on: `events` for the fields; no torch.
Leaves: reading whole files to `history`.
"""

import json
import math
import os
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from mimo_launch.layout.step_views import Imbalance
from mimo_launch.train.events import (
    CheckpointSaved,
    EvalFinished,
    Event,
    Listener,
    PlanCompared,
    Reading,
    RunFinished,
    RunResumed,
    RunStarted,
    RunStopped,
    StepFinished,
    Usage,
    WriteFailed,
)

METRICS = "metrics.jsonl"
# Fields that a record does not have where they are None.
_LEFT_OUT = (
    *("aux_loss", "mfu", "losses", "eval_losses", "drawn_recognised", "code_accuracy"),
    *("eval_set", "source_losses", "cached"),
)


class MetricsNotWritten(Exception):
    """A run has ended, and some of its records could not be written; the message says which."""

    restartable = False


class MetricsFile:
    """A listener that appends steps and evaluations to a JSON-lines file.

    Lines that cannot be written are kept and tried again at every event; `tell` gets the first
    failure. With `stops_on_error`, a failure is raised instead. At the end of the run, unwritten
    lines raise MetricsNotWritten, before another listener reports success.
    """

    def __init__(self, path: Path, tell: Listener, *, stops_on_error: bool = False) -> None:
        self._path, self._tell, self._stops = path, tell, stops_on_error
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._pending = b""
        self._keep_steps: int | None = None
        self._failing = False

    def __call__(self, event: Event) -> None:
        """Write a step, an evaluation or a comparison with the plan, and nothing else."""
        if isinstance(event, RunResumed):
            # It is written once the steps that the run repeats have been dropped.
            self._pending += json.dumps(as_record(event)).encode() + b"\n"
            return
        if isinstance(event, RunStarted):
            self._keep_steps = event.first_step
        elif isinstance(event, StepFinished | EvalFinished | PlanCompared):
            self._pending += json.dumps(as_record(event)).encode() + b"\n"
        elif not isinstance(event, CheckpointSaved | RunFinished | RunStopped):
            return
        if isinstance(event, RunFinished) and event.ended_early and event.best is not None:
            end = {"step": event.steps, "ended_early": True, "best_step": event.best.step}
            self._pending += json.dumps(end).encode() + b"\n"
        try:
            self._write()
            if isinstance(event, CheckpointSaved):
                # Metrics must reach at least as far as the checkpoint from which a run resumes.
                os.fsync(self._fd)
        except OSError as error:
            if isinstance(event, RunFinished | RunStopped):
                raise self._lost(error) from error
            if self._stops:
                raise self._named(error) from error
            if not self._failing:
                self._failing = True
                self._tell(WriteFailed(file=str(self._path), reason=str(error)))

    def _write(self) -> None:
        if self._keep_steps is not None:
            self._drop_after(self._keep_steps)
            self._keep_steps = None
        while self._pending:
            # A nearly full disk may accept only a part.
            written = os.write(self._fd, self._pending)
            self._pending = self._pending[written:]
        self._failing = False

    def _named(self, error: OSError) -> OSError:
        """Return the same error with the name of this file, which a descriptor's error lacks."""
        return OSError(error.errno, error.strerror, str(self._path))

    def _lost(self, error: OSError) -> MetricsNotWritten:
        """Return the error that names the lost records, and drop them."""
        number, self._pending = self._pending.count(b"\n"), b""
        return MetricsNotWritten(
            f"the last {number} records of the run could not be written: {self._named(error)}\n"
            "checkpoints are not affected; free some space, or write elsewhere with `--runs`"
        )

    def _drop_after(self, step: int) -> None:
        """Keep the records of the first `step` steps, without an incomplete line."""
        lines = self._path.read_bytes().splitlines(keepends=True)
        kept = [line for line in lines if line.endswith(b"\n") and _step_of(line) <= step]
        if kept == lines:
            return
        # Write under another name first, so that a crash leaves the old file or the new one.
        fresh = self._path.with_name(self._path.name + ".new")
        with fresh.open("wb") as file:
            file.writelines(kept)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._path)
        os.close(self._fd)
        self._fd = os.open(self._path, os.O_WRONLY | os.O_APPEND)

    def close(self) -> None:
        """Write the remaining lines, if possible now, and close the file."""
        try:
            self._write()
        except OSError as error:
            if self._stops:
                raise self._named(error) from error
        finally:
            os.close(self._fd)


def _step_of(line: bytes) -> float:
    """Return the step of a record; infinity for a line that is not a record."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")


def as_record(event: Event) -> dict[str, Any]:
    """Return an event as one JSON-able object, with null for a non-finite number."""
    record: dict[str, Any] = _finite(asdict(event))
    if isinstance(event, StepFinished):
        for key in ("imbalance", "reading", "zero_grads"):
            if not record[key]:
                del record[key]
        record |= record.pop("usage") or {}
    if isinstance(event, PlanCompared):
        record = {name: value for name, value in record.items() if value is not None}
    for key in _LEFT_OUT:
        if key in record and record[key] is None:
            del record[key]
    return record


def from_record(record: dict[str, Any]) -> "StepFinished | EvalFinished | None":
    """Return the step or evaluation that `as_record` wrote; None for any other record.

    Non-finite numbers become NaN; fields that an earlier version did not write are missing.
    """
    known = _with_nan({**record})
    usage = {each.name: known.pop(each.name, None) for each in fields(Usage)}
    kind: type[StepFinished | EvalFinished] = StepFinished if "loss" in known else EvalFinished
    names = {each.name for each in fields(kind)}
    try:
        if kind is StepFinished:
            known["usage"] = Usage(**usage) if usage["time"] else None
            known["imbalance"] = {n: Imbalance(**x) for n, x in known.get("imbalance", {}).items()}
            known["reading"] = Reading(**known["reading"]) if "reading" in known else None
        event = kind(**{name: value for name, value in known.items() if name in names})
    except (TypeError, AttributeError):
        return None
    parts = (event, getattr(event, "usage", None), getattr(event, "reading", None))
    return event if all(map(_has_numbers, parts)) else None


def _has_numbers(event: Any) -> bool:
    """Return whether all numeric fields hold numbers: the file may come from anywhere."""
    if event is None:
        return True
    return all(
        isinstance(getattr(event, each.name), int | float)
        if each.type in (int, float, bool)
        else isinstance(found := getattr(event, each.name), dict)
        and all(isinstance(number, int | float) for number in found.values())
        for each in fields(event)
        if each.type in (int, float, bool, dict[str, float], dict[str, int])
    )


def _with_nan(values: dict[str, Any]) -> dict[str, Any]:
    """Return values with NaN for each null, except in a field where null is a value."""
    return {
        name: _with_nan(value)
        if isinstance(value, dict)
        else math.nan
        if value is None and name != "digit_accuracy"
        else value
        for name, value in values.items()
    }


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
