"""Shapes of the weights of language layers on a tp rank, layer by layer.

Decides: nothing; repeats what the layers of `models` declare, which a test compares.
Relies on: the even cut of `layout.row_owners` over tp.
Leaves: what stands around the layers, and all encoders, to `parameters`.
"""

from collections.abc import Iterator

from mimo_launch.layout.row_owners import even_cut
from mimo_launch.layout.stages import Stage
from mimo_launch.spec.hybrid import ATTENTION, MAMBA
from mimo_launch.spec.model import DecoderModel, HybridModel, LanguageModel, MambaSizes, ModuleSpec

Shapes = Iterator[tuple[int, ...]]


def part(total: int, module: ModuleSpec, tp: int) -> int:
    """Return the share of the rank at `tp`."""
    return len(even_cut(total, module.grid.tp, tp))


def language_layers(
    model: LanguageModel, stage: Stage, module: ModuleSpec, tp: int
) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Yield the shapes of each layer of a stage, but for routers and experts, at `tp`."""
    for number in range(stage.first_layer, stage.first_layer + stage.num_layers):
        if isinstance(model, DecoderModel):
            yield tuple(_decoder_block(model, _inner(model, number), module, tp))
        elif isinstance(model, HybridModel):
            yield tuple(_hybrid_layer(model, number, module, tp))


def _inner(model: LanguageModel, number: int) -> int:
    """Return the width of the MLP of a layer, or of the expert that all tokens share, if any."""
    return model.moe.shared if model.moe and model.has_experts(number) else model.mlp_width


def _decoder_block(model: DecoderModel, inner: int, module: ModuleSpec, tp: int) -> Shapes:
    width, head = model.hidden, model.head_size
    yield from ((width,), (width,))
    yield from _attention(model, module, tp)
    if model.qkv_bias:
        queries = part(model.heads * head, module, tp)
        if model.num_kv_heads < module.grid.tp:
            yield from ((queries,), (2 * head,))
        else:
            yield (queries + 2 * part(model.num_kv_heads * head, module, tp),)
    if model.qk_norm:
        yield from ((head,), (head,))
    if inner:
        yield from ((2 * part(inner, module, tp), width), (width, part(inner, module, tp)))


def _attention(model: LanguageModel, module: ModuleSpec, tp: int) -> Shapes:
    width, head, kv_heads = model.hidden, model.head_size, model.num_kv_heads
    queries = part(model.heads * head, module, tp)
    if kv_heads < module.grid.tp:
        # Each rank holds the one key/value head that its query heads need.
        yield from ((queries, width), (2 * head, width))
    else:
        yield (queries + 2 * part(kv_heads * head, module, tp), width)
    yield (width, queries)


def _hybrid_layer(model: HybridModel, number: int, module: ModuleSpec, tp: int) -> Shapes:
    width, letter = model.hidden, model.pattern[number]
    yield (width,)
    if letter == MAMBA and model.mamba is not None:
        yield from _mamba(width, model.mamba, module, tp)
    elif letter == ATTENTION:
        yield from _attention(model, module, tp)
    elif _inner(model, number):
        inner = part(_inner(model, number), module, tp)
        yield from ((inner, width), (width, inner))


def _mamba(width: int, sizes: MambaSizes, module: ModuleSpec, tp: int) -> Shapes:
    heads, inner = part(sizes.heads, module, tp), part(sizes.inner, module, tp)
    if sizes.groups < module.grid.tp:
        shared = sizes.state
        yield from ((2 * inner + heads, width), (2 * shared, width))
    else:
        shared = part(sizes.shared, module, tp)
        yield (2 * inner + heads + 2 * shared, width)
    channels = inner + 2 * shared
    yield from ((channels, sizes.conv), (channels,))
    yield from ((heads,), (heads,), (heads,), (inner,), (width, inner))
