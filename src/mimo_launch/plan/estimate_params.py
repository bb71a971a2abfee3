"""The weights of a stage as one rank holds them: shapes, before sharding over dp x cp.

Decides: nothing; repeats what the layers of `modules` declare, which a test compares.
Relies on: the even cut of `layout.shards` over tp.
Leaves: bytes to `estimate_memory`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod

from mimo_launch.layout.layout import Stage
from mimo_launch.layout.shards import even_cut
from mimo_launch.layout.tokens import padded_vocab_size
from mimo_launch.spec.hybrid import ATTENTION, MAMBA
from mimo_launch.spec.kinds import FRAMES_PER_TOKEN
from mimo_launch.spec.model import (
    AudioModel,
    CustomModel,
    DecoderModel,
    HybridModel,
    LanguageModel,
    MambaSizes,
    Model,
    ModuleSpec,
    Spec,
    TransformerEncoder,
    VitModel,
)

# Consecutive blocks are one FSDP unit from so many parameters on (`modules.build`, tested).
MIN_PARAMETERS_PER_UNIT = 64_000_000


@dataclass(frozen=True, slots=True)
class Weight:
    """One parameter: its shape on a tp rank, and whether it is trained.

    `in_product` says that its gradient can be added up inside a matrix product (`parallel.linear`).
    """

    shape: tuple[int, ...]
    trains: bool
    in_product: bool = False

    @property
    def numel(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    def shard(self, ranks: int) -> int:
        """Return the elements of one shard over dp x cp, which FSDP2 pads to equal rows."""
        return -(-self.shape[0] // ranks) * prod(self.shape[1:])


@dataclass(frozen=True)
class StageWeights:
    """The weights of one stage: those of each of its blocks, and those around the blocks.

    Runs of blocks are FSDP units, with full sharding every block; the rest belongs to the root.
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
        units: list[tuple[Weight, ...]] = []
        run: tuple[Weight, ...] = ()
        for block in self.blocks:
            run += block
            if self.full_sharding or sum(each.numel for each in run) >= MIN_PARAMETERS_PER_UNIT:
                units.append(run)
                run = ()
        if run and units:
            units[-1] += run
        return (*units, self.ends) if units else (tuple(self.all()),)


def adds_in_products(spec: Spec, name: str) -> bool:
    """Return whether matrix products of a module add up their weights' gradients themselves.

    Where a step has several backwards, in bf16 between them (`modules.build`, docs/adr/0017).
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
        blocks = tuple(_language_layers(module.model, stage, module, tp))
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
    return StageWeights(
        tuple(tuple(Weight(shape, trains, len(shape) > 1) for shape in block) for block in blocks),
        (
            *(Weight(shape, trains) for shape in ends),
            *(Weight(shape, trains=False) for shape in _fixed(module.model, stage)),
            *(Weight(shape, trains_last, len(shape) > 1) for shape in products),
        ),
        module.sharding == "full",
    )


Shapes = Iterator[tuple[int, ...]]


def _part(total: int, module: ModuleSpec, tp: int) -> int:
    return len(even_cut(total, module.grid.tp, tp))


def _language_layers(
    model: LanguageModel, stage: Stage, module: ModuleSpec, tp: int
) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Yield the shapes of each layer of a stage."""
    if isinstance(model, DecoderModel):
        yield from (tuple(_decoder_block(model, module, tp)),) * stage.num_layers
    elif isinstance(model, HybridModel):
        for number in range(stage.first_layer, stage.first_layer + stage.num_layers):
            yield tuple(_hybrid_layer(model, model.pattern[number], module, tp))


def _decoder_block(model: DecoderModel, module: ModuleSpec, tp: int) -> Shapes:
    width, head = model.hidden, model.head_size
    yield from ((width,), (width,))
    yield from _attention(model, module, tp)
    if model.qkv_bias:
        queries = _part(model.heads * head, module, tp)
        if model.num_kv_heads < module.grid.tp:
            yield from ((queries,), (2 * head,))
        else:
            yield (queries + 2 * _part(model.num_kv_heads * head, module, tp),)
    if model.qk_norm:
        yield from ((head,), (head,))
    inner = _part(model.mlp_width, module, tp)
    yield from ((2 * inner, width), (width, inner))


def _attention(model: LanguageModel, module: ModuleSpec, tp: int) -> Shapes:
    width, head, kv_heads = model.hidden, model.head_size, model.num_kv_heads
    queries = _part(model.heads * head, module, tp)
    if kv_heads < module.grid.tp:
        # Each rank holds the one key/value head that its query heads need.
        yield from ((queries, width), (2 * head, width))
    else:
        yield (queries + 2 * _part(kv_heads * head, module, tp), width)
    yield (width, queries)


def _hybrid_layer(model: HybridModel, letter: str, module: ModuleSpec, tp: int) -> Shapes:
    width = model.hidden
    yield (width,)
    if letter == MAMBA and model.mamba is not None:
        yield from _mamba(width, model.mamba, module, tp)
    elif letter == ATTENTION:
        yield from _attention(model, module, tp)
    else:
        inner = _part(model.mlp_width, module, tp)
        yield from ((inner, width), (width, inner))


def _mamba(width: int, sizes: MambaSizes, module: ModuleSpec, tp: int) -> Shapes:
    heads, inner = _part(sizes.heads, module, tp), _part(sizes.inner, module, tp)
    if sizes.groups < module.grid.tp:
        shared = sizes.state
        yield from ((2 * inner + heads, width), (2 * shared, width))
    else:
        shared = _part(sizes.shared, module, tp)
        yield (2 * inner + heads + 2 * shared, width)
    channels = inner + 2 * shared
    yield from ((channels, sizes.conv), (channels,))
    yield from ((heads,), (heads,), (heads,), (inner,), (width, inner))


def _language_ends(spec: Spec, model: LanguageModel, stage: Stage, tp: int) -> Shapes:
    words = _part(padded_vocab_size(spec), spec.modules[stage.module], tp)
    if stage.is_first or (stage.is_last and model.tied):
        yield (words, model.hidden)
    if stage.is_last:
        yield (model.hidden,)
        if not model.tied:
            yield (words, model.hidden)


def _encoder_block(model: TransformerEncoder, module: ModuleSpec, tp: int) -> Shapes:
    width = model.hidden
    mine, inner = _part(width, module, tp), _part(model.mlp_width, module, tp)
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
        yield (_part(-(-model.parameters // model.layers), module, tp),)


def _fixed(model: Model, stage: Stage) -> Shapes:
    """Yield what never trains: the positions of an audio encoder."""
    if stage.is_first and isinstance(model, AudioModel):
        yield (model.frames // FRAMES_PER_TOKEN, model.hidden)


def _projector(model: TransformerEncoder, module: ModuleSpec, tp: int, out: int) -> Shapes:
    row, inner = model.row_width, _part(model.projector_width(out), module, tp)
    if not inner:
        yield from ((out, _part(row, module, tp)), (out,))
        return
    yield from ((inner, row), (inner,), (out, inner), (out,))
