"""The first placement of given models on a number of GPUs: by a simple rule, or better if one is.

Decides: when a placement is better: where the memory of a GPU is known, and the estimates say so,
or where nothing fits by the rule.
Relies on: `first_layout` for the rule, `advice` for other placements, settings and their estimates.
Leaves: the models and the data of a spec to `cli.init_draft`.
"""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from mimo_launch.estimate.estimates import Estimator
from mimo_launch.plan.plan import Plan
from mimo_launch.search.advice import Planned, Search
from mimo_launch.search.first_layout import FirstLayout, NothingFits, choose
from mimo_launch.spec.load import spec_from_data

# A spec that is not the simplest must be faster by more than estimates are wrong.
LEAST_GAIN = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstSpec:
    """The data of a spec, the best of `planned` ones.

    `changes` says in words what differs from the rule, and is empty if nothing does. `gain` is how
    much faster that is, None if nothing fits by the rule.
    """

    data: dict[str, Any]
    planned: int
    changes: str = ""
    gain: float | None = None


def first_spec(data: Mapping[str, Any], num_ranks: int) -> FirstSpec:
    """Return the data of a spec with ranks, grids and a schedule.

    `data` have none of them. Encoders may get ranks of their own, or all modules share all ranks.
    Raises: NothingFits; ValueError if the data are no spec, whatever the layout.
    """
    try:
        layout = choose(dict(data), num_ranks)
    except NothingFits as error:
        fitting = _better(data, error.too_large, fits=False) if error.too_large else None
        if fitting is None:
            raise
        return fitting
    knows_memory = not {"gpu", "gpu_memory"}.isdisjoint(data.get("nodes") or {})
    found = _better(data, layout, fits=True) if num_ranks > 1 and knows_memory else None
    return found or FirstSpec(data=layout.applied(dict(data)), planned=1)


def _better(data: Mapping[str, Any], layout: FirstLayout, *, fits: bool) -> FirstSpec | None:
    """Return a spec that is faster than a layout, or that fits if that one does not."""
    placed = layout.applied(dict(data))
    estimator = Estimator.of(Plan.of(spec_from_data(placed)))
    estimates = estimator.estimates()
    if estimates.gpu_memory is None:
        return None
    search = Search.of(estimator, estimates, estimates.gpu_memory)
    found = search.run() if fits else search.that_fit()
    best = next((each for each in found if _computes_the_same(each)), None)
    if best is None or (fits and search.gain(best) < LEAST_GAIN):
        return None
    best = search.simplest(best)
    return FirstSpec(
        data=_changed(placed, best.change.settings),
        changes=best.change.text,
        gain=search.gain(best) if fits else None,
        planned=1 + len(search.seen),
    )


def _computes_the_same(planned: Planned) -> bool:
    return not any(path.startswith("train.") for path in planned.change.settings)


def _changed(data: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data with some settings; one of None is the default, which nobody writes."""
    found: dict[str, Any] = deepcopy(dict(data))
    for path, value in settings.items():
        *keys, last = path.split(".")
        place = found
        for key in keys:
            place = place[key]
        if value is None:
            place.pop(last, None)
        else:
            place[last] = value
    return found
