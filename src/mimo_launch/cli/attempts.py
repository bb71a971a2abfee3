"""Runs attempts of a job until one ends well, or no more are allowed.

Decides: when to start again; the exit code of `train`.
Relies on: `launcher.local` for one attempt.
Leaves: the text of a report to `failure`.
"""

import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

from mimo_launch.cli.console import Console
from mimo_launch.cli.failure import show_failure, show_way_on

if TYPE_CHECKING:
    from mimo_launch.launcher.entry import Job
    from mimo_launch.launcher.failure import RunFailed
    from mimo_launch.launcher.hosts import Hosts
    from mimo_launch.launcher.local import Audience
    from mimo_launch.launcher.signals import StopRequest


def run_attempts(
    job: "Job",
    hosts: "Hosts",
    audience: Callable[[], "Audience"],
    console: Console,
    stop: "StopRequest",
    *,
    max_restarts: int,
) -> int:
    """Run a job, again after a failure if restarts are left, and return the exit code.

    Each attempt has an `audience` of its own.
    """
    from mimo_launch.launcher.failure import RunFailed
    from mimo_launch.launcher.local import launch
    from mimo_launch.launcher.signals import Interrupted

    restart = 0
    while True:
        restart += 1
        try:
            ended_by = launch(job, hosts, audience(), stop)
        except RunFailed as failed:
            show_failure(failed, job, console)
            if restart > max_restarts or not _goes_on(failed, job, console, restart, stop):
                return 1
        except Interrupted as interrupted:
            return _stopped(interrupted.signal, job, hosts, console)
        else:
            return _stopped(ended_by, job, hosts, console) if ended_by else 0


def _stopped(number: int, job: "Job", hosts: "Hosts", console: Console) -> int:
    """Say which signal ended the run, node 0 also how to go on; return the exit code."""
    code = interrupted_by(number, console)
    if hosts.node == 0:
        show_way_on(job, console)
    return code


def interrupted_by(number: int, console: Console) -> int:
    """Say which signal ended the run, and return the exit code for it."""
    console.note(f"interrupted by {signal.Signals(number).name}")
    return 128 + number


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
