"""The weights of a module that are kept in few bits, by name.

Decides: nothing; the shapes of layers do.
Relies on: `quantize_base` of the module.
Leaves: the bytes to `layers.packed`.
"""

from collections.abc import Iterator

from mimo_launch.kinds.registry import kind_of
from mimo_launch.kinds.weights import Weight
from mimo_launch.spec.module import ModuleSpec
from mimo_launch.spec.quantized_base import QuantizedBase


def packed_in_layers(module: ModuleSpec) -> Iterator[Weight]:
    """Yield the packed weights of all layers, under their names in the module."""
    kind, base = kind_of(module.model), module.quantize_base
    for number in range(module.model.layers) if base else ():
        for held in kind.layer(number).weights(f"layers.{number}", module.grid.tp, base=base):
            yield from (each for each in held if each.packed is not None)


def packed_weights(module: ModuleSpec) -> dict[str, QuantizedBase]:
    """Return how each packed weight is kept; each expert has its own."""
    return {
        each.name.format(expert=number): each.packed
        for each in packed_in_layers(module)
        if each.packed is not None
        for number in range(each.experts or 1)
    }
