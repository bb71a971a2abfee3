"""Shows the report of a failed attempt, and keeps it in the run folder; how to go on.

Decides: stderr and `failure.txt`; which command goes on with the run.
Relies on: `launcher.failure_report` for the text.
Leaves: exit codes to `attempts`.
"""

import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from mimo_launch.cli.shared.console import Console, escape_controls

if TYPE_CHECKING:
    from mimo_launch.launcher.rank_tasks import Job
    from mimo_launch.launcher.verdict import RunFailed


def show_failure(failed: "RunFailed", job: "Job", console: Console) -> None:
    """Write the report to stderr, and add it to `failure.txt`; node 0 does so for all hosts."""
    from mimo_launch.launcher.failure_report import report_lines
    from mimo_launch.launcher.run_folder import FAILURE

    run = job.run
    if failed.told is not None:
        console.note(f"{failed.told}\n   = report:  shown by node 0, and in {run / FAILURE}")
        return
    failure = failed.failure
    lines = report_lines(
        failure,
        run,
        command=resume_command(sys.argv[1:]),
        checkpoint=_newest(run),
        resumable=job.task.resumable,
    )
    remark = ""
    if failure.around.folder_lost:  # What is in its place is not ours to write to.
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
    """Say how to go on with a run that a signal has ended, and from which step."""
    from mimo_launch.launcher.failure_report import again_lines

    command = resume_command(sys.argv[1:])
    lines = again_lines(command, _newest(job.run), resumable=job.task.resumable)
    console.note("\n".join(lines))


def _newest(run: Path) -> str | None:
    """Return the newest complete checkpoint in words, if there is one."""
    from mimo_launch.launcher.run_folder import newest_checkpoint

    saved = newest_checkpoint(run)
    return None if saved is None else f"step {saved.step} ({saved.path})"


def resume_command(arguments: list[str]) -> str:
    """Return the command that goes on with a run that `arguments` started."""
    kept = [argument for argument in arguments if argument != "--no-resume"]
    return shlex.join(["mimo-launch", *kept])
