"""Runs attempts of a job until one ends well, or no more are allowed.

Decides: when to start again; the exit code of `train`.
Relies on: `launcher.local` for one attempt.
Leaves: the text of a report to `failure`.
"""

import signal
import sys
from typing import TYPE_CHECKING

from mimo_launch.cli.console import Console
from mimo_launch.cli.failure import show_failure

if TYPE_CHECKING:
    from mimo_launch.launcher.entry import Job
    from mimo_launch.launcher.failure import RunFailed
    from mimo_launch.launcher.hosts import Hosts
    from mimo_launch.launcher.signals import StopRequest


def run_attempts(job: "Job", hosts: "Hosts", console: Console, *, max_restarts: int) -> int:
    """Train, again after a failure if restarts are left, and return the exit code."""
    from mimo_launch.launcher.failure import RunFailed
    from mimo_launch.launcher.signals import Interrupted, StopRequest

    with StopRequest() as stop:
        for restart in range(max_restarts + 1):
            try:
                ended_by = _attempt(job, hosts, console, stop)
            except RunFailed as failed:
                _show(failed, job, console)
                if stop.signal:
                    return 128 + stop.signal
                if restart == max_restarts or not _goes_on(failed, job, console, restart + 1):
                    return 1
            except Interrupted as interrupted:
                ended_by = interrupted.signal
                break
            else:
                break
    if ended_by:
        console.note(f"interrupted by {signal.Signals(ended_by).name}")
        return 128 + ended_by
    return 0


def _attempt(job: "Job", hosts: "Hosts", console: Console, stop: "StopRequest") -> int:
    from rich.console import Console as RichConsole

    from mimo_launch.cli.progress import progress_for
    from mimo_launch.launcher.local import launch

    colors = console.colors(sys.stdout)
    with progress_for(RichConsole(no_color=not colors)) as progress:
        return launch(job, hosts, progress, stop, console.note)


def _show(failed: "RunFailed", job: "Job", console: Console) -> None:
    show_failure(failed.failure, job.spec, job.run, console)


def _goes_on(failed: "RunFailed", job: "Job", console: Console, restart: int) -> bool:
    """Say whether and from where the next attempt starts."""
    from mimo_launch.launcher.run_folder import newest_checkpoint

    if not failed.failure.restartable:
        console.note("not started again: another attempt would end in the same way")
        return False
    saved = newest_checkpoint(job.run)
    start = "from the start" if saved is None else f"after step {saved.step}"
    console.note(f"restart {restart}: the run goes on {start}")
    return True
