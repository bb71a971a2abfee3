"""Writes events to the run folder.

Decides: one JSON object per line, flushed as it happens, so that a killed run keeps what it did.
Relies on: `events` for the fields.
Leaves: drawing to `cli`.
"""

import json
from pathlib import Path

from mimo_launch.train.events import EvalFinished, Event, StepFinished, as_record


class MetricsFile:
    """Listener that appends steps and evaluations to a JSON-lines file."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")

    def __call__(self, event: Event) -> None:
        """Write a step or an evaluation; other events are not metrics."""
        if isinstance(event, StepFinished | EvalFinished):
            self._file.write(json.dumps(as_record(event)) + "\n")
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
