"""The steps of a run that need the most memory, found by columns of sizes.

Decides: of which steps a plan estimates the memory.
Relies on: `layout.balance` for the even cut, `layout.shares` for balanced samples.
Leaves: the sizes of samples to its callers, bytes to `estimate`.

A module's memory grows with the rows that a replica makes at once, in one group of microbatches,
and over all groups of a step, if it keeps them all. So for each module two steps are found: with
the largest share of a group, and with the largest share of a step. For language, whose sequences
are padded, these are the steps with the most tokens and with the most rows in a microbatch.

Where samples stay in the even cut, shares are sums of columns. Where replicas of an island balance
their samples, a share is at least the mean, and at most the mean plus the largest sample if it is
that of a step or of a group that is balanced alone: a sample goes to the replica with the least
load, which is at most the mean; moves and swaps never enlarge the largest share, and neither do
split samples or a return to the even cut. A share of another group is at most all of its rows.
Islands of steps are dealt out as in a run, largest bound first, until no other can be larger, or
`_MOST_DEALT` were, or as many as `_STEPS_DEALT` steps have.
"""

from collections.abc import Callable, Mapping
from functools import cache

import numpy as np
import numpy.typing as npt

from mimo_launch.layout.balance import (
    even_shares,
    num_islands,
    replicas_that_share,
)
from mimo_launch.layout.layout import Layout, ModuleLayout
from mimo_launch.layout.shares import shared_out
from mimo_launch.layout.step_data import StepData

Numbers = npt.NDArray[np.int64]
_STEPS_DEALT, _MOST_DEALT = 16, 256


def heaviest_steps(
    layout: Layout,
    tokens: Numbers,
    rows: Mapping[str, Numbers],
    data_of: Callable[[int], StepData],
) -> list[int]:
    """Return the numbers of the heaviest steps, in order.

    Args:
        layout: The layout on which samples are dealt out.
        tokens: Tokens of each sample, [steps, samples].
        rows: By module, the rows of each sample, [steps, samples].
        data_of: Returns a step by its number, counted from 0.
    """
    found: set[int] = set()
    of_microbatch = len(tokens), -1, layout.samples.microbatch_size
    for column in (tokens, sum(rows.values(), np.zeros_like(tokens))):
        found.add(int(column.reshape(of_microbatch).sum(axis=2).max(axis=1).argmax()))
    for module in layout.modules:
        if not module.is_language:
            found.update(_of_module(layout, module, rows[module.name], data_of))
    return sorted(found)


def _of_module(
    layout: Layout, module: ModuleLayout, rows: Numbers, data_of: Callable[[int], StepData]
) -> set[int]:
    """Return the steps with the largest share of a group, and of all groups."""
    groups = range(layout.num_groups(module))
    even = np.array([even_shares(layout, module, group) for group in groups])
    # Shares by the even cut, [steps, groups, replicas].
    shares = rows[:, even].sum(axis=3)
    inside = replicas_that_share(layout, module)
    if inside == 1:
        return {int(shares.max(axis=(1, 2)).argmax()), int(shares.sum(axis=1).max(axis=1).argmax())}
    islands = len(rows), len(groups), num_islands(layout, module), inside
    of_group = shares.reshape(islands).sum(axis=3)
    largest = rows[:, even].max(axis=3).reshape(islands).max(axis=3)
    of_step = of_group.sum(axis=1) / inside + largest.max(axis=1)
    if module.in_phases:
        of_group = np.minimum(shares.reshape(islands).max(axis=3), of_group / inside + largest)
    step_of = cache(data_of)

    @cache
    def dealt(step: int, island: int) -> Numbers:
        """Return the rows of each share of an island, [groups, replicas of the island]."""
        found = shared_out(layout, step_of(step), module, island)
        return np.array([[share.rows for share in group] for group in found])

    return {
        _largest(of_group.max(axis=1), lambda *island: int(dealt(*island).max())),
        _largest(of_step, lambda *island: int(dealt(*island).sum(axis=0).max())),
    }


def _largest(bounds: npt.NDArray[np.float64], exact: Callable[[int, int], int]) -> int:
    """Return the step with the largest share, of bounds and shares by step and island.

    No share is larger than its bound.
    """
    islands = bounds.shape[1]
    first = min(_STEPS_DEALT * islands, _MOST_DEALT)
    best, most = 0, -1
    for number in np.argsort(-bounds, axis=None, kind="stable")[:first].tolist():
        step, island = divmod(number, islands)
        if bounds[step, island] <= most:
            break
        if (share := exact(step, island)) > most:
            best, most = step, share
    return best
