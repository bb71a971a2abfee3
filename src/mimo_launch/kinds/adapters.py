"""Adapters: which maps of a layer have one, and the weights of each.

An update of a map [outputs, inputs] is `scale * B A`, with `A` [rank, inputs] drawn as in peft, to
the same variance, and `B` [outputs, rank] zero at first. tp cuts `A` and `B` like the map, so an
update needs no further collective: each rank has terms of the gradient of an uncut matrix.

Decides: the names of `A` and `B`, and how they are cut and drawn.
Relies on: the maps of `shapes`, which ask for the shape of their adapter.
Leaves: the product to `layers.adapters`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar

from mimo_launch.kinds.weights import Adapter, LayerShape, Parameters, Terms, Weight
from mimo_launch.spec.module import ModuleSpec

DOWN, UP = "lora_a.weight", "lora_b.weight"


def adapter_of(module: ModuleSpec) -> Adapter | None:
    """Return the adapter of a module, as seen from a block."""
    if module.adapter is None:
        return None
    own = module.adapter
    return Adapter(own.rank, own.scale, frozenset(own.targets), own.dropout)


def is_adapter(name: str) -> bool:
    """Return whether a weight with this full name belongs to an adapter."""
    return name.endswith((DOWN, UP))


def narrow_width(layer: LayerShape, adapter: Adapter | None) -> int:
    """Return the sum of the ranks of all updates of a layer."""
    weights = chain.from_iterable(layer.weights(adapter=adapter)) if adapter else ()
    return sum(each.shape[0] for each in weights if each.name.endswith(DOWN))


@dataclass(frozen=True, slots=True)
class AdapterShape(LayerShape):
    """The updates of the maps fused in one layer; `ups` that ranks share are a parameter apart."""

    names_itself: ClassVar[bool] = False
    layer = "mimo_launch.layers.adapters:LowRank"

    rank: int
    scale: float
    dropout: float
    downs: tuple[Weight, ...]
    ups: tuple[Weight, ...]

    def own(self, tp: int) -> Parameters:
        """Return both matrices of each update."""
        own = tuple(each for each in self.ups if each.copies(tp) == 1)
        shared = tuple(each for each in self.ups if each.copies(tp) > 1)
        return {"down": self.downs, "up": own, "shared_up": shared}


def column_adapter(
    adapter: Adapter | None, width: int, weights: Sequence[tuple[str, Weight]]
) -> AdapterShape | None:
    """Return the updates of maps by name, with outputs cut over tp, of one input."""
    if adapter is None:
        return None
    own = [(name, weight) for name, weight in weights if adapter.takes(name)]
    if not own:
        return None
    downs = tuple(_down(adapter, f"{name}.", width, terms="region") for name, _ in own)
    ups = tuple(_up(adapter, f"{name}.", weight) for name, weight in own)
    return AdapterShape(adapter.rank, adapter.scale, adapter.dropout, downs, ups)


def row_adapter(adapter: Adapter | None, name: str, weight: Weight) -> AdapterShape | None:
    """Return the update of a map with inputs cut over tp; it is part of the map's sum."""
    if adapter is None or not adapter.takes(name):
        return None
    down = _down(adapter, f"{name}.", weight.shape[1], axis=1)
    up = _up(adapter, f"{name}.", weight, terms="region")
    return AdapterShape(adapter.rank, adapter.scale, adapter.dropout, (down,), (up,))


def whole_adapter(adapter: Adapter | None, weight: Weight) -> AdapterShape | None:
    """Return the update of a map that each tp rank holds whole."""
    if adapter is None or not adapter.takes():
        return None
    down, up = _down(adapter, "", weight.shape[1]), _up(adapter, "", weight)
    return AdapterShape(adapter.rank, adapter.scale, adapter.dropout, (down,), (up,))


def _down(
    adapter: Adapter, start: str, inputs: int, *, axis: int | None = None, terms: Terms = "tokens"
) -> Weight:
    """Return the first matrix of an update; its name begins with `start`."""
    shape, std = (adapter.rank, inputs), (3 * inputs) ** -0.5
    name = f"{start}{DOWN}"
    return Weight(name=name, shape=shape, axis=axis, terms=terms, std=std, role="adapter")


def _up(adapter: Adapter, start: str, like: Weight, *, terms: Terms = "tokens") -> Weight:
    """Return the second matrix of an update, with outputs cut like those of its map."""
    return Weight(
        name=f"{start}{UP}",
        shape=(like.shape[0], adapter.rank),
        axis=0 if like.axis == 0 else None,
        unit=like.unit,
        terms=terms,
        init="zeros",
        role="adapter",
    )
