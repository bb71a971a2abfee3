"""`mimo-launch validate`: every mistake of a spec at once.

Decides: what goes to stdout (a verdict per file, or JSON) and the exit code.
Relies on: `checks.load_and_check` for findings, `diag.text` for their form.
Leaves: starting anything to `train`.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mimo_launch.cli.shared.console import console_of
from mimo_launch.cli.shared.options import HostProcesses, Overrides

if TYPE_CHECKING:
    from mimo_launch.spec.model import Spec

HELP = """
\b
Examples:
  mimo-launch validate spec.yaml
  mimo-launch validate topologies/*.yaml
  mimo-launch validate spec.yaml --nproc 8 --set modules.vision.grid.tp=2
  mimo-launch validate spec.yaml --json

Check specs and report every mistake at once, each with its place and a remedy. Starts nothing and
needs no GPU. Exits with 0 when all files are valid (warnings included), else with 2.
"""


def validate(
    ctx: typer.Context,
    *,
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="Specs to check.")],
    overrides: Overrides = None,
    nproc: HostProcesses = None,
    nnodes: Annotated[int, typer.Option(min=1, help="Hosts, with --nproc.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print findings as JSON.")] = False,
) -> None:
    """Check specs; report every mistake at once."""
    from mimo_launch.checks.load_and_check import load_and_check
    from mimo_launch.cli.shared.findings import show_findings
    from mimo_launch.diag.text import to_json

    console = console_of(ctx)
    world = None if nproc is None else nproc * nnodes
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
                console.answer(_verdict(str(file), checked.spec))
    if as_json:
        import json

        console.answer(json.dumps({"version": 1, "files": rows}, indent=2))
    raise typer.Exit(0 if is_valid else 2)


def _verdict(file: str, spec: "Spec") -> str:
    from mimo_launch.layout.layout import world_size

    ranks, modules = world_size(spec), len(spec.modules)
    plural = "s" * (modules != 1), "s" * (ranks != 1)
    return f"{file}: valid, {modules} module{plural[0]} on {ranks} rank{plural[1]}"
