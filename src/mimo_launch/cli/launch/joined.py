"""Runs as one of the ranks that torchrun or srun started.

Decides: the first rank opens the run folder and shows the run; the watcher of a host prints the
report of a failure, a rank its own error only if it has no watcher; the exit code of a rank.
Relies on: `launcher.watched_rank` for the watcher, `launcher.joined_world` for the other ranks.
Leaves: messages before the run to `prepare`, ending other ranks to the watcher and to the program
that started them.
"""

import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from mimo_launch.cli.launch.attempts import show_failure
from mimo_launch.cli.launch.prepare import Start, prepare, screen_of
from mimo_launch.cli.shared.console import Console
from mimo_launch.cli.shared.readiness import custom_classes_fail
from mimo_launch.diag.exit_codes import ExitCode, after_signal
from mimo_launch.diag.frozen import frozen

if TYPE_CHECKING:
    import socket

    from mimo_launch.launcher.joined_world import Beginning, JoinedWorld
    from mimo_launch.launcher.run_folder import RunFolder
    from mimo_launch.launcher.run_lock import RunLock
    from mimo_launch.launcher.torchrun_slurm import Joined
    from mimo_launch.launcher.verdict import RunFailed
    from mimo_launch.launcher.watched_rank import WatchedRank
    from mimo_launch.train.events import Listener

# Without a watcher, a rank that only lost its peers exits this much later than the rank that failed
# itself, so that torchrun or srun sees that rank first.
STAY_SECONDS = 2.0
VERDICT_SECONDS = 5.0


def run_joined(request: Start, joined: "Joined", console: Console) -> int:
    """Run as a rank; return its exit code if there is nothing to run."""
    from mimo_launch.launcher.forking import import_for_workers
    from mimo_launch.launcher.rank_watcher import RankWatcher
    from mimo_launch.launcher.watched_rank import watched_rank

    import_for_workers()  # Before the fork of the watcher, which needs these imports, too.

    def watch(listener: "socket.socket") -> None:
        def show(failed: "RunFailed") -> None:
            show_failure(failed, request.job, console, program=_program())

        RankWatcher(listener, request.job, show).run()

    return _JoinedRank(request, joined, console, watched_rank(joined.rank, watch)).run()


def _program() -> str:
    """Return the command that started the ranks, as far as a rank knows it."""
    torchrun = "TORCHELASTIC_RUN_ID" in os.environ
    return "torchrun ... -m mimo_launch" if torchrun else "srun ... mimo-launch"


@frozen
class _JoinedRank:
    """One rank; `watched` is None if it has no watcher."""

    request: Start
    joined: "Joined"
    console: Console
    watched: "WatchedRank | None"

    def run(self) -> int:
        """Run and exit, or return an exit code if there is nothing to run."""
        from mimo_launch.launcher.joined_world import JoinedWorld

        try:
            with self._reaching_others():
                world = JoinedWorld(self.joined, timeout=self.request.spec.train.timeout)
                world.introduce("" if self.watched is None else self.watched.watcher)
                said = world.hear() if self.joined.rank else None
            if said is None:
                return self._open(world)
            return said if isinstance(said, int) else self._work(world, said)
        finally:
            if self.watched is not None:
                self.watched.leave()

    @contextmanager
    def _reaching_others(self) -> Iterator[None]:
        """Say so if other ranks cannot be reached. Raises: typer.Exit."""
        try:
            yield
        except (OSError, RuntimeError) as error:
            if self.watched is not None:
                self.watched.heed(VERDICT_SECONDS)  # Another rank may have died.
            rank = self.joined.rank
            self.console.note(f"error: rank {rank} cannot reach the others: {error}")
            raise typer.Exit(ExitCode.FAILED) from error

    def _open(self, world: "JoinedWorld") -> int:
        """As the first rank, open the run if there is anything to run, and inform the others."""
        from mimo_launch.launcher.joined_world import Beginning
        from mimo_launch.launcher.worker_logs import next_attempt

        opened: tuple[Start, RunFolder] | int = ExitCode.WRONG
        try:
            ended = custom_classes_fail(self.request.spec, self.console)
            opened = prepare(self.request, self.console) if ended is None else ended
        finally:
            if isinstance(opened, int):
                world.say(int(opened))
        if isinstance(opened, int):
            return opened
        request, folder = opened
        with ExitStack() as stack:
            stack.enter_context(folder.lock)
            port = 0 if self.watched is None else self.watched.port
            with self._reaching_others():
                beginning = Beginning(next_attempt(self.request.run), world.hosts(), port)
                world.say(beginning)
            screen = screen_of(request, folder, self.console, plain=True)
            listener = stack.enter_context(screen)
            first = replace(self, request=request)
            return first._work(world, beginning, listener, folder.lock, stack)

    def _work(
        self,
        world: "JoinedWorld",
        beginning: "Beginning",
        listener: "Listener | None" = None,
        lock: "RunLock | None" = None,
        held: ExitStack | None = None,
    ) -> int:
        """Do the work of this rank, and end this process.

        `listener` gets the events of rank 0, which holds the `lock` of the run folder. `held`
        closes both.
        """
        from mimo_launch.launcher.gpus import gpu_settings
        from mimo_launch.launcher.signals import JoinedStop
        from mimo_launch.launcher.worker import Links, run_worker
        from mimo_launch.launcher.worker_logs import RECORDER, attempt_folder
        from mimo_launch.runtime.progress import Progress

        job, watched = self.request.job, self.watched
        if job.device != "cpu":
            folder = attempt_folder(job.run, beginning.attempt)
            os.environ.update(gpu_settings(folder / RECORDER))
        signals = JoinedStop() if watched is None else JoinedStop(watched.cells.note_signal)
        signals.install()
        if watched is not None:
            watched.begin(beginning, job.run)
        links = Links(
            progress=Progress() if watched is None else watched.cells.progress,
            stop=partial(_stop, signals, lock),
            report_error_and_stay=self._report_error_and_stay,
            group=world.group,
        )
        listeners = [] if listener is None else [listener]
        os.environ.setdefault("TORCH_GLOO_LAZY_INIT", "1")
        try:
            with held or ExitStack():  # On exit, the screen says that the run is done.
                ended_by = run_worker(
                    job.plan, job.run, listeners, task=job.task, device=job.device, links=links
                )
        except BaseException as error:  # Code of a user may leave with the status 0.
            status: int = ExitCode.FAILED
            if watched is not None and not watched.has_failed:
                watched.fail(error)  # An error at the end: a record that cannot be closed.
            self.console.note(f"error: rank {self.joined.rank} failed\n{traceback.format_exc()}")
        else:
            status = after_signal(ended_by) if ended_by else ExitCode.DONE
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):
                stream.flush()
        # gloo's threads sometimes abort at interpreter exit, which would turn success into failure.
        os._exit(status)

    def _report_error_and_stay(self, error: BaseException) -> None:
        from mimo_launch.launcher.worker_errors import cause_of, write_error
        from mimo_launch.runtime.progress import Cause

        of_torchrun = os.environ.get("TORCHELASTIC_ERROR_FILE")
        files = [] if of_torchrun is None else [Path(of_torchrun)]
        if self.watched is not None:
            self.watched.fail(error, *files)  # Usually this ends the process.
        for file in files:
            with suppress(Exception):
                write_error(error, file)
        if cause_of(error) in (Cause.LOST, Cause.TIMEOUT):
            time.sleep(STAY_SECONDS)


def _stop(signals: Callable[[], int], lock: "RunLock | None") -> int:
    """Return the signal that asks this rank to stop, or 0. Raises: FolderLost."""
    from mimo_launch.launcher.run_lock import FolderLost

    number = signals()
    if lock is not None and number:
        lock.stopping()
    if lock is not None and lock.lost:
        raise FolderLost(lock.lost)
    return number
