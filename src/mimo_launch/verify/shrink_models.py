"""Makes models small, but keeps all that can go wrong when a grid cuts them.

Decides: their sizes in proofs.
Relies on: the spec only.
Leaves: all else to `shrink`.
"""

from collections.abc import Sequence
from math import lcm
from typing import Literal, TypeVar

from mimo_launch.checks.adapters import targets_of
from mimo_launch.kinds.registry import kind_of
from mimo_launch.layout.stages import even_stages
from mimo_launch.spec.adapters import AdapterSpec
from mimo_launch.spec.aut import AutModel
from mimo_launch.spec.base import LayerChoice, Strict
from mimo_launch.spec.conformer import ConformerModel
from mimo_launch.spec.encoders import EncoderBlocks, TransformerEncoder
from mimo_launch.spec.hybrid import MambaSizes, RecurrentSizes
from mimo_launch.spec.language_models import CausalModel
from mimo_launch.spec.layers import QueryScaling, RopeScaling, SlidingWindow
from mimo_launch.spec.media import Tiles, Windows
from mimo_launch.spec.module import FrozenLayers
from mimo_launch.spec.ovis2_vision import Ovis2VisionModel
from mimo_launch.spec.spec import (
    AudioModel,
    DecoderModel,
    ExpertGrid,
    Grid,
    HybridModel,
    Model,
    ModuleSpec,
    TalkerModel,
    VitModel,
)

HEAD_SIZE, PART_HEAD_SIZE = 8, 12
# Time steps start between 0.001 and 0.1, times e to the power of the token's term. With this
# minimum every head has some shorter and some longer steps: a head with only clamped steps gets no
# gradient through them, and would prove nothing.
MAX_MIN_STEP = 0.005

# Shorter than documents, and longer than a chunk of a sequence over cp.
MAX_WINDOW = 5

# Depths of multi-token prediction: the second depth reads the first one.
MAX_DEPTH = 2

# Queries grow within documents.
MIN_BETA, MAX_LENGTH = 0.5, 3

# About the size of scores and logits of small models.
MAX_CAP = 2.0

MAX_CLIP_ROWS = 6

Language = TypeVar("Language", DecoderModel, HybridModel)
Causal = TypeVar("Causal", DecoderModel, HybridModel, TalkerModel)
Scaled = TypeVar("Scaled", DecoderModel, TalkerModel)
Blocks = TypeVar("Blocks", bound=EncoderBlocks)
Encoder = TypeVar("Encoder", bound=TransformerEncoder)


def shrink_decoder(model: DecoderModel, module: ModuleSpec, layers: int) -> DecoderModel:
    """Return a small decoder with this number of layers.

    Blocks for further tokens are like the last layer, so it keeps its kind.
    """
    if model.mtp and model.moe and not model.has_experts(model.layers - 1):
        # Of two layers, only the last can have experts.
        layers = max(layers, 3) if module.grid.pp == 1 else layers
    update: dict[str, object] = {"layers": layers, **_small_sections(model, model.layers, layers)}
    if model.mla is not None:
        q_rank = None if model.mla.q_rank is None else HEAD_SIZE - 1
        sizes = {"kv_rank": HEAD_SIZE + 1, "q_rank": q_rank, "rope_head_dim": 4, "v_head_dim": 6}
        update["mla"] = model.mla.replace(**sizes)
    if model.query_pre_attn_scalar is not None:
        update["query_pre_attn_scalar"] = 2.0 * HEAD_SIZE
    if model.layer_scalar is not None:
        # A missing factor of 1 would not show.
        update["layer_scalar"] = 0.5
    if (own := model.per_layer_embeddings) is not None:
        width, padding = min(own.width, HEAD_SIZE - 2), min(own.padding, 1)
        update["per_layer_embeddings"] = own.replace(width=width, padding=padding)
    for key in ("attention_softcap", "logit_softcap"):
        # Small enough that capped values differ from uncapped ones.
        if (cap := getattr(model, key)) is not None:
            update[key] = min(cap, MAX_CAP)
    small = _shrink_language(model, module.grid.tp).replace(**update)
    small = _with_experts(_with_window_heads(small, module.grid.tp), module, model)
    return _with_pair_factors(_with_shared_keys(small, model))


def _with_pair_factors(small: Scaled) -> Scaled:
    """Return a small model in which LongRoPE has a factor for each pair, all of them unlike."""
    scaling = small.rope_scaling
    if scaling is None or scaling.rope_type != "longrope":
        return small
    factors = tuple(1 + pair / 2 for pair in range(small.rotary_size // 2))
    return small.replace(rope_scaling=scaling.replace(short_factor=factors))


def _with_shared_keys(small: DecoderModel, model: DecoderModel) -> DecoderModel:
    """Return a small model with further layers, of which the last attend to keys of others.

    There is one such layer of each kind: in a window, and in none, if the model has both.
    """
    shared, window = model.shared_keys, model.sliding_window
    if shared is None:
        return small
    are_full = {window is None or number in window.full for number in range(model.layers)}
    layers = small.layers + 2 * len(are_full) - 1
    found = small.replace(
        layers=layers,
        shared_keys=shared.replace(
            layers=len(are_full), mlp=None if shared.mlp is None else 2 * small.mlp_width
        ),
    )
    if window is None or small.sliding_window is None:
        return found
    full: tuple[int, ...] = tuple(range(layers)) if True in are_full else ()
    if len(are_full) > 1:
        last = layers - (1 if model.layers - 1 in window.full else 2)
        full = (last - 2, last)
    return found.replace(sliding_window=small.sliding_window.replace(full=full))


def _with_window_heads(small: DecoderModel, tp: int) -> DecoderModel:
    """Return a small model with small heads in layers with windows, of another size than others.

    With `mrope` all heads have the same size.
    """
    window = small.sliding_window
    if window is None or (window.head_dim is None and window.kv_heads is None):
        return small
    update: dict[str, object] = {}
    if window.head_dim is not None:
        update["head_dim"] = small.head_size + (4 if small.mrope is None else 0)
    heads = small.heads
    if window.kv_heads is not None:
        update["kv_heads"] = kv_heads = _small_kv_heads(window.kv_heads, tp)
        heads = lcm(heads, kv_heads)
    head_dim = small.head_size if heads != small.heads else small.head_dim
    window = window.replace(**update)
    return small.replace(
        heads=heads, kv_heads=small.num_kv_heads, head_dim=head_dim, sliding_window=window
    )


def _small_sections(of: Strict, before: int, layers: int) -> dict[str, object]:
    """Return small windows, growth and lists of layers of a model or section, wherever they are."""
    update: dict[str, object] = {}
    if isinstance(of, LayerChoice):
        update[of.chosen] = full_layers(of.numbers, before, layers)
    if isinstance(of, SlidingWindow):
        # Smaller than small sequences.
        update["size"] = min(of.size, MAX_WINDOW)
    if isinstance(of, RopeScaling) and of.partial_rotary_factor < 1:
        # Several pairs of a small head rotate, so that their frequencies show.
        update["partial_rotary_factor"] = 0.5
    if isinstance(of, QueryScaling):
        # Shorter than documents, and large enough to show wrong positions.
        update |= {"beta": max(of.beta, MIN_BETA), "length": min(of.length, MAX_LENGTH)}
    for key in type(of).model_fields:
        section = getattr(of, key)
        if isinstance(section, Strict) and (small := _small_sections(section, before, layers)):
            update[key] = section.replace(**small)
    return update


def full_layers(full: Sequence[int], before: int, layers: int) -> tuple[int, ...]:
    """Return which of `layers` layers have no window: some if some of the `before` layers had none.

    The last layer has a window if it had one: blocks for further tokens are like it.
    """
    whole = {each for each in full if each < before}
    if len(whole) in (0, before):
        return tuple(range(layers if whole else 0))
    at = layers - 1 if before - 1 in whole else layers - 2
    return (at,) if at >= 0 else ()


def shrink_stages(module: ModuleSpec, before: int, number: int, most: int) -> tuple[int, ...]:
    """Return the layers of `number` small stages: one each, or at most `most`.

    An uneven cut of the `before` stages stays uneven: shorter ones stay shorter.
    """
    whole = module.stages or even_stages(module.model.layers, before)
    least = min(whole)
    if module.stages is None or len(set(whole)) == 1:
        small = max(1, min(most, least))
        return (small + (max(whole) > least), *[small] * (number - 1))
    found = [1 + (each > least) for each in whole]
    if number < len(found):
        found = [found[0], *[2] * (number - 2), found[-1]]
        if len(set(found)) == 1:
            found[-1] = 3 - found[0]
    return tuple(found)


def shrink_frozen(
    module: ModuleSpec, small: Model
) -> bool | Literal["except_projector"] | FrozenLayers:
    """Return what is frozen of a small model; at either end of the layers exactly if it was.

    The targets of an adapter stay outside of it, even if that moves it to an end or off one.
    """
    frozen, before, layers = module.frozen_layers, module.model.layers, small.layers
    if not frozen:
        return module.frozen
    first = max(1, frozen.start * layers // before) if frozen.start else 0
    stop = max(first + 1, frozen.stop * layers // before)
    stop = min(layers - 1, stop) if frozen.stop < before else layers
    wanted = range(first, max(first + 1, stop))
    if module.adapter is not None and not _has_targets(module.adapter, small, wanted):
        ways = (range(n, m) for m in range(1, layers + 1) for n in range(m))
        legal = [each for each in ways if _has_targets(module.adapter, small, each)]

        def far(way: range) -> tuple[bool, int]:
            return _at_ends(way, layers) != _at_ends(frozen, before), abs(way.start - first)

        wanted = min(legal, key=far, default=wanted)
    return FrozenLayers(layers=f"{wanted.start}-{wanted.stop - 1}")


def _at_ends(layers: range, number: int) -> tuple[bool, bool]:
    return layers.start == 0, layers.stop == number


def _has_targets(adapter: AdapterSpec, model: Model, frozen: range) -> bool:
    """Return whether layers outside of frozen ones have all maps that an adapter updates."""
    return {*adapter.targets} <= {*targets_of(kind_of(model), model.layers, frozen)}


def shrink_talker(model: TalkerModel, module: ModuleSpec, layers: int) -> TalkerModel:
    """Return a small talker with this number of layers and one or two codebooks.

    Its codes also suffice for the pixels of digits.
    """
    codes: dict[str, object] = {
        "codebooks": min(2, model.codebooks), "vocab": 19, "start": None, "end": None,
    }  # fmt: skip
    blocks = _small_blocks(model, module.grid.tp)
    if model.predictor is not None and model.inside_frames is not None:
        inside = _small_blocks(model.inside_frames, module.grid.tp)
        del inside["hidden"]
        inside["head_dim"] = HEAD_SIZE + 2
        later = 17
        codes["predictor"] = model.predictor.replace(**inside, layers=1, vocab=later)
        # A first frame has no later codes, also where its number is one of theirs.
        if model.start_code < model.predictor.vocab:
            codes["start"] = later - 1
    small = _with_pair_factors(model.replace(**blocks, layers=layers, **codes))
    return _with_experts(small, module, model)


def _shrink_language(model: Language, tp: int) -> Language:
    vocab = model.vocab if model.vocab == "digits" else min(model.vocab, 61)
    words = {"vocab": vocab, "vocab_multiple": 16}
    small = model.replace(**_small_blocks(model, tp), **words)
    update: dict[str, object] = {}
    if model.mtp is not None:
        update["mtp"] = model.mtp.replace(depth=min(model.mtp.depth, MAX_DEPTH))
    if model.rotary_factor < 1:
        # Enough pairs for three axes, and as many dimensions that do not rotate.
        update |= {"head_dim": PART_HEAD_SIZE, "rotary_factor": 0.5}
    if model.mrope is not None:
        # One pair turns with time, so that height and width get fast pairs, which show bugs.
        pairs = small.replace(**update).rotary_size // 2
        height = (pairs - 1) // 2
        update["mrope"] = 1, height, pairs - 1 - height
    return small.replace(**update)


def _small_heads(model: CausalModel | VitModel, tp: int) -> dict[str, int]:
    """Return few heads that keep whether query heads and tp ranks share key/value heads.

    A rank that has several heads of either kind keeps two.
    """
    asked = model.kv_heads or model.heads
    kv_heads = _small_kv_heads(asked, tp)
    heads = lcm(tp, kv_heads) * min(2, max(1, model.heads // lcm(tp, asked)))
    if model.heads == asked:
        heads = kv_heads
    return {"heads": heads, "kv_heads": kv_heads}


def _small_kv_heads(asked: int, tp: int) -> int:
    """Return few key/value heads that are shared by as many of `tp` ranks as `asked` ones."""
    return asked if asked < tp else tp * min(2, asked // tp)


def _small_blocks(model: CausalModel, tp: int) -> dict[str, object]:
    """Return small sizes with the heads of `_small_heads`."""
    heads = _small_heads(model, tp)
    return {
        **heads,
        "hidden": HEAD_SIZE * heads["heads"],
        "head_dim": None if model.head_dim is None else HEAD_SIZE + 2,
        "mlp": 2 * tp * HEAD_SIZE,
    }


def shrink_hybrid(model: HybridModel, module: ModuleSpec, layers: int) -> HybridModel:
    """Return a small hybrid that keeps every kind of layer, and whether ranks share groups."""
    kinds = list(dict.fromkeys(model.pattern))
    layers = max(layers, min(len(kinds), model.layers))
    pattern = model.pattern[:layers]
    missing = [kind for kind in kinds if kind not in pattern]
    if missing:
        pattern = "".join([*kinds, *pattern[: layers - len(kinds)]])
    small = _shrink_language(model, module.grid.tp).replace(pattern=pattern)
    recurrent = kind_of(model).recurrent
    sizes = {key: _small_sizes(each, module.grid) for key, each in recurrent.items()}
    return _with_experts(small.replace(**sizes), module, model)


def _small_sizes(sizes: RecurrentSizes, grid: Grid) -> RecurrentSizes:
    """Return small sizes of recurrent layers; ranks share groups as before."""
    ranks = grid.tp * grid.cp
    groups = min(sizes.groups, ranks * min(2, max(1, sizes.groups // ranks)))
    unit = lcm(ranks, groups)
    update: dict[str, object] = {
        "heads": unit * min(2, sizes.heads // unit),
        # Not less: the norm of a group of one number keeps only its sign, and rounding grows.
        "head_dim": 4,
        "conv": min(4, sizes.conv),
        # Several chunks in a sequence.
        "chunk": min(8, sizes.chunk),
    }
    if isinstance(sizes, MambaSizes):
        update["state"] = min(6, sizes.state)
        update["min_step"] = min(MAX_MIN_STEP, sizes.min_step)
    else:
        update["key_dim"] = min(6, sizes.key_dim)
    return sizes.with_groups(groups).replace(**update)


def _with_experts(model: Causal, module: ModuleSpec, asked: Causal) -> Causal:
    """Return a small model with small experts in at least one layer.

    It keeps several experts on a rank with a choice among them, and layers with and without
    experts. If possible, the last layer has experts exactly if the last layer of `asked` has.
    """
    moe = model.moe
    if moe is None:
        return model
    sizes, tp = module.experts or ExpertGrid(), module.grid.tp
    experts = sizes.ep * min(max(2, 4 // sizes.ep), moe.experts // sizes.ep)
    groups = {}
    if moe.groups > moe.top_groups:
        # Two of four groups of two or more, so that both choices matter.
        experts = lcm(8, sizes.ep)
        groups = {"groups": 4, "top_groups": 2}
    shared = min(moe.shared // tp, 2 * HEAD_SIZE)
    # Whole blocks of two inputs.
    shared += shared % 2 if module.quantize_base else 0
    update: dict[str, object] = {
        "experts": experts,
        "top_k": min(moe.top_k, 3, experts),
        "width": 2 * sizes.tp * HEAD_SIZE,
        "shared": tp * shared,
        # Large enough to show a wrong balance loss next to the main loss.
        "aux_loss": 0.1 if moe.aux_loss else 0.0,
        # Large enough for a wrong bias to change choices in the next step.
        "bias_update_rate": 0.1 if moe.bias_update_rate else moe.bias_update_rate,
        **groups,
    }
    layers, ends_sparse = range(model.layers), asked.has_experts(asked.layers - 1)
    found = []
    for every, first in ((min(moe.every, 2), min(moe.first_dense, 1)), (3, 0), (1, 0)):
        places = {"every": every, "first_dense": first}
        small = model.replace(moe=moe.replace(**update, **places))
        if any(map(small.has_experts, layers)):
            found.append(small)
    return next((each for each in found if each.has_experts(layers[-1]) == ends_sparse), found[0])


def shrink_blocks(model: Blocks, module: ModuleSpec, layers: int) -> Blocks:
    """Return a model with small blocks; a rank that has several heads keeps two."""
    heads = module.grid.tp * min(2, model.heads // module.grid.tp)
    update: dict[str, object] = {"heads": heads}
    if isinstance(model, VitModel) and model.kv_heads is not None:
        sizes = _small_heads(model, module.grid.tp)
        heads, update = sizes["heads"], {**sizes}
    hidden = HEAD_SIZE * heads
    return model.replace(layers=layers, hidden=hidden, mlp=2 * hidden, **update)


def shrink_encoder(model: Encoder, module: ModuleSpec, layers: int) -> Encoder:
    """Return a model with small blocks and a small projector."""
    small = shrink_blocks(model, module, layers)
    if model.projector_mlp is None:
        return small
    return small.replace(projector_mlp=3 * small.hidden)


def shrink_vit(model: VitModel, module: ModuleSpec, layers: int) -> VitModel:
    """Return a small ViT with a small table of positions, small tiles and small windows."""
    update: dict[str, object] = {}
    if model.image is not None:
        update["image"] = min(3, model.image[0]), min(4, model.image[1])
    if model.features:
        # As many of the last layers as there are, in the same order.
        last = sorted(model.features)[-layers:]
        update["features"] = tuple(
            layers - len(last) + last.index(each) for each in model.features if each in last
        )
    if model.tiles is not None:
        # If grids were averaged before, one grid is.
        most = None if model.tiles.most is None else 2
        tiles = model.tiles
        update["tiles"] = Tiles(
            grids=((1, 2), (2, 2)), most=most, each=tiles.each, whole=tiles.whole
        )
        if model.tiles_before_projector:
            # A tile of several rows each way.
            update["image"] = 2 * model.shuffle, 3 * model.shuffle
    if isinstance(model, Ovis2VisionModel):
        # As few lines and columns of tiles as show whether there were several.
        grids = {(min(2, tall), min(2, wide)) for tall, wide in model.tiles.grids}
        update["tiles"] = model.tiles.replace(grids=tuple(sorted(grids)))
        # The norm of two words is 1 and -1, whatever they are: then nothing before has a gradient.
        update |= {"image": (2 * model.shuffle, model.shuffle), "words": 11}
    if model.windows is not None:
        # A small image has several windows; a window of one patch has nothing to attend to.
        side = 2 if model.shuffle == 1 else min(2, model.windows.side)
        full = full_layers(model.windows.full, model.layers, layers)
        update["windows"] = Windows(side=side, full=full)
    return shrink_encoder(model, module, layers).replace(**update)


def shrink_audio(model: AudioModel, module: ModuleSpec, layers: int) -> AudioModel:
    """Return a small encoder of short clips with few mel bands."""
    update: dict[str, object] = {"mels": min(3, model.mels)}
    if model.chunk is not None:
        # A clip has several chunks of several rows; windows are of fewer chunks than a clip.
        update["chunk"] = min(model.chunk, 2 * model.frames_per_row)
    if isinstance(model, AutModel):
        update |= {"channels": min(3, model.channels), "window": min(2, model.window)}
    if isinstance(model, ConformerModel):
        # Of few channels, ReLU may zero all: then nothing before them has a gradient.
        update |= {"channels": min(8, model.channels), "mels": 8, "kernel": min(3, model.kernel)}
        if model.distance_bias is not None:
            # Some tokens of a clip are further apart.
            update["distance_bias"] = min(2, model.distance_bias)
    small = shrink_encoder(model, module, layers).replace(**update)
    rows = min(MAX_CLIP_ROWS, model.max_rows)
    return small.replace(frames=small.frames_of(rows * small.stack))
