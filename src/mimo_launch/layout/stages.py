"""Cuts the layers of a module into pipeline stages, and the layers of a stage into FSDP units.

Decides: which layers a stage holds, and which layers FSDP2 gathers together.
Relies on: the spec's types only.
Leaves: which ranks hold a stage to `layout`.
"""

from collections.abc import Callable, Sequence

from mimo_launch.diag.frozen import frozen
from mimo_launch.spec.base import LANGUAGE
from mimo_launch.spec.spec import Spec
from mimo_launch.spec.values import Sharding

# Consecutive layers form an FSDP unit once they have this many parameters.
MIN_PARAMETERS_PER_UNIT = 64_000_000


@frozen
class Stage:
    """Consecutive layers of one module.

    Stage i is at pp index i modulo pp: with virtual stages a rank holds several. Besides the hidden
    state, a stage receives `lanes` tensors of the same size from the previous stage: outputs of
    layers that leave at the end of an encoder, or rows for later layers of language. FSDP2 gathers
    each of the `units`, runs of its layers, by itself; without any, all layers with its root.
    """

    module: str
    index: int
    first_layer: int
    num_layers: int
    is_first: bool
    is_last: bool
    lanes: int = 0
    units: tuple[range, ...] = ()

    @property
    def layers(self) -> range:
        """Numbers of its layers in the module, from 0."""
        return range(self.first_layer, self.first_layer + self.num_layers)


def cut_into_stages(
    spec: Spec, name: str, lanes: Callable[[int], int], sizes: Sequence[int]
) -> tuple[Stage, ...]:
    """Cut the layers into consecutive runs, as the spec says.

    `lanes(number)` is the number of lanes that a layer receives; `sizes` are the parameters of each
    layer on a tp rank, without experts, which are units of their own.
    """
    runs, sharding = stage_sizes(spec, name), spec.modules[name].fsdp
    stages, first = [], 0
    for index, num_layers in enumerate(runs):
        ends = index == 0, index == len(runs) - 1
        units = _fsdp_units(sizes[first : first + num_layers], sharding)
        stages.append(Stage(name, index, first, num_layers, *ends, lanes(first), units))
        first += num_layers
    return tuple(stages)


def virtual_stages(spec: Spec, name: str) -> int:
    """Return the stages of a module that a rank holds: only of language there may be several."""
    return spec.schedule.virtual_stages if name == LANGUAGE else 1


def num_stages(spec: Spec, name: str) -> int:
    """Return the number of stages of a module."""
    return spec.modules[name].grid.pp * virtual_stages(spec, name)


def stage_sizes(spec: Spec, name: str) -> tuple[int, ...]:
    """Return the layers of each stage: those of the spec, or else as equal as possible."""
    module = spec.modules[name]
    return module.stages or even_stages(module.model.layers, num_stages(spec, name))


def even_stages(layers: int, number: int) -> tuple[int, ...]:
    """Return the layers of each of `number` stages: as equal as possible, earlier ones longer."""
    share, extra = divmod(layers, number)
    return tuple(share + (index < extra) for index in range(number))


def _fsdp_units(sizes: Sequence[int], sharding: Sharding) -> tuple[range, ...]:
    """Return the runs of layers that FSDP2 gathers together: single ones if it does so often."""
    units: list[range] = []
    first = size = 0
    for layer, parameters in enumerate(sizes):
        size += parameters
        if sharding.every_backward or size >= MIN_PARAMETERS_PER_UNIT:
            units.append(range(first, layer + 1))
            first, size = layer + 1, 0
    if units:
        units[-1] = range(units[-1].start, len(sizes))
    return tuple(units)
