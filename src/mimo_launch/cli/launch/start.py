"""From a checked spec to a run, on one host or several, or as a rank that something else started.

Decides: which launcher opens the run folder, and which shows the run; what a rank that torchrun or
srun started prints about an error, and its exit code.
Relies on: `launcher` for hosts and workers.
Leaves: checks and messages before the run to `prepare`, attempts and exit codes to `attempts`,
ending other ranks to the program that started them.
"""

import os
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mimo_launch.cli.launch.attempts import Attempts, host_lacks, interrupted_by
from mimo_launch.cli.launch.prepare import Start, prepare
from mimo_launch.cli.shared.console import Console
from mimo_launch.cli.shared.readiness import custom_classes_fail

if TYPE_CHECKING:
    from mimo_launch.cli.launch.origin import Origin
    from mimo_launch.launcher.hosts import Hosts
    from mimo_launch.launcher.rank_tasks import Job
    from mimo_launch.launcher.run_folder import RunFolder
    from mimo_launch.launcher.run_lock import RunLock
    from mimo_launch.launcher.signals import StopRequest
    from mimo_launch.launcher.torchrun_slurm import Joined, JoinedWorld, NodePlace
    from mimo_launch.train.events import Event, Listener

# A rank that only lost its peers exits this much later than the rank that failed on its own, so
# that torchrun or srun sees the latter first.
STAY_SECONDS = 2.0


def start(request: Start, origin: "Origin", console: Console) -> int:
    """Run as the rank or launcher that this process is, and return the exit code."""
    from mimo_launch.launcher.host_resources import allow_open_files, too_few_files
    from mimo_launch.launcher.signals import StopRequest
    from mimo_launch.layout.layout import world_size

    allow_open_files()
    num_hosts = 1 if origin.place is None else origin.place.num_nodes
    here = 1 if origin.joined is not None else world_size(request.spec) // num_hosts
    lacking = too_few_files(here)
    if lacking is not None:
        return host_lacks(lacking, console)
    if origin.joined is not None:
        return _joined(request, origin.joined, console)
    request = request.on_host_of(here)
    with StopRequest() as stop:
        launcher = _Launcher(request, console, stop)
        return launcher.alone() if origin.place is None else launcher.with_others(origin.place)


def _joined(request: Start, joined: "Joined", console: Console) -> int:
    """Run as a rank; the first rank finds out if there is anything to run, and tells the others."""
    from mimo_launch.launcher.torchrun_slurm import JoinedWorld

    try:
        world = JoinedWorld(joined, timeout=request.spec.train.timeout)
        if joined.rank:
            ended = world.hear()
            return join(request.job, world, console) if ended is None else ended
    except (OSError, RuntimeError) as error:
        console.note(f"error: rank {joined.rank} cannot reach the others: {error}")
        return 1
    opened: RunFolder | int = 2
    try:
        ended = custom_classes_fail(request.spec, console)
        opened = prepare(request, console) if ended is None else ended
    finally:
        world.say(opened if isinstance(opened, int) else None)
    if isinstance(opened, int):
        return opened
    with opened.lock, _screen(request, opened, console, plain=True) as listener:
        return join(request.job, world, console, listener, opened.lock)


@contextmanager
def _screen(
    request: Start, folder: "RunFolder", console: Console, *, plain: bool
) -> Iterator["Listener"]:
    """Show the events of an attempt; once the run has its state, write spec and plan."""
    from mimo_launch.train.events import RunStarted

    with request.show(plain) as listener:

        def hear(event: "Event") -> None:
            if isinstance(event, RunStarted):
                try:
                    folder.write()
                except OSError as error:
                    console.note(f"warning: the spec was not written to {folder.path}: {error}")
            listener(event)

        yield hear


@dataclass(frozen=True, slots=True)
class _Launcher:
    """Starts the workers of this host, as the `request` says."""

    request: Start
    console: Console
    stop: "StopRequest"

    def alone(self) -> int:
        """Start all workers of the job here."""
        from mimo_launch.launcher.hosts import OneHost
        from mimo_launch.launcher.signals import Interrupted

        try:
            ended = custom_classes_fail(self.request.spec, self.console, self.stop)
            if ended is not None:
                return ended
            folder = prepare(self.request, self.console, self.stop)
        except Interrupted as interrupted:
            return interrupted_by(interrupted.signal, self.console)
        if isinstance(folder, int):
            return folder
        with folder.lock:
            hosts = OneHost(self.request.num_workers, self.request.run, folder.lock)
            return self._run(hosts, folder)

    def with_others(self, place: "NodePlace") -> int:
        """Start the workers of this host once the launchers of all hosts have met."""
        from mimo_launch.launcher.host_rendezvous import Dismissed, HostsError
        from mimo_launch.launcher.hosts import ManyHosts
        from mimo_launch.launcher.signals import Interrupted

        request, console = self.request, self.console
        others = f"node {place.node} of {place.num_nodes}: meeting the others"
        console.note(f"{others} at {place.endpoint}")
        try:
            told = f"{request.device} {request.task.in_common}"
            hosts = ManyHosts(place, request.plan, told, request.run, self.stop)
            folder: RunFolder | int | None = 2
            try:
                folder = custom_classes_fail(request.spec, console, self.stop)
                if folder is None and place.node == 0:
                    folder = prepare(request, console, self.stop)
                if isinstance(folder, int):
                    return folder
                hosts.lock = None if folder is None else folder.lock
                return self._run(hosts, folder)
            finally:
                if isinstance(folder, int):
                    hosts.dismiss(folder)
                hosts.close()
                if hosts.lock is not None:
                    hosts.lock.close()
        except HostsError as error:
            console.note(f"error: {error}")
            return error.code
        except Dismissed as dismissed:
            console.note("node 0 has nothing to run; its launcher says why")
            return dismissed.code
        except Interrupted as interrupted:
            return interrupted_by(interrupted.signal, console)

    def _run(self, hosts: "Hosts", folder: "RunFolder | None") -> int:
        """Run attempts on this host; the launcher that opened the `folder` shows the run."""
        from mimo_launch.launcher.start_workers import Audience

        request, console = self.request, self.console

        def audience() -> Audience:
            # Events come from rank 0, so the launcher of its host shows them.
            screen = (
                nullcontext(lambda event: None)
                if folder is None
                else _screen(request, folder, console, plain=False)
            )
            return Audience(screen=screen, note=console.note, printed=request.say)

        return Attempts(
            job=request.job,
            hosts=hosts,
            audience=audience,
            console=console,
            stop=self.stop,
            max_restarts=request.max_restarts,
        ).run()


def join(
    job: "Job",
    world: "JoinedWorld",
    console: Console,
    listener: "Listener | None" = None,
    lock: "RunLock | None" = None,
) -> int:
    """Run one of the ranks that torchrun or srun started; return the exit code.

    `listener` gets the events of rank 0, which holds the `lock` of the run folder.
    """
    from mimo_launch.launcher.gpus import gpu_settings
    from mimo_launch.launcher.run_lock import FolderLost
    from mimo_launch.launcher.signals import JoinedStop
    from mimo_launch.launcher.worker import Links, run_worker
    from mimo_launch.launcher.worker_logs import RECORDER
    from mimo_launch.runtime.progress import Progress

    if job.device != "cpu":
        os.environ.update(gpu_settings(job.run / RECORDER))
    signals = JoinedStop()
    signals.install()

    def stop() -> int:
        number = signals()
        if lock is not None and number:
            lock.stopping()
        if lock is not None and lock.lost:
            raise FolderLost(f"the run folder no longer belongs to this run: {lock.lost}")
        return number

    links = Links(
        progress=Progress(),
        stop=stop,
        report_error_and_stay=_report_error_and_stay,
        group=world.group,
    )
    listeners = [] if listener is None else [listener]
    os.environ.setdefault("TORCH_GLOO_LAZY_INIT", "1")
    try:
        ended_by = run_worker(
            job.plan, job.run, listeners, task=job.task, device=job.device, links=links
        )
    except Exception:
        console.note(f"error: rank {os.environ['RANK']} failed\n{traceback.format_exc()}")
        ended_by, status = 0, 1
    else:
        status = 128 + ended_by if ended_by else 0
    if lock is not None:
        lock.close()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    # gloo's threads sometimes abort at interpreter exit, which would make a success a failure.
    os._exit(status)


def _report_error_and_stay(error: BaseException) -> None:
    from mimo_launch.launcher.worker_errors import cause_of, write_error
    from mimo_launch.runtime.progress import Cause

    if "TORCHELASTIC_ERROR_FILE" in os.environ:
        with suppress(Exception):
            write_error(error, Path(os.environ["TORCHELASTIC_ERROR_FILE"]))
    if cause_of(error) in (Cause.LOST, Cause.TIMEOUT):
        time.sleep(STAY_SECONDS)
