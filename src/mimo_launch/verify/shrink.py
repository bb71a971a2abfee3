"""Makes a spec small enough to prove in seconds, keeping what can go wrong about it.

Decides: which sizes may shrink. Grids, placement, order, schedule, sharding and flags stay; widths,
depths, vocabulary, batch and sequence become the smallest legal ones. Of a run: how few steps, and
when they are saved; that the last one is evaluated. What is 0 stays 0, what is not does not become
it, and warm-ups that differ still do. Rates, moments, decay and clipping stay.
Relies on: `data.sample_sizes` for the longest sample.
Leaves: running the result to `proof`; when a step is skipped and when the run stops to
`training_proof`.
"""

from collections.abc import Iterable
from math import lcm
from typing import Literal

from mimo_launch.checks.batch import seq_unit
from mimo_launch.data.sample_sizes import longest_sample
from mimo_launch.layout.encoder_placement import encoder_group_size
from mimo_launch.layout.layout import world_size
from mimo_launch.spec.encoders import FRAMES_PER_TOKEN
from mimo_launch.spec.model import (
    AudioModel,
    CheckpointSpec,
    Clips,
    CustomModel,
    EvalSpec,
    HybridModel,
    LanguageModel,
    LrSchedule,
    ModuleSpec,
    OptimizerSpec,
    Spec,
    SyntheticData,
    TransformerEncoder,
    VitModel,
    WebdatasetData,
    clip_input,
    image_input,
)
from mimo_launch.verify.coverage import differing, num_stages, relations
from mimo_launch.verify.shrink_grids import MAX_RANKS, regrid
from mimo_launch.verify.shrink_language import (
    HEAD_SIZE,
    shrink_decoder,
    shrink_hybrid,
    with_experts,
)

MAX_LAYERS = 2
MAX_CLIP_ROWS = 4
MAX_SAMPLES_PER_MICROBATCH = 2
TEXT_TOKENS = 8
NUM_STEPS = 2
RUN_STEPS = 5
SAVE_EVERY = 3
# Below it an element whose gradient is zero moves by noise: 1e-17 over this, times the rate.
MIN_EPS = 1e-8
MAX_DECAY = 2


def shrink(spec: Spec, precision: Literal["fp64", "fp32"] = "fp64") -> Spec:
    """Return a small SGD spec with the layout of `spec`.

    Above 32 ranks grids are reduced first, with the same relations of ranks (see `shrink_grids`).

    Raises: ValueError if that takes too many ranks, or has lost a relation.
    """
    small = regrid(spec) if world_size(spec) > MAX_RANKS else spec
    modules = {
        name: _as_computed(
            _shrink_module(module, num_stages(spec, name), num_stages(small, name)), precision
        )
        for name, module in small.modules.items()
    }
    data = small.data
    if isinstance(data, WebdatasetData):
        # Layouts are proved on made-up samples of the same kinds: several images, or only text, by
        # themselves or in packs.
        data = SyntheticData.model_validate(
            {"kind": "synthetic", "max_images": 2, "text_only": 0.2, "packing": data.packing}
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
    small = small.model_copy(update={"batch": batch})
    for what, before, after in differing(relations(spec), relations(small)):
        # It would be the proof of another layout.
        raise ValueError(f"{what} would change from {before} to {after}")
    return small


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


def _shrink_module(module: ModuleSpec, stages_before: int, stages: int) -> ModuleSpec:
    tp, model = module.grid.tp, module.model
    # One or two layers a stage as before, and an uneven cut stays uneven.
    each, rest = divmod(model.layers, stages_before)
    layers = stages * max(1, min(MAX_LAYERS, each)) + (rest > 0)
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
        small = with_experts(shrink_hybrid(model, module.grid, layers), module)
    else:
        small = with_experts(shrink_decoder(model, tp, layers), module)
    return module.model_copy(
        update={
            "model": small,
            "optimizer": optimizer,
            "init_from": None,
            "init_partial": False,
        }
    )


def _as_computed(module: ModuleSpec, precision: str) -> ModuleSpec:
    """Return a module as it computes in this precision: the other layers' tests compare with it."""
    update: dict[str, object] = {"backend": "torch", "fp8": None}
    if precision == "fp64" and module.compile == "auto":
        update["compile"] = False
    return module.model_copy(update=update)


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


def short_run(asked: Spec, small: Spec) -> Spec:
    """Return `small`, which `shrink` made of `asked`, with a short form of its training."""
    own = {name: module.optimizer for name, module in asked.modules.items()}
    common = asked.optimizer.schedule
    few = _few([common.warmup, *(each.warmup or 0 for each in own.values())])
    modules = {}
    for name, module in small.modules.items():
        warmup = own[name].warmup
        update = {"warmup": None if warmup is None else few[warmup]}
        modules[name] = module.model_copy(update={"optimizer": own[name].model_copy(update=update)})
    schedule = common.model_copy(
        update={"warmup": few[common.warmup], "decay": min(MAX_DECAY, common.decay)}
    )
    return small.model_copy(
        update={
            "modules": modules,
            "optimizer": _optimizer(asked.optimizer).model_copy(update={"schedule": schedule}),
            "train": small.train.model_copy(
                update={"steps": RUN_STEPS, "max_skipped": max(2, asked.train.max_skipped)}
            ),
            # After the last step, of two batches, with as many labels as they happen to have.
            "eval": asked.eval and EvalSpec(samples=small.batch.global_ + 1),
            "checkpoint": (asked.saving or CheckpointSpec()).model_copy(
                update={"every": SAVE_EVERY}
            ),
        }
    )


def _optimizer(asked: OptimizerSpec) -> OptimizerSpec:
    return asked.model_copy(update={"eps": max(MIN_EPS, asked.eps)})


def _few(warmups: Iterable[int]) -> dict[int, int]:
    """Return small numbers for warm-ups, in the same order, which end before the run does."""
    longer = sorted({warmup for warmup in warmups if warmup > 0})
    most = RUN_STEPS - MAX_DECAY
    return {0: 0} | {warmup: min(warmup, 2 + i, most) for i, warmup in enumerate(longer)}
