"""The weights of a stage as one rank holds them: shapes, before sharding over dp x cp.

Decides: nothing; repeats what the layers of `models` declare, which a test compares.
Relies on: `language_shapes` for the layers of language.
Leaves: bytes to `memory`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod

from mimo_launch.estimate.language_shapes import Shapes, language_layers, part
from mimo_launch.kinds.vocabulary import padded_vocab_size
from mimo_launch.layout.stages import Stage
from mimo_launch.spec.encoders import FRAMES_PER_TOKEN
from mimo_launch.spec.model import (
    AudioModel,
    CustomModel,
    ExpertGrid,
    LanguageModel,
    Model,
    ModuleSpec,
    Spec,
    TransformerEncoder,
    VitModel,
)

# Consecutive blocks are one FSDP unit from so many parameters on (`models.build`, tested).
MIN_PARAMETERS_PER_UNIT = 64_000_000


@dataclass(frozen=True, slots=True)
class Weight:
    """One parameter: its shape on a tp rank, and whether it is trained.

    `in_product` says that its gradient can be added up inside a matrix product
    (`layers.weight_gradients`), `of_experts` that its replicas are those of the grid of experts.
    """

    shape: tuple[int, ...]
    trains: bool
    in_product: bool = False
    of_experts: bool = False

    @property
    def numel(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    def shard(self, ranks: int) -> int:
        """Return the elements of one shard over replicas, which FSDP2 pads to equal rows."""
        return -(-self.shape[0] // ranks) * prod(self.shape[1:])


@dataclass(frozen=True)
class StageWeights:
    """The weights of one stage: those of each of its blocks, and those around the blocks.

    Runs of blocks are FSDP units, with full sharding every block; the experts of a block are one of
    their own. The rest belongs to the root.
    """

    blocks: tuple[tuple[Weight, ...], ...]
    ends: tuple[Weight, ...]
    full_sharding: bool

    @cached_property
    def numel(self) -> int:
        """Number of elements on a tp rank."""
        return sum(each.numel for each in self.all())

    @cached_property
    def trained(self) -> int:
        """Number of those that are trained."""
        return sum(each.numel for each in self.all() if each.trains)

    def all(self) -> Iterator[Weight]:
        """Yield every weight."""
        for block in self.blocks:
            yield from block
        yield from self.ends

    def units(self) -> tuple[tuple[Weight, ...], ...]:
        """Return the FSDP units, the root last."""
        experts = [
            own
            for block in self.blocks
            if (own := tuple(each for each in block if each.of_experts))
        ]
        units: list[tuple[Weight, ...]] = []
        run: list[Weight] = []
        size = 0
        for block in self.blocks:
            dense = [each for each in block if not each.of_experts]
            run += dense
            size += sum(each.numel for each in dense)
            if self.full_sharding or size >= MIN_PARAMETERS_PER_UNIT:
                units.append(tuple(run))
                run, size = [], 0
        if run and units:
            units[-1] += tuple(run)
            run = []
        return (*units, *experts, (*run, *self.ends))


def adds_in_products(spec: Spec, name: str) -> bool:
    """Return whether matrix products of a module add up their weights' gradients themselves.

    Where a step has several backwards, in bf16 between them (`models.build`, docs/adr/0017).
    """
    module = spec.modules[name]
    return (
        spec.train.precision == "bf16"
        and module.backend == "torch"
        and module.sharding == "optimizer"
    )


def stage_weights(spec: Spec, stage: Stage, tp: int) -> StageWeights:
    """Return the weights of one stage on the rank at `tp`."""
    module = spec.modules[stage.module]
    trains = trains_last = module.frozen is False
    if isinstance(module.model, LanguageModel):
        blocks = tuple(language_layers(module.model, stage, module, tp))
        ends = list(_language_ends(spec, module.model, stage, tp))
        products: tuple[tuple[int, ...], ...] = ()
        if stage.is_last and not module.model.tied:
            products = (ends.pop(),)
    elif isinstance(module.model, CustomModel):
        blocks = (tuple(_own_layer(module.model, module, tp)),) * stage.num_layers
        ends, products = [], ()
    else:
        blocks = (tuple(_encoder_block(module.model, module, tp)),) * stage.num_layers
        ends = list(_encoder_ends(module.model, stage))
        width = spec.language.model.hidden
        products = tuple(_projector(module.model, module, tp, width)) if stage.is_last else ()
        trains_last = module.frozen is not True
    dense = (tuple(Weight(shape, trains, len(shape) > 1) for shape in block) for block in blocks)
    numbers = range(stage.first_layer, stage.first_layer + stage.num_layers)
    return StageWeights(
        tuple(
            (*block, *_routed(module, number, trains=trains))
            for number, block in zip(numbers, dense, strict=True)
        ),
        (
            *(Weight(shape, trains) for shape in ends),
            *(Weight(shape, trains=False) for shape in _fixed(module.model, stage)),
            *(Weight(shape, trains_last, len(shape) > 1) for shape in products),
        ),
        module.sharding == "full",
    )


def _routed(module: ModuleSpec, number: int, *, trains: bool) -> Iterator[Weight]:
    """Yield the router of a layer and the experts of one rank, all of which hold as many."""
    model = module.model
    if not isinstance(model, LanguageModel) or not model.moe or not model.has_experts(number):
        return
    moe, sizes = model.moe, module.experts or ExpertGrid()
    own, inner = moe.experts // sizes.ep, moe.width // sizes.tp
    yield Weight((moe.experts, model.hidden), trains)
    ups = 1 + model.gated_mlp
    for shape in ((own * ups * inner, model.hidden), (own * model.hidden, inner)):
        yield Weight(shape, trains, of_experts=True)


def _language_ends(spec: Spec, model: LanguageModel, stage: Stage, tp: int) -> Shapes:
    words = part(padded_vocab_size(spec), spec.modules[stage.module], tp)
    if stage.is_first or (stage.is_last and model.tied):
        yield (words, model.hidden)
    if stage.is_last:
        yield (model.hidden,)
        if not model.tied:
            yield (words, model.hidden)


def _encoder_block(model: TransformerEncoder, module: ModuleSpec, tp: int) -> Shapes:
    width = model.hidden
    mine, inner = part(width, module, tp), part(model.mlp_width, module, tp)
    yield from ((width,),) * 4
    # Whisper's keys have no bias.
    biased = 2 if isinstance(model, AudioModel) else 3
    yield from ((3 * mine, width), (biased * mine,), (width, mine), (width,))
    yield from ((inner, width), (inner,), (width, inner), (width,))


def _encoder_ends(model: TransformerEncoder, stage: Stage) -> Shapes:
    width = model.hidden
    if stage.is_first and isinstance(model, AudioModel):
        yield from ((width, model.mels, 3), (width,), (width, width, 3), (width,))
    elif stage.is_first and isinstance(model, VitModel):
        yield from _image_embedding(model)
    if stage.is_last and (not isinstance(model, VitModel) or model.final_norm):
        yield from ((width,), (width,))


def _image_embedding(model: VitModel) -> Shapes:
    width = model.hidden
    yield (width, model.patch_numbers)
    yield from ((width,),) * (model.patch_bias + model.class_token + 2 * model.pre_norm)
    if model.image is not None and model.positions == "learned":
        yield (model.class_token + model.image[0] * model.image[1], width)


def _own_layer(model: CustomModel, module: ModuleSpec, tp: int) -> Shapes:
    """Yield a layer's share of as many parameters as the spec says that there are."""
    if model.parameters is not None:
        yield (part(-(-model.parameters // model.layers), module, tp),)


def _fixed(model: Model, stage: Stage) -> Shapes:
    """Yield what never trains: the positions of an audio encoder."""
    if stage.is_first and isinstance(model, AudioModel):
        yield (model.frames // FRAMES_PER_TOKEN, model.hidden)


def _projector(model: TransformerEncoder, module: ModuleSpec, tp: int, out: int) -> Shapes:
    row, inner = model.row_width, part(model.projector_width(out), module, tp)
    if not inner:
        yield from ((out, part(row, module, tp)), (out,))
        return
    yield from ((inner, row), (inner,), (out, inner), (out,))
