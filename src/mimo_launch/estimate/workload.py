"""How much data one forward of a stage works on: tokens, attention spans, rows.

Decides: that one sample stands for all of them.
Relies on: `data.average_step` for that sample, `layout.row_owners` for padding.
Leaves: FLOPs to `flops`, bytes to `memory`, seconds to `cost_model`.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

from mimo_launch.layout.layout import Layout, ModuleLayout
from mimo_launch.layout.row_owners import held_patches, local_class_tokens
from mimo_launch.layout.stages import Stage
from mimo_launch.layout.step_data import SampleData
from mimo_launch.spec.hybrid import ATTENTION, MAMBA
from mimo_launch.spec.model import (
    AudioModel,
    CustomModel,
    DecoderModel,
    HybridModel,
    LanguageModel,
    MambaSizes,
    Model,
    Moe,
    TransformerEncoder,
    VitModel,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One forward of a module: a microbatch, or a group of them, of one replica.

    `spans` are the lengths of what attends within itself: sequences, or images in patches.
    `tokens` are theirs together, `held` those of one cp rank with padding, of which so many are
    `class_tokens`. `rows` go from an
    encoder to language. A step has `forwards` of these.
    """

    spans: tuple[int, ...]
    held: int
    rows: int
    forwards: int
    class_tokens: int = 0

    @property
    def tokens(self) -> int:
        """Tokens of all cp ranks, without padding."""
        return sum(self.spans)


def workload(layout: Layout, module: ModuleLayout, sample: SampleData) -> Workload:
    """Return the work of one forward of a module when every sample is like this one."""
    samples, size = layout.samples, layout.samples.microbatch_size
    forwards = samples.microbatches // module.group_size
    if module.is_language:
        held = size * layout.seq // module.grid.size("cp")
        spans = language_spans(sample, layout.seq) * size
        return Workload(spans=spans, held=held, rows=0, forwards=forwards)
    mine = samples.replicas * module.group_size * size // module.grid.size("dp")
    rows = tuple(image.rows for image in sample.spans.get(module.name, ())) * mine
    shards = module.grid.size("tp") if module.sequence_parallel else 1
    class_tokens = local_class_tokens(module, len(rows)) * shards
    return Workload(
        spans=tuple(n * module.patches_per_row + module.class_token for n in rows),
        held=len(held_patches(module, sum(rows), 0)) + class_tokens,
        class_tokens=class_tokens,
        rows=sum(rows),
        forwards=forwards,
    )


def language_spans(sample: SampleData, seq: int) -> tuple[int, ...]:
    """Return the lengths of what attends within itself in a sequence: its records, of which the
    last has the padding."""  # noqa: D205, D209
    *others, last = (record.num_tokens for record in sample.records)
    return (*others, max(last, seq - sum(others)))


class LayerKind(StrEnum):
    """Layers that devices compute at rates of their own."""

    BLOCK = "block"  # Attention, an MLP, or both.
    MAMBA = "mamba"
    EXPERTS = "experts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Widths:
    """Sizes of a module's layers over all tp ranks.

    `query` and `key` are the widths of all query heads and of all key heads; `inner` that inside
    the MLP, whose input has `ups` times that many features. Of a layer of `mamba`, `query` are the
    channels of its heads and `key` the numbers of B or C. Of a layer of `experts`, `inner` is the
    width of all that one token goes through. A layer has so many tensor-parallel `regions`.
    """

    stream: int
    query: int
    key: int
    heads: int
    inner: int
    ups: int
    causal: bool
    mamba: MambaSizes | None = None
    regions: int = 2
    experts: Moe | None = None

    @property
    def kind(self) -> LayerKind:
        """What the layer is to a device."""
        if self.mamba is not None:
            return LayerKind.MAMBA
        return LayerKind.BLOCK if self.experts is None else LayerKind.EXPERTS


def layer_widths(model: Model, stage: Stage) -> tuple[Widths, ...]:
    """Return the sizes of each layer of a stage."""
    if not isinstance(model, LanguageModel):
        return (widths(model),) * stage.num_layers
    numbers = range(stage.first_layer, stage.first_layer + stage.num_layers)
    return tuple(_with_experts(model, number, _layer(model, number)) for number in numbers)


def _layer(model: DecoderModel | HybridModel, number: int) -> Widths:
    if isinstance(model, HybridModel):
        return _hybrid_layer(model, model.pattern[number])
    return widths(model)


def _with_experts(model: LanguageModel, number: int, size: Widths) -> Widths:
    """Return the widths of a layer with those of experts in place of its MLP, if it has any."""
    moe = model.moe
    if moe is None or not model.has_experts(number):
        return size
    # Without a shared expert the MLP is no tensor-parallel region.
    regions = size.regions - (moe.shared == 0)
    inner = moe.top_k * moe.width + moe.shared
    return replace(size, inner=inner, regions=regions, experts=moe)


def _hybrid_layer(model: HybridModel, letter: str) -> Widths:
    empty = replace(widths(model), query=0, key=0, inner=0, ups=0, regions=1)
    if letter == MAMBA and model.mamba is not None:
        sizes = model.mamba
        return replace(empty, query=sizes.inner, key=sizes.shared, heads=sizes.heads, mamba=sizes)
    whole = widths(model)
    if letter == ATTENTION:
        return replace(empty, query=whole.query, key=whole.key)
    return replace(empty, inner=whole.inner, ups=1)


def widths(model: Model) -> Widths:
    """Return the sizes of a model's blocks; of a user's own, only what stands between them.

    Of a hybrid model, those of its attention and its MLPs together.
    """
    if isinstance(model, CustomModel):
        return Widths(stream=model.hidden, query=0, key=0, heads=1, inner=0, ups=1, causal=False)
    if isinstance(model, LanguageModel):
        return Widths(
            stream=model.hidden,
            query=model.heads * model.head_size,
            key=model.num_kv_heads * model.head_size,
            heads=model.heads,
            inner=model.mlp_width,
            ups=2 if isinstance(model, DecoderModel) else 1,
            causal=True,
        )
    return Widths(
        stream=model.hidden,
        query=model.hidden,
        key=model.hidden,
        heads=model.heads,
        inner=model.mlp_width,
        ups=1,
        causal=False,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchWork:
    """What the layers in front of an encoder's blocks do for one patch.

    `products` of numbers in a forward; numbers `kept` for the backward.
    """

    products: int
    kept: int


def patch_work(model: TransformerEncoder) -> PatchWork:
    """Return the work in front of the blocks: one linear map, or Whisper's two convolutions."""
    width = model.hidden
    if isinstance(model, AudioModel):
        # The first convolution at three places, then the second one; GELU behind both.
        joined = 3 * width
        windows = 3 * 3 * model.mels
        kept = windows + 2 * joined + width
        return PatchWork(products=(windows + joined) * width, kept=kept)
    size = model.patch_numbers if isinstance(model, VitModel) else 0
    return PatchWork(products=size * width, kept=size)


def row_bytes(layout: Layout, encoder: ModuleLayout, work: Workload, width: int) -> tuple[int, int]:
    """Return the bytes of rows that an encoder rank sends, and a language rank gets, for one group.

    `width` is that of a row in bytes.
    """
    ends = []
    for grid in (encoder.grid, layout.language.grid):
        rows = work.rows * encoder.grid.size("dp") // grid.size("dp")
        ends.append(-(-rows // (grid.size("cp") * grid.size("tp"))) * width)
    return ends[0], ends[1]
