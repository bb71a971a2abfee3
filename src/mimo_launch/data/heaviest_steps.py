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

from collections.abc import Callable, Mapping, Sequence
from functools import cache, reduce
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt

from mimo_launch.diag.frozen import frozen
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
    part_of: Callable[[Numbers], StepData],
) -> list[int]:
    """Return the numbers of the heaviest steps, in order.

    Args:
        layout: The layout on which samples are dealt out.
        tokens: Tokens of each sample, [steps, samples].
        rows: By module, the rows of each sample, [steps, samples].
        part_of: Returns some samples alone, in this order, by their numbers in all steps.
    """
    found: set[int] = set()
    of_microbatch = len(tokens), -1, layout.samples.microbatch_size
    for column in (tokens, reduce(np.add, rows.values()) if rows else np.zeros_like(tokens)):
        found.add(int(column.reshape(of_microbatch).sum(axis=2).max(axis=1).argmax()))
    for module in layout.modules:
        if not module.is_language:
            found.update(_of_module(layout, module, rows[module.name], part_of))
    return sorted(found)


def _of_module(
    layout: Layout, module: ModuleLayout, rows: Numbers, part_of: Callable[[Numbers], StepData]
) -> set[int]:
    """Return the steps with the largest share of a group, and of all groups."""
    groups = range(layout.num_groups(module))
    even = np.array([even_shares(layout, module, group) for group in groups])
    # Rows by the even cut, [steps, groups, replicas, samples of a share].
    evenly = np.take(rows, even, axis=1)
    shares = evenly.sum(axis=3)
    inside = replicas_that_share(layout, module)
    if inside == 1:
        return {int(shares.max(axis=(1, 2)).argmax()), int(shares.sum(axis=1).max(axis=1).argmax())}
    islands = num_islands(layout, module)
    of_islands = len(rows), len(groups), islands, -1
    of_group = shares.reshape(of_islands).sum(axis=3)
    largest = evenly.reshape(of_islands).max(axis=3)
    of_step = of_group.sum(axis=1) / inside + largest.max(axis=1)
    if module.in_phases:
        of_group = np.minimum(shares.reshape(of_islands).max(axis=3), of_group / inside + largest)
    bounds = [each.reshape(-1) for each in (of_group.max(axis=1), of_step)]
    tried = [_largest_first(each, min(_STEPS_DEALT * islands, _MOST_DEALT)) for each in bounds]
    # The samples of each island that is tried, [islands, samples].
    numbers = sorted({number for each in tried for number in each})
    members = even.reshape(len(groups), islands, -1).swapaxes(0, 1).reshape(islands, -1)
    steps, places = np.divmod(numbers, islands)
    part = part_of((steps[:, None] * rows.shape[1] + members[places]).reshape(-1))
    firsts = dict(zip(numbers, count(step=members.shape[1]), strict=False))

    @cache
    def dealt(number: int) -> Numbers:
        """Return the rows of each share of an island, [groups, replicas of the island]."""
        island = number % islands
        own = dict(zip(members[island].tolist(), count(firsts[number]), strict=False))
        found = shared_out(layout, _Renumbered(part, own), module, island)
        return np.array([[share.rows for share in group] for group in found])

    found = (
        _largest(bounds[0], tried[0], lambda number: int(dealt(number).max())),
        _largest(bounds[1], tried[1], lambda number: int(dealt(number).sum(axis=0).max())),
    )
    return {number // islands for number in found}


@frozen
class _Renumbered:
    """The costs of samples that have other numbers in `data`."""

    data: StepData
    numbers: Mapping[int, int]

    def rows(self, module: str, samples: Sequence[int]) -> list[int]:
        """Return the number of rows that a module makes of each of these samples."""
        return self.data.rows(module, [self.numbers[sample] for sample in samples])

    def rows_of_media(self, module: str, sample: int) -> list[int]:
        """Return the rows of each medium of a sample, the most first."""
        return self.data.rows_of_media(module, self.numbers[sample])


def _largest_first(values: npt.NDArray[Any], most: int) -> list[int]:
    """Return the places of the largest values, at most so many; of equal ones the first first."""
    least = np.partition(values, -most)[-most] if most < len(values) else values.min()
    places = np.flatnonzero(values >= least)
    found: list[int] = places[np.argsort(-values[places], kind="stable")].tolist()
    return found[:most]


def _largest(bounds: npt.NDArray[Any], numbers: Sequence[int], exact: Callable[[int], int]) -> int:
    """Return the number with the largest share: of those with the largest bounds, in this order.

    No share is larger than its bound.
    """
    best, most = 0, -1
    for number in numbers:
        if bounds[number] <= most:
            break
        if (share := exact(number)) > most:
            best, most = number, share
    return best
