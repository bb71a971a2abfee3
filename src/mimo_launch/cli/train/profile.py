"""The options of `train` that choose what is measured.

Decides: which steps and ranks the words of a user mean.
Relies on: `cli.shared.options` for lists of ranks.
Leaves: which of these steps a resumed run still has to `launcher.profiled_steps`, measuring to
`train.profiling`.
"""

import re

import typer

from mimo_launch.cli.shared.options import ranks_of
from mimo_launch.launcher.profiled_steps import NO_STEPS, ProfiledSteps

STEPS, RANKS = "--profile", "--profile-ranks"


def profiled_steps(text: str | None, total: int) -> ProfiledSteps:
    """Return the steps that `--profile` asks for in a run of `total` steps.

    Raises: typer.BadParameter.
    """
    if text is None:
        return NO_STEPS
    # More digits than any number of steps has are no number.
    match = re.fullmatch(r"\s*([0-9]{1,18})\s*(?:-\s*([0-9]{1,18})\s*)?", text)
    if match is None:
        shown = text if len(text) < 40 else text[:40] + "..."
        raise _bad(f"{shown!r} is neither a number of steps nor a range such as 20-22")
    if match[2] is None:
        if not int(match[1]):
            raise _bad(f"0 steps are nothing to measure; write 1, or leave {STEPS} out")
        return ProfiledSteps(int(match[1]))
    first, last = int(match[1]), int(match[2])
    if last < first:
        raise _bad(f"{text!r} ends before it begins; write {last}-{first}")
    if first < 1:
        raise _bad(f"steps count from 1; write 1-{max(1, last)}")
    if last > total:
        raise _bad(f"the run has {total} steps; write {min(first, total)}-{total}")
    return ProfiledSteps(last - first + 1, first - 1)


def traced_ranks(text: str | None, steps: ProfiledSteps, world_size: int) -> frozenset[int]:
    """Return the ranks that `--profile-ranks` asks for. Raises: typer.BadParameter."""
    if text is None:
        return frozenset()
    if not steps.number:
        raise typer.BadParameter(f"which steps? Add {STEPS} 1", param_hint=RANKS)
    ranks = ranks_of(text, RANKS)
    if max(ranks) >= world_size:
        raise typer.BadParameter(f"the spec has ranks 0-{world_size - 1}", param_hint=RANKS)
    return ranks


def _bad(reason: str) -> typer.BadParameter:
    return typer.BadParameter(reason, param_hint=STEPS)
