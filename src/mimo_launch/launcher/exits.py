"""Notes in which order worker processes end, and how.

Decides: which rank failed first, by the kernel's account rather than by what peers report.
Relies on: pidfds (Linux 5.3); each worker writing its pid where its parent can read it.
Leaves: stopping the others to torch elastic.

A killed worker says nothing, its peers report a lost connection at once, and the agent sees only
one of them when it looks. The order of the exits themselves tells the cause.
"""

import os
import select
import signal
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Exit:
    """One worker's end: `killed_by` names a signal, or is empty if it left with `status`."""

    rank: int
    status: int
    killed_by: str


class ExitWatch:
    """Watches the workers whose pids appear in `pids`, by rank; 0 means not started yet."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = pids
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.failures: list[Exit] = []

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

    def _run(self) -> None:
        watched: dict[int, int] = {}  # Rank by pidfd.
        seen: set[int] = set()
        poll = select.poll()
        while not self._stop.is_set():
            for rank, pid in enumerate(self._pids):
                if pid and rank not in seen:
                    seen.add(rank)
                    try:
                        fd = os.pidfd_open(pid)
                    except ProcessLookupError:
                        continue
                    watched[fd] = rank
                    poll.register(fd, select.POLLIN)
            for fd, _ in poll.poll(int(POLL_SECONDS * 1000)):
                self._note(watched[fd], fd)
                poll.unregister(fd)
            self._stop.wait(0 if watched else POLL_SECONDS)
        for fd in watched:
            os.close(fd)

    def _note(self, rank: int, fd: int) -> None:
        try:
            # Without reaping: that is left to torch elastic, whose child the worker is.
            result = os.waitid(os.P_PIDFD, fd, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:
            return
        if result is None or result.si_status == 0:
            return
        killed = result.si_code != os.CLD_EXITED
        name = signal.Signals(result.si_status).name if killed else ""
        self.failures.append(Exit(rank, result.si_status, name))
