"""The weights of a stage on one rank, before sharding over dp x cp.

Decides: which weights train.
Relies on: `kinds` for the weights of layers and ends, `layout.stages` for FSDP units.
Leaves: bytes to `memory`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import chain

from mimo_launch.kinds.layer import Ends, Share, Weight
from mimo_launch.kinds.registry import kind_of
from mimo_launch.kinds.vocabulary import padded_vocab_size, text_readers
from mimo_launch.layout.stages import Stage, fsdp_units
from mimo_launch.spec.base import LANGUAGE
from mimo_launch.spec.spec import ExpertGrid, ModuleSpec, Spec


@dataclass(frozen=True)
class StageWeights:
    """The weights of one stage: in each of its blocks, and around the blocks.

    The experts of a block are a separate FSDP unit, and so is the rest of each of the `depths` of
    multi-token prediction; weights in no unit belong to the root.
    """

    blocks: tuple[tuple[Weight, ...], ...]
    ends: tuple[Weight, ...]
    full_sharding: bool
    depths: tuple[tuple[Weight, ...], ...] = ()

    @cached_property
    def numel(self) -> int:
        """Number of elements on a tp rank."""
        return sum(each.numel for each in self.all())

    @cached_property
    def trained(self) -> int:
        """Number of trained elements on a tp rank."""
        return sum(each.numel for each in self.all() if each.trains)

    def all(self) -> Iterator[Weight]:
        """Yield every weight."""
        for block in (*self.blocks, *self.depths):
            yield from block
        yield from self.ends

    def units(self) -> tuple[tuple[Weight, ...], ...]:
        """Return the FSDP units, the root last."""
        experts = [
            own
            for block in (*self.blocks, *self.depths)
            if (own := tuple(each for each in block if each.role == "experts"))
        ]
        dense, depths = (
            [tuple(each for each in block if each.role != "experts") for block in some]
            for some in (self.blocks, self.depths)
        )
        sizes = [sum(each.numel for each in block) for block in dense]
        runs = fsdp_units(sizes, full_sharding=self.full_sharding)
        units = [tuple(chain.from_iterable(dense[run.start : run.stop])) for run in runs]
        root = () if runs else tuple(chain.from_iterable(dense))
        return (*units, *depths, *experts, (*root, *self.ends))


def adds_in_products(spec: Spec, name: str) -> bool:
    """Return whether matrix products of a module accumulate their weights' gradients themselves.

    They do so in bf16 if a step has several backwards (`models.fsdp`, docs/adr/0017).
    """
    module = spec.modules[name]
    return (
        spec.train.precision == "bf16"
        and module.backend == "torch"
        and module.sharding == "optimizer"
    )


def stage_weights(spec: Spec, stage: Stage, tp: int) -> StageWeights:
    """Return the weights of one stage on the rank at `tp`."""
    return _weights_of(spec.modules[stage.module], stage.layers, ends_of(spec, stage), tp)


@lru_cache(maxsize=64)
def _weights_of(module: ModuleSpec, layers: range, ends: Ends, tp: int) -> StageWeights:
    kind, experts = kind_of(module.model), module.experts or ExpertGrid()
    share = Share(module.grid.tp, tp, experts.ep, experts.tp)
    blocks = [
        _frozen(module, kind.layer_weights(number, share))
        for number in kind.numbers(layers, is_last=ends.is_last)
    ]
    return StageWeights(
        tuple(blocks[: len(layers)]),
        _frozen(module, kind.end_weights(ends, share)),
        module.sharding == "full",
        tuple(blocks[len(layers) :]),
    )


def ends_of(spec: Spec, stage: Stage) -> Ends:
    """Return which ends of its module a stage has."""
    return Ends(
        is_first=stage.is_first,
        is_last=stage.is_last,
        vocab=padded_vocab_size(spec),
        row_width=spec.row_width(stage.module),
        source_widths=tuple(spec.row_width(name) for name in spec.sources_of(stage.module)),
        sends_text=stage.module == LANGUAGE and bool(text_readers(spec)),
    )


def _frozen(module: ModuleSpec, weights: Iterator[Weight]) -> tuple[Weight, ...]:
    """Return the weights, marked as the spec freezes them."""
    trains = {
        "body": module.frozen is False,
        "experts": module.frozen is False,
        "projector": module.frozen is not True,
        "constant": False,
    }
    return tuple(each if trains[each.role] else replace(each, trains=False) for each in weights)
