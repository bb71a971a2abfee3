"""Messages of several commands about a spec that they cannot run.

Decides: that messages go to stderr, and their words.
Relies on: `diag.text` for findings; `launcher.forking`, which imports custom classes in a process
of their own; the simulator's list of stuck ranks.
Leaves: other consequences to the commands.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from mimo_launch.cli.shared.console import Console

if TYPE_CHECKING:
    from mimo_launch.checks.load_and_check import Checked
    from mimo_launch.schedule.deadlock_proof import DeadlockError
    from mimo_launch.spec.spec import Spec


def show_findings(checked: "Checked", console: Console) -> None:
    """Write errors and warnings of a spec to stderr; write nothing when there are none."""
    from mimo_launch.diag.text import render

    if checked.diagnostics:
        color = console.colors(sys.stderr)
        console.note(render(checked.diagnostics, checked.source, color=color))


def sound_spec(file: Path, overrides: Sequence[str] | None, console: Console) -> "Spec":
    """Return the spec of a file, for work without GPUs, and show what is wrong with it.

    Raises: typer.Exit if there are errors.
    """
    from mimo_launch.checks.load_and_check import load_and_check

    checked = load_and_check(file, overrides or (), on_gpus=False)
    show_findings(checked, console)
    if checked.spec is None:
        raise typer.Exit(2)
    return checked.spec


def custom_classes_fail(spec: "Spec", console: Console) -> int | None:
    """Return the exit code and say why if a class that the spec names cannot be used."""
    from mimo_launch.launcher.forking import custom_class_fault

    fault = custom_class_fault(spec)
    if not fault:
        return None
    console.note(f"error: {fault}")
    return 2


SHOWN = 8


def show_deadlock(error: "DeadlockError", file: Path, console: Console) -> None:
    """Write to stderr which ranks are stuck, and in which actions."""
    stuck = error.stuck
    console.note(f"error: the schedule of {file} does not end: {len(stuck)} ranks wait for others")
    for number, line in enumerate(stuck[:SHOWN]):
        console.note(f"   {'= said:' if number == 0 else '       '} {line}")
    if len(stuck) > SHOWN:
        console.note(f"           and {len(stuck) - SHOWN} more")
    console.note("   = why:  the simulator ran every rank's actions; training would hang there")
    console.note("   = help: this is a bug in mimo-launch, not in your spec; please open an issue")
