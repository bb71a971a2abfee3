"""Notes in which order worker processes end, and how.

Decides: which rank left first, by the kernel's account rather than by what peers report.
Relies on: pidfds (Linux 5.3).
Leaves: reaping the processes to torch elastic, whether an end is a failure to `verdict`.

A killed worker says nothing, and its peers report a lost connection at once. The order of the exits
themselves tells the cause.
"""

import os
import select
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType

POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Exit:
    """One worker's end at a time of the monotonic clock, in nanoseconds.

    `killed_by` names a signal, or is empty if the worker left with `status`.
    """

    status: int
    killed_by: str
    at: int


class ExitWatch:
    """Watches workers, given as pids by rank; `exits` has those that ended, the first one first."""

    def __init__(self, pids: Mapping[int, int]) -> None:
        self._stop = threading.Event()
        self._watched: dict[int, int] = {}  # Rank by pidfd.
        self._poll = select.poll()
        for rank, pid in pids.items():
            fd = os.pidfd_open(pid)
            self._watched[fd] = rank
            self._poll.register(fd, select.POLLIN)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.exits: dict[int, Exit] = {}

    def __enter__(self) -> "ExitWatch":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join(timeout=5)
        for fd in self._watched:
            os.close(fd)

    def _run(self) -> None:
        while not self._stop.is_set() and len(self.exits) < len(self._watched):
            for fd, _ in self._poll.poll(int(POLL_SECONDS * 1000)):
                self._note(self._watched[fd], fd)
                self._poll.unregister(fd)

    def _note(self, rank: int, fd: int) -> None:
        now = time.monotonic_ns()
        # Without reaping: that is left to torch elastic, whose child the worker is.
        result = os.waitid(os.P_PIDFD, fd, os.WEXITED | os.WNOWAIT)
        if result is not None:
            killed = result.si_code != os.CLD_EXITED
            self.exits[rank] = Exit(
                result.si_status, _signal_name(result.si_status) if killed else "", now
            )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # A real-time signal.
        return f"signal {number}"
