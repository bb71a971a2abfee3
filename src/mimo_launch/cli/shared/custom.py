"""Saying what is wrong with classes of a user's own, before anything starts.

Decides: that it is a usage error.
Relies on: `launcher.forking`, which imports them in a process of their own.
Leaves: what the spec alone tells to `checks.custom`.
"""

from typing import TYPE_CHECKING

from mimo_launch.cli.shared.console import Console

if TYPE_CHECKING:
    from mimo_launch.spec.model import Spec


def own_classes_fail(spec: "Spec", console: Console) -> int | None:
    """Return the exit code if a class that the spec names cannot be used, and say why."""
    from mimo_launch.launcher.forking import fault_of_own_classes

    fault = fault_of_own_classes(spec)
    if not fault:
        return None
    console.note(f"error: {fault}")
    return 2
