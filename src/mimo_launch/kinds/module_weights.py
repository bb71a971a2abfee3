"""The weights of a module of a spec that train, and those that are kept in few bits.

Decides: that an adapter trains where a layer has a map that its targets name.
Relies on: the shapes of layers; what the module freezes, adapts and keeps in few bits.
Leaves: stages without a backward to `schedule.data_flow`, its cost to `estimate`, the bytes of
packed weights to `layers.packed`.
"""

from collections.abc import Iterator

from mimo_launch.kinds.adapters import adapter_of
from mimo_launch.kinds.block_shapes import narrow_width
from mimo_launch.kinds.registry import kind_of
from mimo_launch.kinds.weights import Weight
from mimo_launch.spec.module import ModuleSpec
from mimo_launch.spec.quantized_base import QuantizedBase
from mimo_launch.spec.spec import Spec


def lowest_trained(module: ModuleSpec) -> int:
    """Return the first layer of which anything trains, below which no backward runs.

    It is the number of layers if none trains.
    """
    adapter, layers = adapter_of(module), module.model.layers
    if adapter is None:
        return module.lowest_trained
    kind = kind_of(module.model)
    found = (
        number
        for number in range(layers)
        if narrow_width(kind.layer(number), adapter.of_layer(number), 1)
    )
    return next(found, layers)


def has_backward(spec: Spec, name: str) -> bool:
    """Return whether a backward runs through any layer of a module, or any depth after them.

    It does where a layer trains, and where a module trains that it reads, directly or through
    others.
    """
    module = spec.modules[name]
    if reads_trained(spec, name):
        return True
    numbers = kind_of(module.model).numbers(range(module.model.layers), is_last=True)
    return module.trains_besides_projector and numbers.stop > lowest_trained(module)


def reads_trained(spec: Spec, name: str) -> bool:
    """Return whether anything trains in what a module reads, directly or through others."""
    return any(_has_gradient(spec, source) for source in spec.sources_of(name))


def _has_gradient(spec: Spec, name: str) -> bool:
    """Return whether anything trains in a module or before it."""
    if spec.modules[name].frozen is not True:
        return True
    return reads_trained(spec, name)


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
