"""The weights of a stage on one rank, before sharding over dp x cp.

Decides: which weights train.
Relies on: `kinds` for the weights of layers and ends, `layout.stages` for FSDP units.
Leaves: bytes to `memory`.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import chain

from mimo_launch.diag.frozen import frozen
from mimo_launch.kinds.adapters import adapter_of
from mimo_launch.kinds.layer import Ends
from mimo_launch.kinds.registry import kind_of, layer_of
from mimo_launch.kinds.vocabulary import ends_of
from mimo_launch.kinds.weights import Parameter, Share, parameters
from mimo_launch.layout.stages import Stage
from mimo_launch.spec.spec import ExpertGrid, ModuleSpec, Spec


@frozen(slots=False)
class StageWeights:
    """The weights of one stage: in each of its blocks, and around the blocks.

    The experts of a block are a separate FSDP unit, and so is the rest of each of the `depths` of
    multi-token prediction; weights in no unit belong to the root.
    """

    blocks: tuple[tuple[Parameter, ...], ...]
    ends: tuple[Parameter, ...]
    full_sharding: bool
    runs: tuple[range, ...]
    depths: tuple[tuple[Parameter, ...], ...] = ()

    @cached_property
    def numel(self) -> int:
        """Number of elements on a tp rank."""
        return sum(each.numel for each in self.all())

    @cached_property
    def trained(self) -> int:
        """Number of trained elements on a tp rank."""
        return sum(each.numel for each in self.all() if each.trains)

    def all(self) -> Iterator[Parameter]:
        """Yield every weight."""
        for block in (*self.blocks, *self.depths):
            yield from block
        yield from self.ends

    @cached_property
    def trained_units(self) -> tuple[Counter[bool], ...]:
        """The trained elements of each FSDP unit, of matrices (True) and of others."""
        found = []
        for unit in self.units:
            counted = Counter[bool]()
            for each in unit:
                counted[each.matrix] += each.numel * each.trains
            found.append(counted)
        return tuple(found)

    @cached_property
    def units(self) -> tuple[tuple[Parameter, ...], ...]:
        """The FSDP units, the root last."""
        experts = [
            own
            for block in (*self.blocks, *self.depths)
            if (own := tuple(each for each in block if each.experts))
        ]
        dense, depths = (
            [tuple(each for each in block if not each.experts) for block in some]
            for some in (self.blocks, self.depths)
        )
        units = [tuple(chain.from_iterable(dense[run.start : run.stop])) for run in self.runs]
        root = () if self.runs else tuple(chain.from_iterable(dense))
        return (*units, *depths, *experts, (*root, *self.ends))


def adds_in_products(spec: Spec, name: str) -> bool:
    """Return whether matrix products of a module accumulate their weights' gradients themselves.

    They do so in bf16 if a step has several backwards (`models.fsdp`, docs/adr/0017).
    """
    module = spec.modules[name]
    return (
        spec.train.numbers.is_mixed and module.backend == "torch" and not module.fsdp.every_backward
    )


def stage_weights(spec: Spec, stage: Stage, tp: int) -> StageWeights:
    """Return the weights of one stage on the rank at `tp`."""
    module = spec.modules[stage.module]
    ends = ends_of(spec, stage.module, is_first=stage.is_first, is_last=stage.is_last)
    return _weights_of(module, stage.layers, ends, tp, stage.units)


@lru_cache(maxsize=64)
def _weights_of(
    module: ModuleSpec, layers: range, ends: Ends, tp: int, units: tuple[range, ...]
) -> StageWeights:
    kind, experts = kind_of(module.model), module.experts or ExpertGrid()
    share = Share(module.grid.tp, tp, experts.ep, experts.tp)
    before = kind.names_before(ends)
    blocks = [
        _trained(layer_parameters(module, number, share), trains=module.layer_trains(number))
        for number in kind.numbers(layers, is_last=ends.is_last)
    ]
    trained = dict.fromkeys(before, module.layer_trains(0))
    trained["projector"] = module.projector_trains
    around = (
        _trained(parameters(part, share), trains=trained.get(name, module.body_trains))
        for shape in kind.around(ends)
        for name, part in shape.parts().items()
        if part is not None
    )
    return StageWeights(
        tuple(blocks[: len(layers)]),
        tuple(chain.from_iterable(around)),
        module.fsdp.every_backward,
        units,
        tuple(blocks[len(layers) :]),
    )


def layer_parameters(module: ModuleSpec, number: int, share: Share) -> tuple[Parameter, ...]:
    """Return the parameters of a layer; a depth of `mtp` is neither adapted nor packed."""
    kind, adapter = kind_of(module.model), adapter_of(module)
    if kind.is_depth(number):
        return parameters(layer_of(module.model, number), share)
    own = adapter and adapter.of_layer(number)
    return parameters(layer_of(module.model, number), share, own, module.quantize_base)


def _trained(held: tuple[Parameter, ...], *, trains: bool) -> tuple[Parameter, ...]:
    """Return the parameters of a layer, those marked as frozen that do not train."""
    if trains:
        return held
    return tuple(replace(each, trains=each.role == "adapter") for each in held)
