"""A rank that torchrun or srun started, and the watcher of its host.

Decides: the first rank of a host to bind the socket address forks the watcher, which all others
then find there; a rank that fails stays until the watcher has judged, and every rank ends with the
exit code that the watcher sends. A rank without a watcher continues without one.
Relies on: abstract socket addresses (Linux), which leave no files and are local to a host; torch,
which is imported before the watcher is forked.
Leaves: watching to `rank_watcher`, the work of a rank to `worker`.
"""

import faulthandler
import hashlib
import mmap
import os
import signal
import socket
import struct
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from mimo_launch.launcher.joined_world import Beginning
from mimo_launch.launcher.shared_progress import WorkerCells
from mimo_launch.launcher.worker import answer_for, tell_error
from mimo_launch.launcher.worker_logs import ERROR, STACK, STDERR, rank_folder
from mimo_launch.launcher.worker_processes import name_process, write_stacks_on_signal
from mimo_launch.runtime.progress import STOP_SIGNALS, Phase

# Within this time all hosts report and node 0 judges.
JUDGE_SECONDS = 20.0
ANSWER_SECONDS = 10.0
CONNECT_SECONDS = 2.0
RETRY_SECONDS = 0.1
_BACKLOG = 4096
# They distinguish a job, and each of its starts, from others on this host.
_NAMES = (
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "GROUP_RANK",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_RESTART_COUNT",
    "SLURM_NODEID",
)
Watch = Callable[[socket.socket], None]


class WatchedRank:
    """This rank, connected to its watcher by `link`.

    `watcher` identifies the watcher; the watchers of all hosts can meet at its `port`.
    """

    def __init__(self, link: socket.socket, memory: mmap.mmap, rank: int, said: str) -> None:
        self._link, self._rank = link, rank
        self.watcher, port = said.split()
        self.port = int(port)
        self.has_failed = False
        self.cells = WorkerCells(memory, rank)
        self._files: list[Path] = []
        self._obedience = threading.Thread(target=self._obey, name="watcher", daemon=True)
        answer_for(self.cells.progress)
        self._obedience.start()

    def begin(self, beginning: Beginning, run: Path) -> None:
        """From now on, write to the folder of the attempt; tell the watcher that the run begins."""
        folder = rank_folder(run, beginning.attempt, self._rank)
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            write_stacks_on_signal(folder / STACK)
            # Keep this file open for the life of the process: a crash writes its stack there.
            faulthandler.enable((folder / STDERR).open("a", encoding="utf-8"))
            self._files = [folder / ERROR, folder / STDERR]
        self.cells.progress.enter(Phase.CONNECTING)
        with suppress(OSError):
            self._link.send(beginning.to_json().encode())

    def leave(self) -> None:
        """Say that this rank ends on purpose."""
        self.cells.progress.finished(0)

    def fail(self, error: BaseException, *files: Path) -> None:
        """Report an error, and wait a while for the watcher to end this process."""
        self.has_failed = True
        if self._files:
            with suppress(Exception), self._files[1].open("a", errors="backslashreplace") as file:
                traceback.print_exception(error, file=file)
        tell_error(error, self.cells, *self._files[:1], *files)
        self.heed(JUDGE_SECONDS)

    def heed(self, seconds: float) -> None:
        """Wait up to `seconds` for the exit code of a failed run, which ends this process."""
        self._obedience.join(seconds)

    def _obey(self) -> None:
        """End with the exit code that the watcher sends, if it sends one before it leaves."""
        with suppress(OSError):
            if said := self._link.recv(64):
                os._exit(int(said))


def watched_rank(rank: int, watch: Watch) -> WatchedRank | None:
    """Connect a rank to its host's watcher, which runs `watch`; return None if that fails."""
    address = _address()
    until = time.monotonic() + CONNECT_SECONDS
    while time.monotonic() < until:
        try:
            _fork_first(address, watch)
            return _connect(address, rank)
        except TimeoutError:
            break
        except OSError:
            time.sleep(RETRY_SECONDS)  # The watcher of an earlier start is about to leave.
    return None


def peer_of(link: socket.socket) -> tuple[int, int]:
    """Return the pid and the user id of the process at the other end, from the kernel."""
    found = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, user, _ = struct.unpack("3i", found)
    return pid, user


def _address() -> str:
    """Return the address of this job's watcher on this host."""
    names = [str(os.getuid()), *(os.environ.get(name, "") for name in _NAMES)]
    return "\0mimo-launch/" + hashlib.sha256("\0".join(names).encode()).hexdigest()


def _fork_first(address: str, watch: Watch) -> None:
    """Fork the watcher if no process listens at the address."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        try:
            listener.bind(address)
        except OSError:
            return
        listener.listen(_BACKLOG)
        if os.fork():
            return
        status = 1
        try:
            # Signals to the ranks are not for the watcher.
            os.setsid()
            for number in STOP_SIGNALS:
                signal.signal(number, signal.SIG_IGN)
            name_process("mimo watcher")
            watch(listener)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)


def _connect(address: str, rank: int) -> WatchedRank:
    """Connect to the watcher. Raises: OSError."""
    link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        link.settimeout(ANSWER_SECONDS)
        link.connect(address)
        link.send(str(rank).encode())
        said, files, _, _ = socket.recv_fds(link, 256, 1)
        if not said or not files or peer_of(link)[1] != os.getuid():
            raise ConnectionError("the watcher has left, or belongs to another user")
        memory = mmap.mmap(files[0], 0)
        os.close(files[0])
        link.settimeout(None)
    except BaseException:
        link.close()
        raise
    return WatchedRank(link, memory, rank, said.decode())
