"""`mimo-launch runs`: how the runs in a folder stand.

Decides: the columns, and their words.
Relies on: `launcher.run_folder`.
Leaves: curves to `report`, one run as it happens to `watch`.
"""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mimo_launch.cli.shared.console import console_of

if TYPE_CHECKING:
    from mimo_launch.launcher.run_folder import RunStatus

HELP = """
\b
Examples:
  mimo-launch runs
  mimo-launch runs /scratch/me/runs
  mimo-launch runs --json

List the runs in a folder, the newest first: state (running, done, failed, interrupted), steps,
loss, the time since the last sign of the run, name. Reads files only, so the runs may be of other
hosts. Exits with 0, or with 2 when the folder cannot be read.
"""


def runs(
    ctx: typer.Context,
    *,
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder that holds run folders.")
    ] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the runs as JSON.")] = False,
) -> None:
    """List runs with their state, step and loss."""
    import json

    from mimo_launch.launcher.run_folder import runs_below, status_of

    console = console_of(ctx)
    try:
        found = [status_of(run) for run in runs_below(folder)]
    except OSError as error:
        console.note(f"error: cannot read {folder}: {error.strerror or error}")
        console.note("   = help: name the folder that `--runs` of `train` named, by default `runs`")
        raise typer.Exit(2) from None
    if as_json:
        console.answer(json.dumps([_record(each) for each in found], indent=2))
        return
    rows = [("state", "step", "loss", "age", "name"), *map(_row, found)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows if found else ():
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        console.answer("  ".join(cells).rstrip())
    if not found:
        console.note(f"{folder} holds no run of `mimo-launch train`")


def _row(status: "RunStatus") -> tuple[str, ...]:
    from mimo_launch.diag.quantities import duration_text

    of = "?" if status.steps is None else f"{status.steps:,}"
    loss = f"{status.loss:.4f}" if math.isfinite(status.loss) else "-"
    step = f"{status.step:,} of {of}"
    return (status.state.value, step, loss, duration_text(status.age_s), status.run.name)


def _record(status: "RunStatus") -> dict[str, object]:
    return {
        "name": status.run.name,
        "run": str(status.run),
        "state": status.state.value,
        "why": status.why,
        "step": status.step,
        "steps": status.steps,
        "loss": status.loss if math.isfinite(status.loss) else None,
        "age_s": round(status.age_s, 1),
    }
