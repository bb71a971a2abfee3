"""`mimo-launch logs`: the output of a run's ranks.

Decides: the order of files, and how lines name their rank.
Relies on: `launcher.worker_logs` for the files; `launcher.run_folder` for the end of a run.
Leaves: the numbers of a run to `watch` and `report`.
"""

import time
from collections.abc import Callable
from typing import Annotated

import typer

from mimo_launch.cli.shared.console import console_of
from mimo_launch.cli.shared.options import RunFolder, ranks_of

HELP = """
\b
Examples:
  mimo-launch logs runs/quickstart
  mimo-launch logs runs/quickstart --rank 3
  mimo-launch logs runs/quickstart --rank 0,5-7 --follow
  mimo-launch logs runs/quickstart --attempt 0

Print what ranks have written to their standard output and error, each line after its rank; by
default those of all ranks in the newest attempt. With --follow, go on until the run ends. Exits
with 0, or with 2 when there are no such logs.
"""

LOOK_SECONDS = 0.5


def logs(
    ctx: typer.Context,
    *,
    run: RunFolder,
    rank: Annotated[
        str | None, typer.Option(metavar="RANKS", help="Only these ranks, e.g. 3 or 0,5-7.")
    ] = None,
    attempt: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Number of the attempt, from 0.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for more until the run ends.")
    ] = False,
) -> None:
    """Print the output of ranks."""
    from mimo_launch.diag.quantities import named_ranks
    from mimo_launch.launcher.run_folder import State, status_of
    from mimo_launch.launcher.worker_logs import (
        STDERR,
        STDOUT,
        Follower,
        logged_ranks,
        next_attempt,
        rank_folder,
    )

    console = console_of(ctx)
    wanted = None if rank is None else ranks_of(rank, "--rank")
    number = next_attempt(run) - 1 if attempt is None else attempt
    there = logged_ranks(run, number)
    shown = [each for each in there if wanted is None or each in wanted]
    if not shown:
        which = "" if number < 0 else f" in attempt {number}"
        asked = "" if rank is None else f" of rank {rank}"
        help_ = (
            f"it has those of {named_ranks(there)}"
            if there
            else "name a run folder that `mimo-launch runs` lists; its ranks write once they have "
            "started"
        )
        console.refuse(f"{run} has no logs{asked}{which}", help_=help_)

    def printer_of(number: int) -> Callable[[str], None]:
        return lambda line: console.answer(f"[rank {number}] {line}")

    files = {
        rank_folder(run, number, each) / name: printer_of(each)
        for each in shown
        for name in (STDOUT, STDERR)
    }
    follower = Follower(files)
    follower.start()
    try:
        while follow and status_of(run).state is State.RUNNING:
            time.sleep(LOOK_SECONDS)
    finally:
        follower.stop()
    if not any(file.stat().st_size for file in files if file.exists()):
        console.note(f"no output of {named_ranks(shown)}")
