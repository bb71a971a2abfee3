"""The cells of shared memory in which workers note their progress and learn when to stop.

Decides: two common cells, followed by one block per worker: its integers, and the bytes of a
message; the memory has no name in the file system, so nothing remains even when the launcher is
killed. Workers inherit the memory, or map the memory file that they receive.
Relies on: `runtime.progress` for the cells of a worker.
Leaves: the meaning of the cells to `watchdog` and `verdict`.
"""

import mmap
import os
from collections.abc import MutableSequence
from dataclasses import dataclass
from typing import cast

from mimo_launch.runtime.progress import Cause, Cell, Phase, Progress

# The cells that all workers share: the signal that asks them to stop, and whether a second came.
# The blocks of the workers follow.
_STOP, _AT_ONCE = 0, 1
_COMMON = 2
# Room for an error message where no file can be written; a multiple of the cell size.
_MESSAGE_BYTES = 1000
_BLOCK = len(Cell) + _MESSAGE_BYTES // 8


@dataclass(frozen=True, slots=True)
class WorkerProgress:
    """The contents of one worker's cells; times are of the monotonic clock, in nanoseconds."""

    phase: Phase
    step: int
    position: int
    changed: int
    error_time: int
    cause: Cause
    ended_by: int
    alive: int


class HostCells:
    """The cells of all workers of one host, by place.

    They are in `file`, the descriptor of an empty memory file, if processes need them that this one
    has not forked.
    """

    def __init__(self, num_workers: int, file: int = -1) -> None:
        size = 8 * (_COMMON + num_workers * _BLOCK)
        if file >= 0:
            os.ftruncate(file, size)
        self.shared = mmap.mmap(file, size)
        self._cells = memoryview(self.shared).cast("q")

    def ask_to_stop(self, signal: int) -> None:
        """Ask every worker to stop after its step, as if it had got `signal`."""
        self._cells[_STOP] = signal

    @property
    def asked_to_stop(self) -> bool:
        """Whether the workers have been asked to stop."""
        return bool(self._cells[_STOP])

    @property
    def asked_to_end(self) -> bool:
        """Whether a second signal made a worker end immediately."""
        return bool(self._cells[_AT_ONCE])

    def read(self, place: int) -> WorkerProgress:
        """Return the progress of a worker."""
        start = _COMMON + place * _BLOCK
        cells = self._cells[start : start + len(Cell)].tolist()
        return WorkerProgress(
            phase=Phase(cells[Cell.PHASE]),
            step=cells[Cell.STEP],
            position=cells[Cell.POSITION],
            changed=cells[Cell.CHANGED],
            error_time=cells[Cell.FAILED],
            cause=Cause(cells[Cell.CAUSE]),
            ended_by=cells[Cell.SIGNAL],
            alive=cells[Cell.ALIVE],
        )

    def message(self, place: int) -> str:
        """Return a worker's message about its error, or ""."""
        start = _COMMON + place * _BLOCK + len(Cell)
        said = self._cells[start : start + _MESSAGE_BYTES // 8]
        return bytes(said).rstrip(b"\0").decode(errors="replace")


class WorkerCells:
    """One worker's view of its cells."""

    def __init__(self, shared: mmap.mmap, place: int) -> None:
        everything = memoryview(shared).cast("q")
        start = _COMMON + place * _BLOCK
        self._common = everything[:_COMMON]
        self._message = everything[start + len(Cell) : start + _BLOCK].cast("B")
        cells = cast("MutableSequence[int]", everything[start : start + len(Cell)])
        self.progress = Progress(cells)

    def say(self, message: str) -> None:
        """Store the beginning of a message."""
        said = message.encode(errors="backslashreplace")[:_MESSAGE_BYTES]
        # Pad the message to overwrite an earlier one.
        self._message[:] = said.ljust(_MESSAGE_BYTES, b"\0")

    def stop(self) -> int:
        """Return the signal after which this worker should stop, or 0."""
        return self._common[_STOP]

    def note_signal(self, number: int, at_once: bool) -> None:
        """Note a signal to this worker, which torchrun or srun started."""
        self._common[_STOP] = number
        if at_once:
            self._common[_AT_ONCE] = True
