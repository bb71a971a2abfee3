"""The processes of workers as the kernel sees them: how they end, where they hang, their children.

Decides: the kernel, not the peers, says which rank ended first: a killed worker reports nothing,
and its peers immediately report a lost connection. SIGUSR1 makes a worker write the stacks of its
threads to a file, even when it is blocked outside Python. Processes that workers started end with
the attempt.
Relies on: pidfds (Linux 5.3); faulthandler, which runs in the signal context and needs neither the
interpreter nor its lock; PR_SET_CHILD_SUBREAPER (Linux 3.4) and /proc.
Leaves: reaping workers to torch elastic; the meaning of an end or a stack to `verdict`.
"""

import ctypes
import faulthandler
import fcntl
import os
import re
import select
import signal
import struct
import threading
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

EXIT_POLL_SECONDS = 0.05
STACK_SECONDS = 1.5
_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)$')
_MAIN = "main thread "
# The innermost Python frame of a rank that waits for another rank is in one of these.
_COMMUNICATION = (
    "/torch/distributed/",
    "/mimo_launch/comm/",
    "/mimo_launch/runtime/stage_transfers.py",
    "/mimo_launch/runtime/bridges.py",
)
# Here the host waits for its GPU, where transfers wait for other ranks.
_DEVICE_WAITS = ("/torch/cuda/streams.py", "/torch/cuda/__init__.py")
ORPHAN_SECONDS = 5.0
# The first version of `struct pidfd_info` in linux/pidfd.h, which ends with the exit code.
_PIDFD_INFO_EXIT, _PIDFD_INFO_BYTES = 1 << 3, 64
_PIDFD_GET_INFO = 3 << 30 | _PIDFD_INFO_BYTES << 16 | 0xFF << 8 | 11
_PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 15, 36


@dataclass(frozen=True, slots=True)
class Exit:
    """The end of one worker, at a time of the monotonic clock in nanoseconds.

    `killed_by` names a signal, or is empty if the worker exited with `status`. The status is None
    if another parent has taken it.
    """

    status: int | None
    killed_by: str
    at: int


class ExitWatch:
    """Watches workers, given as pids by rank; `exits` has the ends in order.

    The workers may be children of another process.
    """

    def __init__(self, pids: Mapping[int, int]) -> None:
        self._stop = threading.Event()
        self._watched: dict[int, tuple[int, int]] = {}  # Rank and pid by pidfd.
        self._poll = select.epoll()
        for rank, pid in pids.items():
            self.add(rank, pid)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.exits: dict[int, Exit] = {}

    def add(self, rank: int, pid: int) -> None:
        """Watch one more worker. Raises: OSError if there is no such process."""
        fd = os.pidfd_open(pid)
        self._watched[fd] = rank, pid
        self._poll.register(fd, select.EPOLLIN)

    def kill(self, ranks: Collection[int]) -> None:
        """Kill workers with SIGKILL, if they still run."""
        for fd, (rank, _) in self._watched.items():
            if rank in ranks:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(fd, signal.SIGKILL)

    def __enter__(self) -> "ExitWatch":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join(timeout=5)
        self._poll.close()
        for fd in self._watched:
            os.close(fd)

    def _run(self) -> None:
        while not self._stop.is_set():
            for fd, _ in self._poll.poll(EXIT_POLL_SECONDS):
                rank, pid = self._watched[fd]
                self.exits[rank] = _end(pid, fd)
                self._poll.unregister(fd)


def _end(pid: int, fd: int) -> Exit:
    """Return how a process has ended, without reaping it: its parent does."""
    now = time.monotonic_ns()
    with suppress(ChildProcessError):
        result = os.waitid(os.P_PIDFD, fd, os.WEXITED | os.WNOWAIT)
        if result is not None:
            killed = result.si_code != os.CLD_EXITED
            killed_by = signal_name(result.si_status) if killed else ""
            return Exit(result.si_status, killed_by, now)
    status = _foreign_status(pid, fd)
    code = None if status is None else os.waitstatus_to_exitcode(status)
    killed_by = signal_name(-code) if code is not None and code < 0 else ""
    return Exit(None if code is None else abs(code), killed_by, now)


def _foreign_status(pid: int, fd: int) -> int | None:
    """Return the wait status of another parent's child; None if it is not available.

    /proc has it until that parent reaps the child, the pidfd afterwards (Linux 6.15).
    """
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        if fields[0] == "Z":
            return int(fields[49])
    info = bytearray(struct.pack("Q", _PIDFD_INFO_EXIT).ljust(_PIDFD_INFO_BYTES, b"\0"))
    with suppress(OSError):
        fcntl.ioctl(fd, _PIDFD_GET_INFO, info)
        if struct.unpack_from("Q", info)[0] & _PIDFD_INFO_EXIT:
            return int(struct.unpack_from("i", info, _PIDFD_INFO_BYTES - 4)[0])
    return None


def signal_name(number: int) -> str:
    """Return the name of a signal, such as SIGKILL."""
    try:
        return signal.Signals(number).name
    except ValueError:  # A real-time signal.
        return f"signal {number}"


@dataclass(frozen=True, slots=True)
class StackFrame:
    """One call on a stack."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.function} ({os.path.basename(self.file)}:{self.line})"

    @property
    def communicates(self) -> bool:
        """Whether a rank in this call waits for others."""
        return self.waits_for_gpu or any(part in self.file for part in _COMMUNICATION)

    @property
    def waits_for_gpu(self) -> bool:
        """Whether a host in this call waits for work on its GPU."""
        return self.function == "synchronize" and any(part in self.file for part in _DEVICE_WAITS)


def write_stacks_on_signal(path: Path) -> None:
    """Let SIGUSR1 write the stacks of this process to `path`."""
    # Stays open for the life of the process: faulthandler writes to its descriptor.
    file = path.open("w", encoding="utf-8")
    with suppress(OSError):  # A full disk must not end a worker that may not need this file.
        file.write(f"{_MAIN}{threading.main_thread().ident:#018x}\n")
        file.flush()
    faulthandler.register(signal.SIGUSR1, file=file, all_threads=True)


def take_stacks(workers: Mapping[int, Path]) -> dict[int, tuple[StackFrame, ...]]:
    """Ask workers, by pid, for the stacks of their main threads; innermost calls come first.

    A worker that is stopped, or blocked in the kernel, does not answer.
    """
    sizes = {}
    for pid, path in workers.items():
        try:
            sizes[pid] = path.stat().st_size
            os.kill(pid, signal.SIGUSR1)
        except OSError:
            sizes.pop(pid, None)
    found: dict[int, tuple[StackFrame, ...]] = {}
    deadline = time.monotonic() + STACK_SECONDS
    while len(found) < len(sizes) and time.monotonic() < deadline:
        time.sleep(0.02)
        for pid in sizes.keys() - found.keys():
            text = workers[pid].read_text(encoding="utf-8", errors="replace")
            frames = parse_stack(text[sizes[pid] :], head=text)
            if frames:
                found[pid] = frames
    return found


def parse_stack(text: str, head: str = "") -> tuple[StackFrame, ...]:
    """Return the main thread's calls from the output of faulthandler, innermost first.

    `head` starts with the line that names the main thread; without that line, the thread that got
    the signal counts as the main thread.
    """
    first = head.partition("\n")[0]
    main = first.removeprefix(_MAIN).strip() if first.startswith(_MAIN) else "Current thread"
    frames: list[StackFrame] = []
    inside = False
    for line in text.splitlines():
        match = _FRAME.match(line)
        if match is None:
            if inside and frames:
                break
            inside = main in line
        elif inside:
            frames.append(StackFrame(match["file"], int(match["line"]), match["function"]))
    return tuple(frames)


def process_state(pid: int) -> str:
    """Return the kernel's letter for the state of a process (T: stopped), or "" if it ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def adopt_orphans() -> None:
    """Become the parent of all descendants that lose their parent."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def name_process(name: str) -> None:
    """Give this process the name that `ps` and `top` show; the kernel keeps 15 characters."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def children() -> set[int]:
    """Return the child processes of this process."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # The process has ended meanwhile.
            if int(stat.read_text().rpartition(")")[2].split()[1]) == os.getpid():
                found.add(int(stat.parent.name))
    return found


def end_orphans(but: Collection[int]) -> None:
    """Kill all children except `but`, and then the children that these leave.

    This needs SIGKILL: a process that a worker started ignores the signals that the worker ignores.
    """
    deadline = time.monotonic() + ORPHAN_SECONDS
    while (left := children().difference(but)) and time.monotonic() < deadline:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.01)
