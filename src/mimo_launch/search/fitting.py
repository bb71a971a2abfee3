"""What `plan` says of a spec that does not fit into its GPUs: changes that make it fit.

Decides: how many changes are given, and in which order.
Relies on: `advice` for changes, `answer` for the facts about each.
Leaves: showing them to `cli`.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from mimo_launch.estimate.estimates import Estimator
from mimo_launch.search.advice import LEAST_GAIN, MAX_WASTES, Planned, Search
from mimo_launch.search.answer import OfferedChange
from mimo_launch.spec.values import GPUS, MEASURED


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatFits:
    """Changes of a spec that does not fit, the fastest first.

    `tried` counts the planned changes by what they change first.
    """

    changes: tuple[OfferedChange, ...]
    tried: dict[str, int]


def what_fits(estimator: Estimator) -> WhatFits:
    """Return changes that make a spec fit that needs more memory than a GPU has."""
    estimates = estimator.estimates()
    search = Search.of(estimator, estimates, estimates.gpu_memory or GPUS[MEASURED].memory)
    found = in_order(search.that_fit())[:MAX_WASTES]
    changes = tuple(OfferedChange.of(each, estimates) for each in found)
    return WhatFits(changes=changes, tried=dict(search.tried))


def in_order(fastest_first: Iterable[Planned]) -> list[Planned]:
    """Return changes, no two of which set the same keys; equally fast ones start with the shortest.

    Two are equally fast if their times differ by less than the error of estimates.
    """
    by_keys: dict[frozenset[str], Planned] = {}
    for each in fastest_first:
        by_keys.setdefault(frozenset(each.change.settings), each)
    left, found = list(by_keys.values()), list[Planned]()
    while left:
        most = (1 + LEAST_GAIN) * left[0].estimates.step_seconds
        alike = [each for each in left if each.estimates.step_seconds <= most]
        found += sorted(alike, key=lambda each: len(each.change.settings))
        left = left[len(alike) :]
    return found
