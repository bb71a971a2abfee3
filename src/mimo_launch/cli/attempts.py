"""Runs attempts of a job until one ends well, or no more are allowed.

Decides: when to start again; the exit code of `train`.
Relies on: `launcher.local` for one attempt.
Leaves: the text of a report to `failure`.
"""

import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from mimo_launch.cli.console import Console
from mimo_launch.cli.failure import show_failure

if TYPE_CHECKING:
    from mimo_launch.launcher.entry import Job
    from mimo_launch.launcher.failure import RunFailed
    from mimo_launch.launcher.hosts import Hosts
    from mimo_launch.launcher.signals import StopRequest
    from mimo_launch.train.events import Listener

# What shows the events of an attempt while it is entered.
Screen = AbstractContextManager["Listener"]


def run_attempts(
    job: "Job",
    hosts: "Hosts",
    show: Callable[[], Screen],
    console: Console,
    stop: "StopRequest",
    *,
    max_restarts: int,
) -> int:
    """Run a job, again after a failure if restarts are left, and return the exit code."""
    from mimo_launch.launcher.failure import RunFailed
    from mimo_launch.launcher.signals import Interrupted

    restart = 0
    while True:
        restart += 1
        try:
            ended_by = _attempt(job, hosts, show, console, stop)
        except RunFailed as failed:
            show_failure(failed, job, console)
            if restart > max_restarts or not _goes_on(failed, job, console, restart, stop):
                return 1
        except Interrupted as interrupted:
            return interrupted_by(interrupted.signal, console)
        else:
            return interrupted_by(ended_by, console) if ended_by else 0


def interrupted_by(number: int, console: Console) -> int:
    """Say which signal ended the run, and return the exit code for it."""
    console.note(f"interrupted by {signal.Signals(number).name}")
    return 128 + number


def _attempt(
    job: "Job", hosts: "Hosts", show: Callable[[], Screen], console: Console, stop: "StopRequest"
) -> int:
    from mimo_launch.launcher.local import launch

    if hosts.node:
        # Events come from rank 0, so the launcher of its host shows them.
        return launch(job, hosts, lambda event: None, stop, console.note)
    with show() as listener:
        return launch(job, hosts, listener, stop, console.note)


def _goes_on(
    failed: "RunFailed", job: "Job", console: Console, restart: int, stop: "StopRequest"
) -> bool:
    """Say whether and from where the next attempt starts."""
    from mimo_launch.launcher.run_folder import newest_checkpoint

    if stop.signal:
        console.note(f"not started again: {signal.Signals(stop.signal).name} asked it to stop")
        return False
    if not failed.restartable:
        console.note("not started again: another attempt would end in the same way")
        return False
    saved = newest_checkpoint(job.run)
    start = "from the start" if saved is None else f"after step {saved.step}"
    console.note(f"restart {restart}: the run goes on {start}")
    return True
