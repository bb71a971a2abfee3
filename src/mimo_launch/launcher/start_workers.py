"""Starts the workers of one host through torch elastic, and supervises one attempt.

Decides: fork from a parent that has imported what workers need (8 ranks start in about a second)
and has not initialised CUDA; one pipe for the events of rank 0; when to kill workers.
Relies on: torch elastic to start processes and redirect their output; `watchdog` to observe them;
`hosts` for the other machines of the job.
Leaves: the work of a worker to `worker`, showing events and failures to `cli`.
"""

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from mimo_launch.diag.quantities import named_ranks
from mimo_launch.launcher.forking import import_for_workers
from mimo_launch.launcher.gpus import gpu_settings, refuse_initialised_cuda
from mimo_launch.launcher.host_resources import oom_kills
from mimo_launch.launcher.hosts import Hosts
from mimo_launch.launcher.network import Rendezvous
from mimo_launch.launcher.rank_tasks import Job
from mimo_launch.launcher.shared_progress import HostCells
from mimo_launch.launcher.signals import Interrupted, StopRequest
from mimo_launch.launcher.watchdog import LocalWorker, WorkerWatch, supervise
from mimo_launch.launcher.worker_logs import (
    STDERR,
    STDOUT,
    Follower,
    Recorder,
    log_files,
    rank_folder,
)
from mimo_launch.launcher.worker_processes import ExitWatch, adopt_orphans, children, end_orphans
from mimo_launch.train.events import Event, Listener, RunWaits

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing import PContext

KILL_SECONDS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Audience:
    """The receivers of an attempt's events and output.

    Entering `screen` returns the listener for the events of rank 0. `note` gets remarks and the
    stderr of the shown ranks, `printed` their stdout.
    """

    screen: AbstractContextManager[Listener]
    note: Callable[[str], None]
    printed: Callable[[str], None]


def launch(job: Job, hosts: Hosts, audience: Audience, stop: StopRequest) -> int:
    """Train once on this host's workers; return the signal that ended the run, or 0.

    Raises: RunFailed when a worker of any host raises, dies or hangs; Interrupted on a second
    signal, or on a first one before workers exist. In either case no worker is left.
    """
    import_for_workers()
    if stop.signal:
        raise Interrupted(stop.signal)
    rendezvous = hosts.rendezvous()
    cells, killed_before = HostCells(len(hosts.ranks)), oom_kills()
    reader, writer = Pipe(duplex=False)
    with ExitStack() as outputs, _workers(job, hosts, rendezvous, cells, writer) as watch:
        # Only rank 0 holds the other end now, so the pipe ends when rank 0 does.
        writer.close()
        # Start drawing after the fork: workers would inherit the locks of the drawing thread.
        pump = Pump(reader, outputs.enter_context(audience.screen))
        pump.start()
        outputs.callback(pump.join, timeout=KILL_SECONDS)
        follower = Follower(_receivers(job, hosts, rendezvous, audience))
        follower.start()
        outputs.callback(follower.stop)
        tell = _WaitReport(cells, hosts, pump.tell)

        def meanwhile() -> bool:
            tell.look()
            _obey(stop, cells, hosts, audience.note)
            return False

        supervise(
            watch,
            hosts,
            job.plan,
            meanwhile=meanwhile,
            oom_killed=lambda: oom_kills() > killed_before,
        )
        ended_by = watch.ended_by()
    if pump.error is not None:
        raise pump.error
    return ended_by


class _WaitReport:
    """Reports what the slowest ranks of this host are doing, until the first step has ended."""

    def __init__(self, cells: HostCells, hosts: Hosts, tell: Listener) -> None:
        self._cells, self._ranks, self._tell = cells, list(hosts.ranks), tell
        self._said, self._first_step, self._ended = "", 0, False

    def look(self) -> None:
        """Report it if it has changed."""
        if self._ended:
            return
        found = [self._cells.read(local_rank) for local_rank in range(len(self._ranks))]
        self._first_step = self._first_step or max(each.step for each in found)
        slowest = min(each.phase for each in found)
        self._ended = min(each.step for each in found) > self._first_step > 0
        there = [r for r, each in zip(self._ranks, found, strict=True) if each.phase == slowest]
        said = f"{named_ranks(there)}: {slowest.words}"
        if said != self._said and not self._ended:
            self._said = said
            self._tell(RunWaits(what=said))


def _receivers(
    job: Job, hosts: Hosts, rendezvous: Rendezvous, audience: Audience
) -> dict[Path, Callable[[str], None]]:
    """Return the files of the shown ranks of this host, with the receivers of their lines."""

    def prefix(rank: int, tell: Callable[[str], None]) -> Callable[[str], None]:
        return lambda line: tell(f"[rank {rank}] {line}")

    return {
        rank_folder(job.run, rendezvous.attempt, rank) / name: prefix(rank, tell)
        for rank in hosts.ranks
        if rank in job.shown
        for name, tell in ((STDOUT, audience.printed), (STDERR, audience.note))
    }


def _obey(stop: StopRequest, cells: HostCells, hosts: Hosts, note: Callable[[str], None]) -> None:
    """Pass a stop signal on to the workers; a second one ends everything."""
    if stop.at_once:
        hosts.interrupted(stop.signal)
        raise Interrupted(stop.signal)
    if stop.signal and not cells.asked_to_stop:
        cells.ask_to_stop(stop.signal)
        if hosts.lock is not None:
            hosts.lock.stopping()
        name = signal.Signals(stop.signal).name
        note(f"{name}: stopping after this step; another one stops at once")


@contextmanager
def _workers(
    job: Job, hosts: Hosts, rendezvous: Rendezvous, cells: HostCells, events: Connection
) -> Iterator[WorkerWatch]:
    """Start the workers; on exit, kill those that are left and all processes they started."""
    recorder = Recorder(job.run, rendezvous.attempt) if job.device == "cuda" else None
    context = None
    adopt_orphans()
    before = children()
    try:
        context = _start(job, hosts, rendezvous, cells, events, recorder)
        if rendezvous.store is not None:
            rendezvous.store.serve()  # After the fork, which the store's thread would not survive.
        pids = context.pids()
        workers = tuple(
            LocalWorker(
                rank=rank,
                local_rank=local_rank,
                pid=pids[local_rank],
                folder=rank_folder(job.run, rendezvous.attempt, rank),
            )
            for local_rank, rank in enumerate(hosts.ranks)
        )
        with ExitWatch({worker.rank: worker.pid for worker in workers}) as exits:
            timeout = job.plan.spec.train.timeout
            yield WorkerWatch(
                cells, workers, exits, host=hosts.node, timeout=timeout, recorder=recorder
            )
    finally:
        # A worker that is stopped, or blocked outside Python, would not see a softer signal.
        if context is not None:
            context.close(signal.SIGKILL, timeout=KILL_SECONDS)
        end_orphans(before)
        if recorder is not None:
            recorder.close()


def _start(
    job: Job,
    hosts: Hosts,
    rendezvous: Rendezvous,
    cells: HostCells,
    events: Connection,
    recorder: Recorder | None,
) -> "PContext":
    from torch.distributed.elastic.multiprocessing import start_processes

    from mimo_launch.launcher.worker import worker_main

    # Keep torch elastic from logging a traceback for each failure and from handling signals.
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = ""
    settings = {}
    if recorder is not None:
        refuse_initialised_cuda()
        settings = gpu_settings(recorder.folder) | recorder.environment
    ranks = dict(enumerate(hosts.ranks))
    environments = {
        local_rank: {
            "RANK": str(rank),
            "LOCAL_RANK": str(local_rank),
            "WORLD_SIZE": str(hosts.world_size),
            "LOCAL_WORLD_SIZE": str(len(ranks)),
            "GROUP_RANK": str(hosts.node),
            # The store of this attempt runs in a launcher; workers are its clients.
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            # Ranks connect only to the ranks that they communicate with.
            "TORCH_GLOO_LAZY_INIT": os.environ.get("TORCH_GLOO_LAZY_INIT", "1"),
            **rendezvous.environment,
            **settings,
        }
        for local_rank, rank in ranks.items()
    }
    return start_processes(
        name="worker",
        entrypoint=worker_main,
        args={local_rank: (job, cells.shared, events, os.getpid()) for local_rank in ranks},
        envs=environments,
        logs_specs=log_files(job.run, rendezvous.attempt),
        start_method="fork",
    )


class Pump(threading.Thread):
    """Passes events on until the other end closes; `error` is the listener's exception."""

    def __init__(self, reader: Connection, listener: Listener) -> None:
        super().__init__(daemon=True)
        self._reader, self._listener = reader, listener
        self._lock = threading.Lock()
        self.error: BaseException | None = None

    def tell(self, event: Event) -> None:
        """Pass one event on, from any thread."""
        with self._lock:
            if self.error is None:
                try:
                    self._listener(event)
                except BaseException as error:
                    self.error = error

    def run(self) -> None:
        """Pass events on."""
        while True:
            try:
                event: Event = self._reader.recv()
            except (EOFError, OSError):
                return
            self.tell(event)
