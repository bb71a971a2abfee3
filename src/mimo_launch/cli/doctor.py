"""`mimo-launch doctor`: what this host has for training, and what it lacks.

Decides: the form of the answer, and the exit code.
Relies on: `launcher.host_checks`.
Leaves: the needs of a spec to `validate` and `plan`.
"""

from pathlib import Path
from typing import Annotated

import typer

from mimo_launch.cli.shared.console import console_of
from mimo_launch.cli.shared.options import Runs

HELP = """
\b
Examples:
  mimo-launch doctor
  mimo-launch doctor --runs /scratch/me/runs
  mimo-launch doctor --json

Say what this host has for training: versions, GPUs, memory, open files, shared memory, loopback,
disk; what is missing, and what to do about it. Starts no run. Exits with 0, or with 1 when training
would not work here.
"""


def doctor(
    ctx: typer.Context,
    *,
    runs: Runs = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the checks as JSON.")] = False,
) -> None:
    """Check this host: versions, GPUs, memory, limits."""
    import json
    from dataclasses import asdict

    from mimo_launch import __version__
    from mimo_launch.launcher.host_checks import checks_of_host

    console = console_of(ctx)
    found = list(checks_of_host(runs))
    errors = [each.name for each in found if each.verdict == "error"]
    if as_json:
        record = {"version": __version__, "works": not errors, "checks": list(map(asdict, found))}
        console.answer(json.dumps(record, indent=2))
    else:
        width = max(len(each.name) for each in found)
        console.answer(f"mimo-launch {__version__}")
        for each in found:
            console.answer(f"{each.verdict:8} {each.name:{width}}  {each.found}")
            if each.help:
                console.answer(f"{'':8} {'':{width}}  = help: {each.help}")
        console.answer(
            f"training would not work here: {', '.join(errors)}"
            if errors
            else "training works here"
        )
    if errors:
        raise typer.Exit(1)
