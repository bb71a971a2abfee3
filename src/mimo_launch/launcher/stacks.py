"""Stacks of running workers, also of those that are blocked outside of Python.

Decides: SIGUSR1 makes a worker write the stacks of its threads to a file of its own.
Relies on: faulthandler, whose handler runs in the signal context and needs neither the interpreter
nor its lock.
Leaves: what a stack means for the run to `verdict`.
"""

import faulthandler
import os
import re
import signal
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

WAIT_SECONDS = 1.5
_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)$')
_MAIN = "main thread "
# The innermost Python frame of a rank that waits for another one is in one of these.
_COMMUNICATION = (
    "/torch/distributed/",
    "/mimo_launch/comm/",
    "/mimo_launch/runtime/stage_transfers.py",
    "/mimo_launch/runtime/bridges.py",
)
# There the host waits for its GPU, whose transfers wait for other ranks.
_DEVICE_WAITS = ("/torch/cuda/streams.py", "/torch/cuda/__init__.py")


@dataclass(frozen=True, slots=True)
class Frame:
    """One call on a stack."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.function} ({os.path.basename(self.file)}:{self.line})"

    @property
    def communicates(self) -> bool:
        """Whether a rank that is here waits for others."""
        return self.waits_for_gpu or any(part in self.file for part in _COMMUNICATION)

    @property
    def waits_for_gpu(self) -> bool:
        """Whether a host that is here waits for what it has given its GPU to do."""
        return self.function == "synchronize" and any(part in self.file for part in _DEVICE_WAITS)


def write_stacks_on_signal(path: Path) -> None:
    """Let SIGUSR1 write the stacks of this process to `path`."""
    # Open for the life of the process: faulthandler writes to its descriptor.
    file = path.open("w", encoding="utf-8")
    with suppress(OSError):  # A full disk, which must not end a worker that may need none.
        file.write(f"{_MAIN}{threading.main_thread().ident:#018x}\n")
        file.flush()
    faulthandler.register(signal.SIGUSR1, file=file, all_threads=True)


def take_stacks(workers: Mapping[int, Path]) -> dict[int, tuple[Frame, ...]]:
    """Ask workers, by pid, for their stacks; return those of main threads, innermost call first.

    A worker that is stopped, or that the kernel does not let go, answers nothing.
    """
    sizes = {}
    for pid, path in workers.items():
        try:
            sizes[pid] = path.stat().st_size
            os.kill(pid, signal.SIGUSR1)
        except OSError:
            sizes.pop(pid, None)
    found: dict[int, tuple[Frame, ...]] = {}
    deadline = time.monotonic() + WAIT_SECONDS
    while len(found) < len(sizes) and time.monotonic() < deadline:
        time.sleep(0.02)
        for pid in sizes.keys() - found.keys():
            text = workers[pid].read_text(encoding="utf-8", errors="replace")
            frames = parse_stack(text[sizes[pid] :], head=text)
            if frames:
                found[pid] = frames
    return found


def parse_stack(text: str, head: str = "") -> tuple[Frame, ...]:
    """Return the main thread's calls from what faulthandler wrote, innermost first.

    `head` begins with the line that says which thread is the main one; without it the thread that
    got the signal is taken.
    """
    first = head.partition("\n")[0]
    main = first.removeprefix(_MAIN).strip() if first.startswith(_MAIN) else "Current thread"
    frames: list[Frame] = []
    inside = False
    for line in text.splitlines():
        match = _FRAME.match(line)
        if match is None:
            if inside and frames:
                break
            inside = main in line
        elif inside:
            frames.append(Frame(match["file"], int(match["line"]), match["function"]))
    return tuple(frames)


def process_state(pid: int) -> str:
    """Return the kernel's letter for what a process does (T is stopped), or nothing if it ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
