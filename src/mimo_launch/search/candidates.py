"""All changes that are tried to make a step faster, in the order in which they are tried.

Decides: that order: each kind of change in turn, then combinations of two.
Relies on: `setting_changes` and `grid_changes`.
Leaves: what is legal to `checks`, whether a change fits and what it gains to `advice`.
"""

from collections.abc import Iterator, Mapping
from itertools import chain, islice, zip_longest

from mimo_launch.search.changes import Change, changed
from mimo_launch.search.grid_changes import grid_ideas, placement_ideas
from mimo_launch.search.setting_changes import setting_ideas
from mimo_launch.spec.spec import Spec

# Grids that are tried beside another change.
_MAX_NEAR = 4


def first_changes(spec: Spec, work: Mapping[str, float]) -> Iterator[Change]:
    """Yield changes of one idea each, in turn placements, settings and grids.

    `work` is the GPU time of each module in a step.
    """
    in_turn = zip_longest(placement_ideas(spec, work), setting_ideas(spec), grid_ideas(spec))
    for kind, settings in filter(None, chain.from_iterable(in_turn)):
        if found := changed(spec, kind, settings):
            yield found


def further_changes(spec: Spec, first: Change) -> Iterator[Change]:
    """Yield the same change with one more idea each."""
    near = islice(grid_ideas(first.spec), _MAX_NEAR)
    for _, settings in (*setting_ideas(first.spec), *near):
        if found := changed(spec, first.kind, {**first.settings, **settings}):
            yield found
