"""Makes a spec small enough to prove in seconds, keeping what can go wrong about its layout.

Decides: which sizes may shrink. Grids, placement, order, schedule, sharding and flags stay; widths,
depths, vocabulary, batch and sequence become the smallest legal ones.
Relies on: `layout.tokens` for the longest sample.
Leaves: running the result to `run`.
"""

from math import lcm
from typing import Literal, TypeVar

from mimo_launch.layout.checks.batch import seq_unit
from mimo_launch.layout.layout import LANGUAGE, encoder_group_size
from mimo_launch.layout.tokens import longest_sample
from mimo_launch.spec.kinds import FRAMES_PER_TOKEN
from mimo_launch.spec.model import (
    AudioModel,
    Clips,
    CustomModel,
    DecoderModel,
    ExpertGrid,
    Grid,
    HybridModel,
    LanguageModel,
    LrSchedule,
    ModuleSpec,
    Moe,
    Spec,
    SyntheticData,
    TransformerEncoder,
    VitModel,
    WebdatasetData,
    clip_input,
    image_input,
)
from mimo_launch.verify.regrid import MAX_RANKS, regrid

HEAD_SIZE = 8
MAX_LAYERS = 2
MAX_CLIP_ROWS = 4
MAX_SAMPLES_PER_MICROBATCH = 2
TEXT_TOKENS = 8
NUM_STEPS = 2

Language = TypeVar("Language", DecoderModel, HybridModel)


def shrink(spec: Spec, precision: Literal["fp64", "fp32"] = "fp64") -> Spec:
    """Return a small SGD spec with the layout of `spec`.

    Grids above 32 ranks are reduced axis by axis first (see `regrid`).
    """
    small = regrid(spec) if _num_ranks(spec) > MAX_RANKS else spec
    modules = {
        name: _shrink_module(module, small.schedule.virtual_stages if name == LANGUAGE else 1)
        for name, module in small.modules.items()
    }
    data = small.data
    if isinstance(data, WebdatasetData):
        # Layouts are proved on made-up samples of the same kinds: several images, or only text.
        data = SyntheticData.model_validate(
            {"kind": "synthetic", "max_images": 2, "text_only": 0.2}
        )
    if isinstance(data, SyntheticData):
        models = [module.model for module in spec.encoders.values()]
        data = _shrink_images(data, [m.shuffle for m in map(image_input, models) if m])
        data = _shrink_clips(data, [m for m in map(clip_input, models) if m])
    modules = _shrink_placeholders(modules, among_words=isinstance(data, SyntheticData))
    small = small.model_copy(
        update={
            "modules": modules,
            "data": data,
            # A step that is clipped and large: a wrong norm or gradient shows in the weights.
            "optimizer": small.optimizer.model_copy(
                update={
                    "kind": "sgd",
                    "lr": 0.5,
                    "clip": 0.5,
                    "weight_decay": 0.0,
                    "schedule": LrSchedule.model_validate({}),
                }
            ),
            "train": small.train.model_copy(update={"precision": precision, "steps": NUM_STEPS}),
            "init_from": None,
            "eval": None,
            "checkpoint": None,
        }
    )
    batch = small.batch.model_copy(
        update={"global_": _global_batch(small), "seq": _sequence(small)}
    )
    return small.model_copy(update={"batch": batch})


def _shrink_images(data: SyntheticData, shuffles: list[int]) -> SyntheticData:
    """Return data of little text and small images, which hold whole squares of patches."""
    # An image of one patch has nothing to attend to: its queries and keys have no gradient.
    update: dict[str, object] = {
        "min_patches": 2,
        "max_patches": max(2, min(6 * max(shuffles, default=1) ** 2, data.max_patches)),
        # Nor does the first token have anything before it: some text must follow.
        "min_text": TEXT_TOKENS,
    }
    if data.image is not None:
        (height, width), unit = data.image, lcm(*shuffles)
        update["image"] = min(height, 2 * unit), min(width, 3 * unit)
    return data.model_copy(update=update)


def _shrink_clips(data: SyntheticData, models: list[Clips]) -> SyntheticData:
    """Return data whose clips are a few rows long for the encoder that makes the longest rows."""
    row = max((model.frames_per_row for model in models), default=FRAMES_PER_TOKEN)
    # A clip of one token has nothing to attend to either.
    least = 2 * FRAMES_PER_TOKEN
    most = max(least, min(MAX_CLIP_ROWS * row, data.max_frames))
    return data.model_copy(update={"min_frames": least, "max_frames": most})


def _num_ranks(spec: Spec) -> int:
    return max(module.rank_range.stop for module in spec.modules.values())


def _shrink_module(module: ModuleSpec, virtual_stages: int) -> ModuleSpec:
    tp, model = module.grid.tp, module.model
    stages = module.grid.pp * virtual_stages
    # One or two layers a stage as before, and an uneven cut stays uneven.
    uneven = stages > 1 and model.layers % stages > 0
    layers = stages * max(1, min(MAX_LAYERS, model.layers // stages)) + uneven
    optimizer = module.optimizer.model_copy(
        update={"lr": None, "weight_decay": None, "warmup": None}
    )
    small: TransformerEncoder | LanguageModel | CustomModel
    if isinstance(model, CustomModel):
        small = model  # What depends on what in a user's own class is not known.
    elif isinstance(model, TransformerEncoder):
        heads = tp * min(2, model.heads // tp)
        hidden = HEAD_SIZE * heads
        update: dict[str, object] = {
            "layers": layers,
            "heads": heads,
            "hidden": hidden,
            "mlp": 2 * hidden,
        }
        if isinstance(model, VitModel) and model.image is not None:
            update["image"] = min(3, model.image[0]), min(4, model.image[1])
        if isinstance(model, AudioModel):
            update |= {"mels": min(3, model.mels), "frames": _clip_frames(model)}
        small = model.model_copy(update=update)
    elif isinstance(model, HybridModel):
        small = _with_experts(_shrink_hybrid(model, module.grid, layers), module)
    else:
        update = {"layers": layers, "mrope": model.mrope and _shrink_mrope(model)}
        small = _with_experts(_shrink_language(model, tp).model_copy(update=update), module)
    return module.model_copy(
        update={
            "model": small,
            "optimizer": optimizer,
            "init_from": None,
            "init_partial": False,
            # The layers that compute in float64; their tests compare the others with them.
            "backend": "torch",
        }
    )


def _shrink_placeholders(
    modules: dict[str, ModuleSpec], *, among_words: bool
) -> dict[str, ModuleSpec]:
    """Return modules whose given placeholders are in a small vocabulary, among words if need be.

    Otherwise they are the last ids, like those that nobody gave.
    """
    given = [name for name, module in modules.items() if module.placeholder is not None]
    ids = {name: number if among_words else None for number, name in enumerate(given, 2)}
    return {
        name: module.model_copy(update={"placeholder": ids.get(name)})
        for name, module in modules.items()
    }


def _clip_frames(model: AudioModel) -> int:
    """Return the frames of the longest clip: a few whole rows."""
    return min(MAX_CLIP_ROWS, model.max_rows) * model.frames_per_row


def _shrink_language(model: Language, tp: int) -> Language:
    """Keep whether key/value heads are shared, among query heads and among tp ranks."""
    kv_heads = model.num_kv_heads if model.num_kv_heads < tp else tp
    heads = lcm(tp, kv_heads) * min(2, max(1, model.heads // lcm(tp, model.num_kv_heads)))
    if model.heads == model.num_kv_heads:
        heads = kv_heads
    vocab = model.vocab if model.vocab == "digits" else min(model.vocab, 61)
    return model.model_copy(
        update={
            "heads": heads,
            "kv_heads": kv_heads,
            "hidden": HEAD_SIZE * heads,
            "head_dim": _head_dim(model),
            "mlp": 2 * tp * HEAD_SIZE,
            "vocab": vocab,
            "vocab_multiple": 16,
        }
    )


def _head_dim(model: LanguageModel) -> int | None:
    return None if model.head_dim is None else HEAD_SIZE + 2


def _shrink_mrope(model: DecoderModel) -> tuple[int, int, int]:
    """One pair turns with time, so that height and width have fast ones, in which bugs show."""
    pairs = (_head_dim(model) or HEAD_SIZE) // 2
    height = (pairs - 1) // 2
    return 1, height, pairs - 1 - height


def _shrink_hybrid(model: HybridModel, grid: Grid, layers: int) -> HybridModel:
    """Keep which layers there are, and whether ranks share groups; every layer kind stays."""
    kinds = list(dict.fromkeys(model.pattern))
    layers = max(layers, min(len(kinds), model.layers))
    pattern = model.pattern[:layers]
    missing = [kind for kind in kinds if kind not in pattern]
    if missing:
        pattern = "".join([*kinds, *pattern[: layers - len(kinds)]])
    small = _shrink_language(model, grid.tp).model_copy(update={"pattern": pattern})
    if model.mamba is None:
        return small
    ranks = grid.tp * grid.cp
    groups = min(model.mamba.groups, ranks * min(2, max(1, model.mamba.groups // ranks)))
    unit = lcm(ranks, groups)
    sizes = {
        "heads": unit * min(2, model.mamba.heads // unit),
        "groups": groups,
        "head_dim": min(4, model.mamba.head_dim),
        "state": min(6, model.mamba.state),
        "conv": min(4, model.mamba.conv),
        # Several chunks a sequence.
        "chunk": min(8, model.mamba.chunk),
    }
    return small.model_copy(update={"mamba": model.mamba.model_copy(update=sizes)})


def _shrink_moe(moe: Moe, sizes: ExpertGrid, tp: int) -> Moe:
    """Keep several experts on a rank, a choice among them, and layers with and without experts."""
    experts = sizes.ep * min(2, moe.experts // sizes.ep)
    return moe.model_copy(
        update={
            "experts": experts,
            "top_k": min(moe.top_k, 2, experts),
            "width": 2 * sizes.tp * HEAD_SIZE,
            "shared": min(moe.shared, 2 * tp * HEAD_SIZE),
            # Large enough that a wrong balance loss is seen beside the main one.
            "aux_loss": 0.1 if moe.aux_loss else 0.0,
            "every": min(moe.every, 2),
            "first_dense": min(moe.first_dense, 1),
        }
    )


def _with_experts(model: Language, module: ModuleSpec) -> Language:
    """Return a small model whose experts are small, too, with at least one layer of them."""
    if model.moe is None:
        return model
    small = _shrink_moe(model.moe, module.experts or ExpertGrid(), module.grid.tp)
    if not any(model.model_copy(update={"moe": small}).has_experts(i) for i in range(model.layers)):
        small = small.model_copy(update={"every": 1, "first_dense": 0})
    return model.model_copy(update={"moe": small})


def _global_batch(spec: Spec) -> int:
    """Return the smallest legal batch with, if possible, two samples in a microbatch."""
    replicas, microbatches = spec.language.grid.dp, spec.schedule.microbatches
    now = spec.batch.global_ // (replicas * microbatches)
    legal = [
        size
        for size in range(1, max(1, now) + 1)
        if all(
            replicas * size * encoder_group_size(spec, name) % module.grid.dp == 0
            for name, module in spec.encoders.items()
        )
    ]
    wanted = [size for size in legal if size >= MAX_SAMPLES_PER_MICROBATCH]
    size = wanted[0] if wanted else (legal[-1] if legal else now)
    return replicas * microbatches * size


def _sequence(spec: Spec) -> int:
    """Return the shortest sequence that holds every sample and splits over tp and cp.

    Where records are packed, one that holds several of them.
    """
    step, least = seq_unit(spec), longest_sample(spec) * (3 if spec.data.packing else 1)
    return -(-least // step) * step
