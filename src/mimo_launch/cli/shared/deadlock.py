"""Says which ranks wait for each other when a schedule does not end.

Decides: the words; a spec that passed the checks should never get here.
Relies on: the simulator's list of stuck ranks.
Leaves: exit codes to the commands.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from mimo_launch.cli.shared.console import Console

if TYPE_CHECKING:
    from mimo_launch.schedule.proof import DeadlockError

SHOWN = 8


def show_deadlock(error: "DeadlockError", file: Path, console: Console) -> None:
    """Write which ranks are stuck, and in what, to stderr."""
    stuck = error.stuck
    console.note(f"error: the schedule of {file} does not end: {len(stuck)} ranks wait for others")
    for number, line in enumerate(stuck[:SHOWN]):
        console.note(f"   {'= said:' if number == 0 else '       '} {line}")
    if len(stuck) > SHOWN:
        console.note(f"           and {len(stuck) - SHOWN} more")
    console.note("   = why:  the simulator ran every rank's actions; training would hang there")
    console.note(
        "   = help: this is a fault of mimo-launch, not of your spec; please open an issue"
    )
