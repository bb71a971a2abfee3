"""What forked processes print through, and how lines of theirs reach the console.

Decides: streams of its own for whatever is forked: those of the parent, and a screen that it draws,
have locks that another thread may have held at that moment; lines are passed on as they come.
Relies on: descriptors 1 and 2, which torch elastic sends to the files of `worker_logs`.
Leaves: what a console is to `cli`.
"""

import io
import os
import sys
import threading
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TextIO

from mimo_launch.diag.text import visible

PERIOD_SECONDS = 0.1
# What a worker has written of a line that does not end is shown in pieces of this size.
CHUNK = 1 << 16


class _OwnStream(io.TextIOWrapper):
    """A stream for one of the standard descriptors, with a lock that nobody holds."""

    def __init__(self, number: int, replaced: TextIO) -> None:
        raw = io.FileIO(number, "w", closefd=False)
        super().__init__(
            io.BufferedWriter(raw), "utf-8", errors="backslashreplace", line_buffering=True
        )
        # Its end would wait for its lock, and close the descriptor.
        self.replaced = replaced


@cache
def own_streams_after_fork() -> None:
    """Give streams of their own to all processes that this one forks from now on."""
    os.register_at_fork(after_in_child=_take_own_streams)


def _take_own_streams() -> None:
    sys.stdout = sys.__stdout__ = _OwnStream(1, sys.stdout)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _OwnStream(2, sys.stderr)  # type: ignore[misc]


class Follower(threading.Thread):
    """Passes lines on that workers append to files, until it is stopped and has read all.

    `files` says for each file who is told of its lines, which come without their end.
    """

    def __init__(self, files: Mapping[Path, Callable[[str], None]]) -> None:
        super().__init__(daemon=True)
        self._tails = [_Tail(path, tell) for path, tell in files.items()]
        self._ended = threading.Event()

    def stop(self) -> None:
        """Read to the end, which must have been written, and return."""
        self._ended.set()
        self.join()

    def run(self) -> None:
        """Pass lines on."""
        while True:
            ended = self._ended.wait(PERIOD_SECONDS)
            for tail in self._tails:
                tail.read(ended=ended)
            if ended:
                return


class _Tail:
    """One file that grows."""

    def __init__(self, path: Path, tell: Callable[[str], None]) -> None:
        self._path, self._tell = path, tell
        self._place, self._rest = 0, b""

    def read(self, *, ended: bool) -> None:
        """Tell of the lines that are new; of what has no end only if nothing will follow."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._place)
                while new := file.read(CHUNK):
                    self._place += len(new)
                    *lines, self._rest = (self._rest + new).split(b"\n")
                    if len(self._rest) > CHUNK:
                        lines, self._rest = [*lines, self._rest], b""
                    for line in lines:
                        self._say(line)
        except OSError:
            return
        if ended and self._rest:
            self._say(self._rest)

    def _say(self, line: bytes) -> None:
        text = line.decode("utf-8", "backslashreplace").rstrip("\r")
        # A bar is drawn over itself: what a terminal would show of it in the end.
        self._tell(visible(text.rpartition("\r")[2]))
