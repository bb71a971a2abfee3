"""The progress of this rank, in cells that its parent can read, and of the run; how runs end early.

Decides: the phases of a worker and the record of each, for a rank that hangs or has died; which
counts a checkpoint holds, so that a resumed run continues exactly; which signals stop a run.
Relies on: a few integers in shared memory, or a plain list if there is no parent; data order and
random numbers being pure functions of (seed, position).
Leaves: naming the rank at fault to `launcher.verdict`, the words of a report to
`launcher.failure_report`, weights and moments to
`checkpoint`.

A write costs a clock call and three stores, so every slot of a step is recorded.
"""

import signal
import time
from collections.abc import MutableSequence
from dataclasses import dataclass
from enum import IntEnum

from mimo_launch.data.order.sample_order import NEWEST

# On any of these signals, a run ends after its current step.
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Phase(IntEnum):
    """The phases of a worker, in the order of a run."""

    STARTING = 0
    CONNECTING = 1
    CREATING_GROUPS = 2
    BUILDING = 3
    LOOKING = 4
    LOADING = 5
    DRAWING = 6
    READING = 7
    AGREEING = 8
    PROGRAM = 9
    REDUCING = 10
    UPDATING = 11
    EVALUATING = 12
    SAVING = 13
    GATHERING = 14
    MEASURING = 15
    WRITING = 16
    FINISHED = 17

    @property
    def words(self) -> str:
        """The phase in words that follow "rank 3 was"."""
        return _WORDS[self]


_WORDS = {
    Phase.STARTING: "starting",
    Phase.CONNECTING: "connecting to the other ranks",
    Phase.CREATING_GROUPS: "creating process groups",
    Phase.BUILDING: "building its modules",
    Phase.LOOKING: "looking for a checkpoint",
    Phase.LOADING: "loading a checkpoint",
    Phase.DRAWING: "drawing initial weights",
    Phase.READING: "reading samples",
    Phase.AGREEING: "agreeing on the samples of the step",
    Phase.PROGRAM: "running its program",
    Phase.REDUCING: "summing gradients and norms",
    Phase.UPDATING: "updating its weights",
    Phase.EVALUATING: "evaluating",
    Phase.SAVING: "waiting for a checkpoint",
    Phase.GATHERING: "gathering the times of all ranks",
    Phase.MEASURING: "measuring rates and transfers",
    Phase.WRITING: "writing its results",
    Phase.FINISHED: "finished",
}


class Cause(IntEnum):
    """Why a worker failed; its own error outranks one that another rank may have caused.

    OWN: its own error. LOST: a peer went away. TIMEOUT: a peer did not arrive. FINAL: the run ended
    on purpose, and would do so again.
    """

    NONE = 0
    OWN = 1
    LOST = 2
    TIMEOUT = 3
    FINAL = 4


class Cell(IntEnum):
    """Cells of one rank. Times are nanoseconds of the host's monotonic clock; 0 means never."""

    PHASE = 0
    STEP = 1
    POSITION = 2
    CHANGED = 3
    FAILED = 4
    CAUSE = 5
    SIGNAL = 6
    ALIVE = 7


class Progress:
    """This rank's cells; `step` counts from 1, `position` is an index into the rank's program."""

    def __init__(self, cells: MutableSequence[int] | None = None) -> None:
        self._cells: MutableSequence[int] = [0] * len(Cell) if cells is None else cells

    def enter(self, phase: Phase, step: int | None = None) -> None:
        """Record the start of a phase, and of a step if one is given."""
        self._cells[Cell.PHASE] = phase
        self._cells[Cell.POSITION] = 0
        if step is not None:
            self._cells[Cell.STEP] = step
        self._cells[Cell.CHANGED] = time.monotonic_ns()

    def at(self, position: int) -> None:
        """Record which slot of the program is running."""
        self._cells[Cell.POSITION] = position
        self._cells[Cell.CHANGED] = time.monotonic_ns()

    def beat(self, phase: Phase | None = None) -> None:
        """Record progress inside a long phase; with `phase`, only while that is the current one.

        Threads other than the main one pass their phase: their progress must not hide that the main
        thread makes none.
        """
        if phase is None or self._cells[Cell.PHASE] == phase:
            self._cells[Cell.CHANGED] = time.monotonic_ns()

    def alive(self) -> None:
        """Record that a thread of this rank can run Python code; this is not progress."""
        self._cells[Cell.ALIVE] = time.monotonic_ns()

    def failed(self, cause: Cause) -> None:
        """Record that this rank has failed, before its peers lose it."""
        self._cells[Cell.CAUSE] = cause
        self._cells[Cell.FAILED] = time.monotonic_ns()

    def finished(self, ended_by: int) -> None:
        """Record that this rank is done; `ended_by` is the signal that ended it, or 0."""
        self._cells[Cell.SIGNAL] = ended_by
        self.enter(Phase.FINISHED)


@dataclass(frozen=True, slots=True)
class Best:
    """The best evaluation so far: its step and number; `since` counts the evaluations after it."""

    step: int
    value: float
    since: int = 0


@dataclass(slots=True)
class RunState:
    """Counts since the start of the run: steps, samples, skipped steps, bad samples of training.

    `samples` is the position in the order of samples (for packs see `data.order.sample_order`), and
    `order` the version of that order, which a run keeps from its start. `evaluated` is the step of
    the last whole evaluation, `best` the best one so far, if there was one.
    """

    step: int = 0
    samples: int = 0
    skipped: int = 0
    bad_samples: int = 0
    order: int = NEWEST
    evaluated: int = 0
    best: Best | None = None


class EndOfRun(Exception):
    """The run ends on purpose: all ranks raise this after the same step.

    A new attempt would end in the same way, unless the subclass is `restartable`.
    """

    restartable = False
