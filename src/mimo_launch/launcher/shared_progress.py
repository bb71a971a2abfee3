"""The cells of shared memory in which workers note their progress and learn when to stop.

Decides: a common cell, followed by one block of integers per worker; the memory has no name in the
file system, so nothing is left behind even when the launcher is killed.
Relies on: `runtime.progress` for the cells of a worker.
Leaves: the meaning of the cells to `watchdog` and `verdict`.
"""

from collections.abc import MutableSequence
from dataclasses import dataclass
from multiprocessing.sharedctypes import RawArray
from typing import Any, cast

from mimo_launch.runtime.progress import Cause, Cell, Phase, Progress

# The cell that all workers share: the signal after which to stop. The workers' cells follow.
_STOP = 0
_COMMON = 1
# For the message of an error where no file can be written.
_MESSAGE_BYTES = 1000


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


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """What launcher and workers share: cells, and the bytes of messages."""

    cells: Any
    messages: Any


class HostCells:
    """The cells of all workers of one host, by local rank."""

    def __init__(self, num_workers: int) -> None:
        self.shared = SharedMemory(
            RawArray("q", _COMMON + num_workers * len(Cell)),
            RawArray("c", num_workers * _MESSAGE_BYTES),
        )

    def ask_to_stop(self, signal: int) -> None:
        """Ask every worker to stop after its step, as if it had got `signal`."""
        self.shared.cells[_STOP] = signal

    @property
    def asked_to_stop(self) -> bool:
        """Whether the workers have been asked to stop."""
        return bool(self.shared.cells[_STOP])

    def read(self, local_rank: int) -> WorkerProgress:
        """Return the progress of a worker."""
        start = _COMMON + local_rank * len(Cell)
        cells = self.shared.cells[start : start + len(Cell)]
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

    def message(self, local_rank: int) -> str:
        """Return a worker's message about its error, or ""."""
        start = local_rank * _MESSAGE_BYTES
        said = self.shared.messages[start : start + _MESSAGE_BYTES]
        return bytes(said).rstrip(b"\0").decode(errors="replace")


class WorkerCells:
    """One worker's view of its cells."""

    def __init__(self, shared: SharedMemory, local_rank: int) -> None:
        everything = cast("MutableSequence[int]", memoryview(shared.cells).cast("B").cast("q"))
        self._messages, self._first = shared.messages, local_rank * _MESSAGE_BYTES
        start = _COMMON + local_rank * len(Cell)
        self._common = everything[:_COMMON]
        self.progress = Progress(everything[start : start + len(Cell)])

    def say(self, message: str) -> None:
        """Store the beginning of a message."""
        said = message.encode(errors="backslashreplace")[:_MESSAGE_BYTES]
        # Padded, so that nothing of an earlier message is left.
        said = said.ljust(_MESSAGE_BYTES, b"\0")
        self._messages[self._first : self._first + len(said)] = said

    def stop(self) -> int:
        """Return the signal after which this worker should stop, or 0."""
        return self._common[_STOP]
