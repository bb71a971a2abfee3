"""Signals: the first asks a run to stop after its step, the second ends it immediately.

Decides: how the launcher, its workers and ranks of torchrun or srun handle SIGINT, SIGTERM and
SIGHUP; that `verify` cleans up first.
Relies on: `train.loop`, where all ranks agree on the step after which they stop.
Leaves: killing workers to `start_workers`.
"""

import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from mimo_launch.runtime.progress import STOP_SIGNALS

# A signal to all processes of a job reaches a rank twice: directly and through torchrun.
SAME_SECONDS = 5.0
_PR_SET_PDEATHSIG = 1


class Interrupted(Exception):
    """A signal ended the run immediately; no worker is left."""

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
        for number in _heeded():
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        # When a terminal closes, kernel and shell both send SIGHUP: do not count the second.
        self.at_once = self.at_once or (bool(self.signal) and number != signal.SIGHUP)
        self.signal = self.signal or number


class JoinedStop:
    """A stop request in a rank of torchrun or srun; a second signal ends the process.

    `tell` is called with the first signal and False, then with the second one and True.
    """

    def __init__(self, tell: Callable[[int, bool], None] = lambda number, at_once: None) -> None:
        self._tell = tell
        self._signal = 0
        self._since = 0.0

    def install(self) -> None:
        """Handle stop signals from now on."""
        for number in _heeded():
            signal.signal(number, self.note)

    def __call__(self) -> int:
        """Return the signal that came, or 0."""
        return self._signal

    def note(self, number: int, frame: FrameType | None = None) -> None:
        """Note a signal; end this process if it is a second one."""
        now = time.monotonic()
        if not self._signal:
            self._signal, self._since = number, now
            self._tell(number, False)
        elif now - self._since > SAME_SECONDS:
            self._tell(number, True)
            os._exit(128 + number)


@contextmanager
def interrupting() -> Iterator[None]:
    """Raise Interrupted here on the first SIGTERM or SIGHUP, so that this process cleans up.

    A second one ends it. Python itself raises KeyboardInterrupt on SIGINT.
    """
    heeded = [number for number in _heeded() if number != signal.SIGINT]
    before = {number: signal.getsignal(number) for number in heeded}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def interrupt(number: int, frame: FrameType | None) -> None:
        restore()
        raise Interrupted(number)

    for number in heeded:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        restore()


def _heeded() -> tuple[signal.Signals, ...]:
    """Return the stop signals to handle, without SIGHUP under `nohup`."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return tuple(n for n in STOP_SIGNALS if n != signal.SIGHUP or not ignored)


def leave_signals_to(launcher: int) -> None:
    """Make this worker ignore stop signals, and die with its launcher, the process `launcher`.

    Ctrl-C in a terminal and schedulers signal every process of a job; only the launcher decides.
    """
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    die_with(launcher)


def die_with(parent: int) -> None:
    """Let the kernel kill this process when its parent, the process `parent`, ends."""
    # torch asks for SIGINT instead, which is ignored here; a blocked worker would not see it.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)  # The parent died before the call of prctl.
