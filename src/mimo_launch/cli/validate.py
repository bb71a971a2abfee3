"""`mimo-launch validate`: reports all mistakes of a spec together.

Decides: what goes to stdout (a verdict per file, or JSON), and the exit code.
Relies on: `checks.load_and_check` for findings, `diag.text` for their form.
Leaves: starting anything to `train`.
"""

from pathlib import Path
from typing import Annotated

import typer

from mimo_launch.cli.shared.console import console_of
from mimo_launch.cli.shared.options import HostCount, HostProcesses, Overrides, world_of

HELP = """
\b
Examples:
  mimo-launch validate spec.yaml
  mimo-launch validate topologies/*.yaml
  mimo-launch validate spec.yaml --nproc 8 --set modules.vision.grid.tp=2
  mimo-launch validate spec.yaml --json

Check specs and report all mistakes together, each with its place and a remedy. Starts nothing and
needs no GPU. Exits with 0 when all files are valid (warnings included), else with 2.
"""


def validate(
    ctx: typer.Context,
    *,
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="Specs to check.")],
    overrides: Overrides = None,
    nproc: HostProcesses = None,
    nnodes: HostCount = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print findings as JSON.")] = False,
) -> None:
    """Check specs; report all mistakes together."""
    from mimo_launch.checks.load_and_check import load_and_check
    from mimo_launch.cli.shared.readiness import show_findings
    from mimo_launch.diag.diagnostic import to_json
    from mimo_launch.layout.layout import world_size

    console = console_of(ctx)
    world = world_of(nproc, nnodes)
    rows, is_valid = [], True
    for number, file in enumerate(files):
        checked = load_and_check(file, overrides or (), world)
        is_valid = is_valid and checked.spec is not None
        if as_json:
            rows.append(
                {
                    "file": str(file),
                    "valid": checked.spec is not None,
                    "diagnostics": to_json(checked.diagnostics, checked.source),
                }
            )
        else:
            if number and checked.diagnostics:
                console.note("")
            show_findings(checked, console)
            if checked.spec is not None:
                ranks, modules = world_size(checked.spec), len(checked.spec.modules)
                plural = "s" * (modules != 1), "s" * (ranks != 1)
                console.answer(
                    f"{file}: valid, {modules} module{plural[0]} on {ranks} rank{plural[1]}"
                )
    if as_json:
        import json

        console.answer(json.dumps({"version": 1, "files": rows}, indent=2))
    raise typer.Exit(0 if is_valid else 2)
