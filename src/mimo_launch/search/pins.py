"""Settings that a search must keep, and how a point keeps them.

Decides: which settings can be pinned: those of a placement and of the course of a step. With a
pinned size of a grid, dp becomes what the ranks leave, unless dp is pinned itself.
Relies on: `layout.space` for points.
Leaves: whether a point with its pins is legal to `checks`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from typing import Any

from mimo_launch.diag.frozen import frozen
from mimo_launch.diag.quantities import listed
from mimo_launch.layout.space import OF_MODULE, OF_STEP, Placement, Point
from mimo_launch.spec.base import Axis, rank_range
from mimo_launch.spec.editing import merge, tree_of
from mimo_launch.spec.load import dump_spec, spec_from_data
from mimo_launch.spec.spec import ExpertGrid, Grid, Spec

_SIZES = {"grid": Grid, "experts": ExpertGrid}


class CannotPin(ValueError):
    """A setting that is no part of a layout; the message says which ones are."""


@frozen(slots=False)
class Pins:
    """Settings by dotted path, all of which every layout of a search has."""

    settings: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, spec: Spec, settings: Mapping[str, Any]) -> "Pins":
        """Return pins as a spec has them: each size of a grid by itself. Raises: CannotPin."""
        found: dict[str, Any] = {}
        for path, value in settings.items():
            if not any(path == each or path.startswith(f"{each}.") for each in _paths(spec)):
                words = listed([f"`{each}`" for each in _paths(spec)])
                raise CannotPin(f"`{path}` is no part of a layout; these are: {words}")
            try:
                made = spec_from_data(merge(dump_spec(spec), tree_of({path: value})))
            except ValueError as error:
                raise CannotPin(f"`{path}={value}`: {error}") from error
            keys = [f"{path}.{key}" for key in value] if isinstance(value, dict) else [path]
            found |= {each: _value_at(dump_spec(made), each) for each in keys}
        return cls(found)

    def kept_by(self, point: Point) -> Point | None:
        """Return a point with what is pinned; None if its ranks do not divide by it."""
        if not self.settings:
            return point
        step = {key: self.settings[path] for key, path in OF_STEP.items() if path in self.settings}
        point = replace(point, **step)
        for name, pinned in tree_of(self.settings).get("modules", {}).items():
            place, values = point.places[name], dict(pinned)
            if "ranks" in values:
                values["ranks"] = rank_range(values["ranks"])
            for key, kind in _SIZES.items():
                if key in values:
                    values[key] = (getattr(place, key) or kind()).replace(**values[key])
            place = replace(place, **values)
            if (grid := _fitted(place, pinned.get("grid", {}))) is None:
                return None
            point = point.moved(name, **{**values, "grid": grid})
        return point

    def hold_in(self, spec: Spec) -> bool:
        """Return whether a spec has all of them."""
        if not self.settings:
            return True
        data = dump_spec(spec)
        return all(_value_at(data, path) == value for path, value in self.settings.items())


def _fitted(place: Placement, pinned: Mapping[str, int]) -> Grid | None:
    """Return the grid of a place with as many ranks as the place has; None if there is none."""
    grid, number = place.grid, len(place.ranks)
    if grid.num_ranks == number:
        return grid
    # One size gives way: dp, or if it is pinned the first other one that is not.
    for axis in (Axis.DP, Axis.TP, Axis.PP, Axis.CP):
        if axis not in pinned:
            size, left = divmod(number, grid.num_ranks // getattr(grid, axis))
            return None if left or not size else grid.replace(**{axis: size})
    return None


def _paths(spec: Spec) -> Iterator[str]:
    yield from (f"modules.{name}.{key}" for name in spec.modules for key in ("ranks", *OF_MODULE))
    yield from OF_STEP.values()


def _value_at(data: Any, path: str) -> Any:
    for key in path.split("."):
        data = data.get(key) if isinstance(data, dict) else None
    return data
