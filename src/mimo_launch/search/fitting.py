"""What `plan` says of a spec that does not fit into its GPUs: changes by which it does.

Decides: how many changes are given.
Relies on: `advice` for changes, `answer` for what is said of each.
Leaves: showing them to `cli`.
"""

from dataclasses import dataclass

from mimo_launch.estimate.estimates import Estimator
from mimo_launch.search.advice import MAX_WASTES, Search
from mimo_launch.search.answer import OfferedChange
from mimo_launch.spec.gpus import GPUS, MEASURED


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatFits:
    """Changes of a spec that does not fit, the fastest first.

    `tried` counts those that were planned by what they change first.
    """

    changes: tuple[OfferedChange, ...]
    tried: dict[str, int]


def what_fits(estimator: Estimator) -> WhatFits:
    """Return changes by which a spec fits that needs more memory than a GPU has."""
    estimates = estimator.estimates()
    search = Search.of(estimator, estimates, estimates.gpu_memory or GPUS[MEASURED].memory)
    found = search.that_fit()[:MAX_WASTES]
    changes = tuple(OfferedChange.of(each, estimates) for each in found)
    return WhatFits(changes=changes, tried=dict(search.tried))
