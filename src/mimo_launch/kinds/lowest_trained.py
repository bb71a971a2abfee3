"""The lowest layer of a module that trains, below which no backward runs.

Decides: that an adapter trains where a layer has a map that its targets name.
Relies on: the shapes of layers.
Leaves: stages without a backward to `schedule.data_flow`, its cost to `estimate`.
"""

from mimo_launch.kinds.adapters import adapter_of
from mimo_launch.kinds.block_shapes import narrow_width
from mimo_launch.kinds.registry import kind_of
from mimo_launch.spec.module import ModuleSpec


def lowest_trained(module: ModuleSpec) -> int:
    """Return the first layer of which anything trains; the number of layers if none."""
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
