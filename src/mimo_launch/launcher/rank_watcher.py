"""The process that watches the ranks of torchrun or srun on this host.

Decides: it watches ranks as a launcher does, by their processes and their cells. After a failure it
sends each rank the exit code, to the rank to blame first, so that the program that started the
ranks sees that rank end first. It exits when its ranks have ended, and kills ranks that stay after
a failure.
Relies on: `watched_rank`, which starts it and connects to it; `watchdog` and `hosts`, as a launcher
does.
Leaves: showing a failure to `cli`, the ranks' part to `watched_rank`.
"""

import os
import secrets
import socket
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch

from mimo_launch.launcher.host_messages import LEAVE_SECONDS, LOST_SECONDS, AllHosts, HostMessages
from mimo_launch.launcher.host_resources import oom_kills
from mimo_launch.launcher.hosts import WatchedHosts
from mimo_launch.launcher.joined_world import Beginning
from mimo_launch.launcher.network import listen_at, open_store
from mimo_launch.launcher.rank_tasks import Job
from mimo_launch.launcher.run_lock import FolderLost
from mimo_launch.launcher.shared_progress import HostCells
from mimo_launch.launcher.verdict import Host, RunFailed
from mimo_launch.launcher.watchdog import POLL_SECONDS, LocalWorker, WorkerWatch, supervise
from mimo_launch.launcher.watched_rank import peer_of
from mimo_launch.launcher.worker_logs import next_attempt, rank_folder
from mimo_launch.launcher.worker_processes import ExitWatch
from mimo_launch.runtime.progress import STOP_SIGNALS

# A rank sends its number as soon as it has connected.
HELLO_SECONDS = 2.0
# The rank to blame has this long to end before the others get their exit code.
FIRST_SECONDS = 0.5
# Ranks that still run this long after they got their exit code are killed.
END_SECONDS = 3.0
MOST_BYTES = 1 << 20
_STOPS = {number.name for number in STOP_SIGNALS}


class RankWatcher:
    """Watches the ranks that connect to `listener`; `show` reports a failure to the user."""

    def __init__(
        self, listener: socket.socket, job: Job, show: Callable[[RunFailed], None]
    ) -> None:
        self._listener, self._job, self._show = listener, job, show
        self._listener.setblocking(False)
        self._token = secrets.token_hex(8)
        self._meeting: socket.socket | None = None
        world_size, timeout = job.plan.layout.world_size, job.plan.spec.train.timeout
        self._file = os.memfd_create("progress")
        self._cells = HostCells(world_size, self._file)
        self._exits = ExitWatch({})
        self._watch = WorkerWatch(self._cells, (), self._exits, host=0, timeout=timeout)
        self._ranks: dict[int, socket.socket] = {}
        self._beginning: Beginning | None = None
        self._killed_before = oom_kills()
        self._done_since = 0.0

    def run(self) -> None:
        """Watch until the ranks have ended."""
        with self._exits:
            self._gather()
            if self._beginning is None and self._were_stopped():
                return
            everyone = self._hosts()
            folder = _FolderOfFirstRank(self._cells)
            hosts = WatchedHosts(everyone, everyone.attempt, folder)
            try:
                supervise(
                    self._watch,
                    hosts,
                    self._job.plan,
                    meanwhile=lambda: self._is_over(everyone),
                    oom_killed=lambda: oom_kills() > self._killed_before,
                )
            except RunFailed as failed:
                # No rank may connect to a watcher that has judged.
                self._listener.close()
                self._show(failed)
                self._tell(failed.code, [failed.failure.verdict.rank], FIRST_SECONDS)
                self._tell(failed.code, self._ranks, END_SECONDS)
            self._listener.close()
            hosts.close()

    def _gather(self) -> None:
        """Let ranks connect until the run begins, a rank fails, or all have left."""
        until = time.monotonic() + LOST_SECONDS
        while self._beginning is None and not self._watch.failed():
            self._look()
            self._watch.look()
            nothing_to_do = self._watch.done() and (self._ranks or time.monotonic() > until)
            if nothing_to_do or self._cells.asked_to_end:
                return
            time.sleep(POLL_SECONDS)

    def _were_stopped(self) -> bool:
        """Return whether stop signals ended all ranks; wait for the ranks that still run.

        Before a run begins, such a signal comes from the program that started the ranks.
        """
        until = time.monotonic() + END_SECONDS
        while all(end.killed_by in _STOPS for end in self._exits.exits.values()):
            if not self._left(self._ranks):
                return True
            if time.monotonic() > until:
                return False
            time.sleep(POLL_SECONDS)
        return False

    def _look(self) -> None:
        """Let ranks connect, and read how the run begins."""
        with suppress(OSError, ValueError):  # No rank waits to connect, or one has left again.
            while True:
                self._welcome(self._listener.accept()[0])
        for rank in self._ranks.values() if self._beginning is None else ():
            with suppress(OSError):
                if said := rank.recv(MOST_BYTES):
                    self._begin(Beginning.from_json(said.decode()))
                    return

    def _welcome(self, rank: socket.socket) -> None:
        """Accept a rank, ask the kernel for its pid, and send it the cells."""
        rank.settimeout(HELLO_SECONDS)
        pid, user = peer_of(rank)
        if user != os.getuid():  # Anyone may connect.
            rank.close()
            return
        number = int(rank.recv(MOST_BYTES))
        rank.setblocking(False)  # A timeout would delay every later look.
        if number in self._ranks:
            return  # The rank got no answer in time, and goes on without a watcher.
        self._exits.add(number, pid)
        folder = rank_folder(self._job.run, next_attempt(self._job.run), number)
        self._watch.workers.append(
            LocalWorker(rank=number, local_rank=number, pid=pid, folder=folder)
        )
        self._ranks[number] = rank
        said = f"{self._token} {self._port() if number == 0 else 0}".encode()
        socket.send_fds(rank, [said], [self._file])

    def _port(self) -> int:
        """Open the port here at which the watchers of all hosts meet; return 0 if that fails."""
        with suppress(OSError):
            self._meeting = listen_at(os.environ["MASTER_ADDR"], 0)
            return int(self._meeting.getsockname()[1])
        return 0

    def _begin(self, beginning: Beginning) -> None:
        """Note that ranks write to the folders of their attempt and must make progress from now."""
        self._beginning = beginning
        self._watch.workers[:] = [
            replace(worker, folder=rank_folder(self._job.run, beginning.attempt, worker.rank))
            for worker in self._watch.workers
        ]
        self._watch.on_gpus = self._job.device != "cpu" and torch.cuda.is_available()

    def _hosts(self) -> "_KnownHosts":
        """Return the hosts of the job; before the run has begun, only this one is known."""
        began = self._beginning or Beginning(
            next_attempt(self._job.run),
            (Host(node=0, name=socket.gethostname(), ranks=tuple(sorted(self._ranks))),),
            0,
        )
        mine = [host for host in began.hosts if set(host.ranks) & set(self._ranks)]
        node = mine[0].node if mine else 0
        everyone = _KnownHosts(began, node, self._store(began, node))
        self._watch.host = everyone.node
        return everyone

    def _store(self, began: Beginning, node: int) -> Any:
        """Return the store where watchers meet; None if this one is alone or cannot reach it."""
        if len(began.hosts) == 1 or not began.port:
            return None
        with suppress(RuntimeError):
            return open_store(
                os.environ["MASTER_ADDR"], began.port, None if node else self._meeting, LOST_SECONDS
            )
        return None

    def _is_over(self, everyone: AllHosts) -> bool:
        """Return whether to leave without a verdict.

        A second signal ended the ranks, or they are done and other hosts, if any, are late or
        silent.
        """
        self._look()
        if not self._watch.done():
            return self._cells.asked_to_end
        self._done_since = self._done_since or time.monotonic()
        waits = everyone.others and time.monotonic() - self._done_since < LEAVE_SECONDS
        return not waits or bool(everyone.silent)

    def _tell(self, code: int, ranks: Collection[int], seconds: float) -> None:
        """Send ranks of this host their exit code, wait for their end, and kill the rest."""
        here = [rank for rank in ranks if rank in self._ranks and rank not in self._exits.exits]
        for rank in here:
            with suppress(OSError):
                self._ranks[rank].send(str(int(code)).encode())
        until = time.monotonic() + seconds
        while self._left(here) and time.monotonic() < until:
            time.sleep(POLL_SECONDS)
        self._exits.kill(self._left(here))

    def _left(self, ranks: Iterable[int]) -> list[int]:
        return [rank for rank in ranks if rank not in self._exits.exits]


class _KnownHosts(AllHosts):
    """All hosts of an attempt, as the first rank named them; without a `store`, only this one."""

    def __init__(self, began: Beginning, node: int, store: Any) -> None:
        self.attempt = began.attempt
        self._known = began.hosts if store is not None else (replace(began.hosts[node], node=0),)
        node, num_nodes = 0 if store is None else node, len(self._known)
        super().__init__(HostMessages(store, node, num_nodes), node, num_nodes)
        self.messages.say(name=self._known[node].name)
        if store is not None:
            self.messages.start()

    def host(self, node: int) -> Host:
        """Return a host."""
        return self._known[node]


class _FolderOfFirstRank:
    """The state of the run folder, as the first rank, which holds the lock, reports it."""

    def __init__(self, cells: HostCells) -> None:
        self._cells = cells

    @property
    def lost(self) -> str:
        """What happened to the folder, or ""."""
        return self._cells.message(0).partition(f"{FolderLost.__name__}: ")[2]

    def stopping(self) -> None:
        """Do nothing: the first rank records it."""

    def check(self) -> str:
        """Return `lost`: the first rank looks at the end of the run."""
        return self.lost
