"""A pseudo-terminal with a person in front of it: what is written, what is seen, and Ctrl-C.

Understands what Rich writes: lines, carriage returns, moving up, erasing a line. Anything else that
reaches the terminal stays visible as text.
"""

import fcntl
import io
import os
import pty
import re
import struct
import sys
import termios
import threading

COLUMNS, ROWS = 100, 40
_CONTROL = re.compile(r"\x1b\[(\??)([\d;]*)([A-Za-z])")
CTRL_C = b"\x03"


class Terminal:
    """Collects what a process writes to it; `enter` is called in that process."""

    def __init__(self) -> None:
        self._leader, self._follower = pty.openpty()
        self.resize(COLUMNS)
        self._written = bytearray()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def resize(self, columns: int) -> None:
        """Drag the window: processes on the terminal get SIGWINCH."""
        size = struct.pack("HHHH", ROWS, columns, 0, 0)
        fcntl.ioctl(self._leader, termios.TIOCSWINSZ, size)

    def _read(self) -> None:
        while True:
            try:
                self._written += os.read(self._leader, 65536)
            except OSError:
                return

    def enter(self) -> None:
        """Make this process one whose streams and stop keys are those of the terminal."""
        os.setsid()
        fcntl.ioctl(self._follower, termios.TIOCSCTTY, 0)
        for number in range(3):
            os.dup2(self._follower, number)
        os.environ["TERM"] = "xterm"

    def close(self) -> None:
        """Wait for the last of what was written; every process on the terminal has ended."""
        os.close(self._follower)
        self._reader.join(timeout=10)

    def press(self, keys: bytes) -> None:
        """Type."""
        os.write(self._leader, keys)

    @property
    def written(self) -> str:
        """Everything that was written, with its controls."""
        return self._written.decode("utf-8", "replace")

    def seen(self) -> str:
        """Return what can be read on the terminal, from its first line on."""
        return seen(self.written)


def seen(written: str) -> str:
    """Return what a person sees of a text with controls, one that scrolls back as well."""
    lines, row, column, place = [""], 0, 0, 0
    while place < len(written):
        control = _CONTROL.match(written, place)
        if control is not None:
            place = control.end()
            count = int(control[2] or 1) if control[2].isdigit() or not control[2] else 1
            if control[3] == "A":
                row = max(0, row - count)
            elif control[3] == "K":
                lines[row] = ""
            continue
        letter = written[place]
        place += 1
        if letter == "\r":
            column = 0
            continue
        if letter == "\n" or column == COLUMNS:
            row, column = row + 1, column if letter == "\n" else 0
            if row == len(lines):
                lines.append("")
        if letter != "\n":
            lines[row] = lines[row].ljust(column)[:column] + letter + lines[row][column + 1 :]
            column += 1
    return "\n".join(line.rstrip() for line in lines)


class Locked(io.TextIOWrapper):
    """A stream on a descriptor whose lock another thread may hold, as buffers of Python have it."""

    def __init__(self, number: int) -> None:
        raw = io.FileIO(number, "w", closefd=False)
        super().__init__(io.BufferedWriter(raw), encoding="utf-8", line_buffering=True)
        self.lock = threading.RLock()

    def write(self, text: str) -> int:
        with self.lock:
            return super().write(text)

    def flush(self) -> None:
        with self.lock:
            super().flush()


def hold_locks_at_forks() -> None:
    """Have a thread hold the locks of the streams and of all Rich consoles at every fork."""
    from rich.console import Console

    streams = [Locked(1), Locked(2)]
    sys.stdout, sys.stderr = streams
    consoles: list[Console] = []
    real = Console.__init__

    def noted(console: Console, *args: object, **kwargs: object) -> None:
        real(console, *args, **kwargs)  # type: ignore[arg-type]
        consoles.append(console)

    Console.__init__ = noted  # type: ignore[method-assign,assignment]
    asked, held, freed = (threading.Semaphore(0) for _ in range(3))
    done = threading.Semaphore(0)

    def hold() -> None:
        while True:
            asked.acquire()
            locks = [*(each.lock for each in streams), *(each._lock for each in consoles)]
            for lock in locks:
                lock.acquire()
            held.release()
            freed.acquire()
            for lock in locks:
                lock.release()
            done.release()

    def before() -> None:
        asked.release()
        held.acquire()

    def after() -> None:
        freed.release()
        done.acquire()

    threading.Thread(target=hold, daemon=True).start()
    os.register_at_fork(before=before, after_in_parent=after)
