"""Adapters: which maps of a layer have one, and the weights of each.

An update of a map [outputs, inputs] is `scale * B A`, with `A` [rank, inputs] drawn as in peft, to
the same variance, and `B` [outputs, rank] zero at first. tp cuts `A` and `B` like the map, so an
update needs no further collective: each rank has terms of the gradient of an uncut matrix.

Decides: the names of `A` and `B`, and how they are cut and drawn.
Relies on: the maps of `shapes`, which ask for the shape of their adapter.
Leaves: the product to `layers.adapters`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from mimo_launch.diag.frozen import frozen
from mimo_launch.kinds.weights import Adapter, LayerShape, Parameters, Terms, Weight
from mimo_launch.spec.module import ModuleSpec

DOWN, UP = "lora_a.weight", "lora_b.weight"
# The target that stands for all maps of experts.
EXPERTS = "experts"


def adapter_of(module: ModuleSpec) -> Adapter | None:
    """Return the adapter of a module, as seen from a block."""
    if module.adapter is None:
        return None
    own = module.adapter
    targets = frozenset(own.targets)
    return Adapter(own.rank, own.scale, targets, own.dropout, frozen=module.frozen_layers)


def is_adapter(name: str) -> bool:
    """Return whether a weight with this full name belongs to an adapter."""
    return name.endswith((DOWN, UP))


@frozen
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


@frozen
class ExpertAdapterShape(LayerShape):
    """The updates of the maps of each expert: those of its input, and that of its output."""

    names_itself: ClassVar[bool] = False
    layer = "mimo_launch.layers.expert_adapters:ExpertUpdates"

    rank: int
    scale: float
    experts: int
    inputs: AdapterShape
    output: AdapterShape

    def own(self, tp: int) -> Parameters:
        """Return the matrices of one expert; all experts have the same."""
        found = {
            "input_down": self.inputs.downs,
            "input_up": self.inputs.ups,
            "output_down": self.output.downs,
            "output_up": self.output.ups,
        }
        return {
            attribute: tuple(
                replace(each, name=f"{{expert}}.{each.name}", experts=self.experts)
                for each in weights
            )
            for attribute, weights in found.items()
        }

    def parts(self) -> Mapping[str, LayerShape | None]:
        """Return none: it holds the matrices itself."""
        return {}


def expert_adapter(
    adapter: Adapter | None, experts: int, width: int, maps: Sequence[tuple[str, Weight]]
) -> ExpertAdapterShape | None:
    """Return the updates of the maps of experts by name, of which the last has their output."""
    if adapter is None or EXPERTS not in adapter.targets:
        return None
    every = replace(adapter, path=adapter.targets)
    inputs = column_adapter(every, width, maps[:-1])
    output = row_adapter(every, *maps[-1])
    if inputs is None or output is None:
        raise ValueError("experts without maps")
    return ExpertAdapterShape(adapter.rank, adapter.scale, experts, inputs, output)


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
