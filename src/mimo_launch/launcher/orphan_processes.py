"""Processes that workers have started and left behind.

Decides: they end with the attempt, however they were started: the launcher is who the kernel gives
them to when their parent has ended.
Relies on: PR_SET_CHILD_SUBREAPER (Linux 3.4), /proc.
Leaves: workers to torch elastic.
"""

import ctypes
import os
import signal
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

WAIT_SECONDS = 5.0
_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Become the parent of all descendants whose own one ends."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children() -> set[int]:
    """Return the processes whose parent this one is."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # It has ended meanwhile.
            if int(stat.read_text().rpartition(")")[2].split()[1]) == os.getpid():
                found.add(int(stat.parent.name))
    return found


def end_orphans(but: Collection[int]) -> None:
    """Kill all children but some, and what they leave behind in turn.

    With SIGKILL: what a worker starts ignores the signals that the worker ignores.
    """
    deadline = time.monotonic() + WAIT_SECONDS
    while (left := children().difference(but)) and time.monotonic() < deadline:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.01)
