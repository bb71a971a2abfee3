"""The options of `train` that choose what is measured.

Decides: which steps and ranks the words of a user mean.
Relies on: `cli.shared.options` for lists of ranks.
Leaves: measuring to `train.profiling`.
"""

import re

import typer

from mimo_launch.cli.shared.options import ranks_of

STEPS, RANKS = "--profile", "--profile-ranks"
# The first steps of a process also compile, allocate and connect.
WARM_UP_STEPS = 2


def profiled_steps(text: str | None, total: int) -> range:
    """Return the steps, counted from 0, that `--profile` asks for in a run of `total` steps.

    A number of steps follows a warm-up; a run with fewer steps measures its last ones. Raises:
    typer.BadParameter.
    """
    if text is None:
        return range(0)
    match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", text)
    if match is None:
        raise _bad(f"{text!r} is neither a number of steps nor a range such as 20-22")
    if match[2] is None:
        wanted = int(match[1])
        first = min(WARM_UP_STEPS, max(0, total - wanted))
        return range(first, min(total, first + wanted))
    first, last = int(match[1]), int(match[2])
    if last < first:
        raise _bad(f"{text!r} ends before it begins; write {last}-{first}")
    if first < 1:
        raise _bad(f"steps count from 1; write 1-{max(1, last)}")
    if last > total:
        raise _bad(f"the run has {total} steps; write {min(first, total)}-{total}")
    return range(first - 1, last)


def traced_ranks(text: str | None, steps: range, world_size: int) -> frozenset[int]:
    """Return the ranks that `--profile-ranks` asks for. Raises: typer.BadParameter."""
    if text is None:
        return frozenset()
    if not steps:
        raise typer.BadParameter(f"which steps? Add {STEPS} 1", param_hint=RANKS)
    ranks = ranks_of(text, RANKS)
    if max(ranks) >= world_size:
        raise typer.BadParameter(f"the spec has ranks 0-{world_size - 1}", param_hint=RANKS)
    return ranks


def _bad(reason: str) -> typer.BadParameter:
    return typer.BadParameter(reason, param_hint=STEPS)
