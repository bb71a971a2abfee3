"""`mimo-launch runs`: the status of the runs in a folder.

Decides: the columns, and their words.
Relies on: `launcher.run_folder`.
Leaves: curves to `report`, one run as it happens to `watch`.
"""

import math
from pathlib import Path
from typing import Annotated

import typer

from mimo_launch.cli.shared.console import console_of

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
    from mimo_launch.launcher.run_folder import runs_below, status_of

    console = console_of(ctx)
    try:
        found = [status_of(run) for run in runs_below(folder)]
    except OSError as error:
        help_ = "name the folder that `--runs` of `train` named, by default `runs`"
        console.refuse(f"cannot read {folder}: {error.strerror or error}", help_=help_)
    if as_json:
        records = [
            {
                "name": each.run.name,
                "run": str(each.run),
                "state": each.state.value,
                "why": each.why,
                "step": each.step,
                "steps": each.steps,
                "loss": each.loss if math.isfinite(each.loss) else None,
                "age_s": round(each.age_s, 1),
            }
            for each in found
        ]
        console.answer(json.dumps(records, indent=2))
        return
    rows = [("state", "step", "loss", "age", "name")]
    for each in found:
        of = "?" if each.steps is None else f"{each.steps:,}"
        step = f"{each.step:,} of {of}"
        loss = f"{each.loss:.4f}" if math.isfinite(each.loss) else "-"
        age = duration_text(each.age_s)
        rows.append((each.state.value, step, loss, age, each.run.name))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows if found else ():
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        console.answer("  ".join(cells).rstrip())
    if not found:
        console.note(f"{folder} holds no run of `mimo-launch train`")
