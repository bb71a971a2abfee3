"""Signals: the first asks a run to stop after its step, the second ends it at once.

Decides: what the launcher, its workers and ranks started by others do with SIGINT and SIGTERM.
Relies on: `train.loop`, where all ranks agree on the step after which they stop.
Leaves: killing workers to `local`.
"""

import ctypes
import os
import signal
from types import FrameType, TracebackType
from typing import Any

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_PR_SET_PDEATHSIG = 1


class Interrupted(Exception):
    """A second signal ended the run at once; the workers are gone."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.signal = number


class StopRequest:
    """Counts stop signals while it is entered; only the main thread may enter it.

    `signal` is the first one, or 0; `at_once` says that another followed.
    """

    def __init__(self) -> None:
        self.signal = 0
        self.at_once = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "StopRequest":
        for number in STOP_SIGNALS:
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.at_once = bool(self.signal)
        self.signal = self.signal or number


class JoinedStop:
    """The same for a rank that something else started: there is no one else to end it at once."""

    def __init__(self) -> None:
        self._signal = 0

    def install(self) -> None:
        """Note stop signals from now on."""
        for number in STOP_SIGNALS:
            signal.signal(number, self._note)

    def __call__(self) -> int:
        """Return the signal that came, or 0."""
        return self._signal

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._signal:
            os._exit(128 + number)
        self._signal = number


def leave_signals_to(launcher: int) -> None:
    """Make this worker ignore stop signals, and die with its launcher, the process `launcher`.

    Ctrl-C in a terminal, and schedulers, signal every process of a job; the launcher alone decides.
    """
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    # torch asks for SIGINT, which is ignored here, and which a blocked worker would not see.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != launcher:
        os._exit(1)  # It died before the kernel was asked.
