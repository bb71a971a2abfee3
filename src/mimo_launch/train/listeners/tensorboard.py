"""Writes the curves of a run as TensorBoard event files.

Decides: one folder per run, a point per step; where a resumed run goes on, TensorBoard is told to
hide what an earlier process wrote of the same steps.
Relies on: `torch.utils.tensorboard`, which needs the package `tensorboard`.
Leaves: what happens when a write fails to `guard`.
"""

from pathlib import Path
from typing import Any

from mimo_launch.train.events import CheckpointSaved, EvalFinished, Event, RunStarted, StepFinished
from mimo_launch.train.listeners.scalars import scalars

FOLDER = "tensorboard"
# A killed run loses at most this much of its curves; metrics.jsonl loses nothing.
_FLUSH_SECONDS = 10


class TensorBoardListener:
    """Listener that writes into `tensorboard/` of the run folder."""

    def __init__(self, run_dir: Path) -> None:
        self._folder = run_dir / FOLDER
        self._writer: Any = None

    def __call__(self, event: Event) -> None:
        """Write the points of an event."""
        match event:
            case RunStarted():
                self._open(event.first_step)
            case StepFinished() | EvalFinished() | CheckpointSaved():
                for name, value in scalars(event).items():
                    self._writer.add_scalar(name, value, event.step)

    def _open(self, first_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # An evaluation or a checkpoint after `first_step` steps belongs to the earlier process.
        self._writer = SummaryWriter(
            str(self._folder), purge_step=first_step + 1, flush_secs=_FLUSH_SECONDS
        )

    def close(self) -> None:
        """Write what is still in memory, and close the file."""
        if self._writer is not None:
            self._writer.close()
