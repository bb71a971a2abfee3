"""`mimo-launch runs`: the status of the runs in a folder.

Decides: the columns, and their words.
Relies on: `launcher.run_folder`.
Leaves: the states of runs to `launcher.run_folder` and `launcher.run_lock`, curves to `report`, one
run as it happens to `watch`.
"""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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

List the runs in a folder, the newest first: state (running, done, failed, interrupted, unknown),
steps, loss, the time since the last sign of the run, name. Reads files only, so the runs may be of
other hosts. Exits with 0, or with 2 when the folder cannot be read.
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

    from mimo_launch.diag.quantities import duration_text
    from mimo_launch.drawing.table import Column, Table
    from mimo_launch.launcher.run_folder import runs_below, status_of

    console = console_of(ctx)
    try:
        found = [status_of(run) for run in runs_below(folder)]
    except OSError as error:
        help_ = "name the folder that `--runs` of `train` named, by default `runs`"
        console.refuse(f"cannot read {folder}: {error.strerror or error}", help_=help_)
    records = [_record(each) for each in found]
    if as_json:
        console.answer(json.dumps(records, indent=2))
    elif not found:
        console.note(f"{folder} holds no run of `mimo-launch train`")
    else:
        columns = (
            Column("state"),
            Column("step", _steps_text),
            Column("loss", text="{:.4f}".format),
            Column("age", "age_s", duration_text),
            Column("name"),
        )
        table = Table(columns, records, none="-")
        lines = [table.names(), *table.cells()]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        for line in lines:
            cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
            console.answer("  ".join(cells).rstrip())


def _record(status: "RunStatus") -> dict[str, Any]:
    """Return a run as JSON has it."""
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


def _steps_text(record: dict[str, Any]) -> str:
    steps = record["steps"]
    return f"{record['step']:,} of {'?' if steps is None else f'{steps:,}'}"
