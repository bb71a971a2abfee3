"""Runs attempts of a job until one succeeds or no more are allowed, and reports failures.

Decides: when to start again; the exit code of `train`; that a report goes to stderr and to the run
folder.
Relies on: `launcher.start_workers` for one attempt, `launcher.failure_report` for the text.
Leaves: the verdict on a failure to `launcher.verdict`.
"""

import shlex
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from mimo_launch.cli.shared.console import Console, escape_controls
from mimo_launch.diag.exit_codes import ExitCode, after_signal
from mimo_launch.diag.frozen import frozen

if TYPE_CHECKING:
    from mimo_launch.launcher.hosts import Hosts
    from mimo_launch.launcher.rank_tasks import Job
    from mimo_launch.launcher.signals import StopRequest
    from mimo_launch.launcher.start_workers import Audience
    from mimo_launch.launcher.verdict import RunFailed


FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
POLL_SECONDS = 0.05


class Pause:
    """The wait before each restart: twice as long each time, unless the run made progress."""

    def __init__(self) -> None:
        self._next, self._step = FIRST_PAUSE, 0

    def after(self, step: int) -> float:
        """Return the seconds to wait after an attempt that last saved after `step`."""
        if step > self._step:
            self._next, self._step = FIRST_PAUSE, step
        seconds, self._next = self._next, min(LONGEST_PAUSE, 2 * self._next)
        return seconds


@frozen(kw_only=True)
class Attempts:
    """A job on this host that is started again after failures.

    `audience` is called for each attempt.
    """

    job: "Job"
    hosts: "Hosts"
    audience: Callable[[], "Audience"]
    console: Console
    stop: "StopRequest"
    max_restarts: int

    def run(self) -> int:
        """Run the job until it ends and is not started again; return the exit code."""
        from mimo_launch.launcher.host_resources import environment_fault
        from mimo_launch.launcher.signals import Interrupted
        from mimo_launch.launcher.start_workers import launch
        from mimo_launch.launcher.verdict import RunFailed

        restarts, pause = 0, Pause()
        while True:
            try:
                ended_by = launch(self.job, self.hosts, self.audience(), self.stop)
            except RunFailed as failed:
                show_failure(failed, self.job, self.console)
                restarts += 1
                if restarts > self.max_restarts:
                    return failed.code
                if not self._waits_to_restart(failed, restarts, pause):
                    return failed.code
            except Interrupted as interrupted:
                return self._stopped(interrupted.signal)
            except (OSError, RuntimeError) as error:
                fault = environment_fault(error)
                if fault is None:
                    raise
                return host_lacks(fault, self.console)
            else:
                return self._stopped(ended_by) if ended_by else ExitCode.DONE

    def _stopped(self, number: int) -> int:
        """Say which signal ended the run and, on node 0, how to resume; return the exit code."""
        code = interrupted_by(number, self.console)
        if self.hosts.node == 0:
            show_way_on(self.job, self.console)
        return code

    def _waits_to_restart(self, failed: "RunFailed", number: int, pause: Pause) -> bool:
        """Announce the next attempt and wait for its start, or say why there is no other."""
        from mimo_launch.launcher.run_folder import newest_checkpoint

        if self._asked_to_stop():
            return False
        if not failed.restartable:
            why = (
                "another attempt would end in the same way"
                if failed.code is ExitCode.FAILED
                else "not all hosts are left; start it again on hosts that answer"
            )
            self.console.note(f"not started again: {why}")
            return False
        saved = newest_checkpoint(self.job.run)
        start = "starts over" if saved is None else f"resumes after step {saved.step}"
        seconds = pause.after(0 if saved is None else saved.step)
        self.console.note(f"restart {number}: the run {start}, in {seconds:.0f} s")
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self.stop.signal:
            time.sleep(POLL_SECONDS)
        return not self._asked_to_stop()

    def _asked_to_stop(self) -> bool:
        if self.stop.signal:
            name = signal.Signals(self.stop.signal).name
            self.console.note(f"not started again: {name} asked it to stop")
        return bool(self.stop.signal)


def host_lacks(fault: tuple[str, str], console: Console) -> int:
    """Say what this host lacks for a run, with the remedy, and return the exit code."""
    console.note(f"error: {fault[0]}\n   = help: {fault[1]}")
    return ExitCode.FAILED


def interrupted_by(number: int, console: Console) -> int:
    """Say which signal ended the run, and return its exit code."""
    console.note(f"interrupted by {signal.Signals(number).name}")
    return after_signal(number)


def show_failure(
    failed: "RunFailed", job: "Job", console: Console, program: str = "mimo-launch"
) -> None:
    """Write the report to stderr and append it to `failure.txt`; node 0 does it for all hosts.

    `program` is the command that starts the run again.
    """
    from mimo_launch.launcher.failure_report import report_lines
    from mimo_launch.launcher.run_folder import FAILURE

    run = job.run
    if failed.words is not None:
        console.note(f"{failed.words}\n   = report:  shown by node 0, and in {run / FAILURE}")
        return
    failure = failed.failure
    lines = report_lines(
        failure,
        run,
        command=resume_command(sys.argv[1:], program),
        checkpoint=_newest(run),
        resumable=job.task.resumable,
    )
    remark = ""
    if failure.around.folder_lost:  # The folder there now is not ours to write to.
        console.note("\n".join(lines))
        return
    try:
        with (run / FAILURE).open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} attempt {failure.attempt}\n")
            file.write(escape_controls("\n".join(lines)) + "\n\n")
    except OSError as error:
        remark = f"\nwarning: the report could not be written to {run / FAILURE}: {error}"
    console.note("\n".join(lines) + remark)


def show_way_on(job: "Job", console: Console) -> None:
    """Say how to resume a run that a signal ended, and from which step."""
    from mimo_launch.launcher.failure_report import again_lines

    command = resume_command(sys.argv[1:])
    lines = again_lines(command, _newest(job.run), resumable=job.task.resumable)
    console.note("\n".join(lines))


def _newest(run: Path) -> str | None:
    """Return the newest complete checkpoint in words, if there is one."""
    from mimo_launch.launcher.run_folder import newest_checkpoint

    saved = newest_checkpoint(run)
    return None if saved is None else f"step {saved.step} ({saved.path})"


def resume_command(arguments: list[str], program: str = "mimo-launch") -> str:
    """Return the command that resumes a run that `program` started with `arguments`."""
    kept = [argument for argument in arguments if argument != "--no-resume"]
    return f"{program} {shlex.join(kept)}"
