"""Findings about a spec, shown the same way by every command.

Decides: they go to stderr.
Relies on: `diag.text` for their form.
Leaves: what to do about them to the command.
"""

import sys

from mimo_launch.checks.load_and_check import Checked
from mimo_launch.cli.shared.console import Console
from mimo_launch.diag.text import render


def show_findings(checked: Checked, console: Console) -> None:
    """Write errors and warnings of a spec to stderr; write nothing when there are none."""
    if checked.diagnostics:
        color = console.colors(sys.stderr)
        console.note(render(checked.diagnostics, checked.source, color=color))
