"""Makes a spec small enough to prove in seconds, but keeps everything that can go wrong.

Decides: which sizes may shrink. Grids, placement, order, schedule, sharding and flags stay; widths,
depths, vocabulary, batch and sequence become the smallest legal ones. A run has few steps, and is
saved in the middle; with `eval.every` it is also evaluated there. Zeros stay zero, and nothing else
becomes zero; different warm-ups stay different. Rates, moments, decay and clipping stay.
Relies on: `data.sample_sizes` for the longest sample.
Leaves: running the result to `proof`; when a step is skipped and when the run stops to
`training_proof`.
"""

from functools import singledispatch
from math import lcm
from typing import Literal

from mimo_launch.checks.batch import seq_unit
from mimo_launch.data.sample_sizes import longest_sample
from mimo_launch.kinds.registry import kind_of
from mimo_launch.layout.layout import world_size
from mimo_launch.layout.samples import group_size
from mimo_launch.layout.stages import num_stages
from mimo_launch.spec.base import LANGUAGE
from mimo_launch.spec.encoders import EncoderBlocks, TransformerEncoder
from mimo_launch.spec.media import FRAMES_PER_TOKEN
from mimo_launch.spec.optimizers import LrSchedule
from mimo_launch.spec.quantized_base import QuantizedBase
from mimo_launch.spec.sections import CheckpointSpec, EvalSpec
from mimo_launch.spec.spec import (
    AudioModel,
    Data,
    DecoderModel,
    HybridModel,
    Model,
    ModuleSpec,
    Spec,
    SyntheticData,
    TalkerModel,
    UserData,
    VitModel,
)
from mimo_launch.verify.coverage import differing, relations
from mimo_launch.verify.shrink_grids import MAX_RANKS, regrid
from mimo_launch.verify.shrink_models import (
    MAX_CLIP_ROWS,
    shrink_audio,
    shrink_blocks,
    shrink_decoder,
    shrink_encoder,
    shrink_frozen,
    shrink_hybrid,
    shrink_stages,
    shrink_talker,
    shrink_vit,
)

MAX_LAYERS = 2
MAX_SAMPLES_PER_MICROBATCH = 2
TEXT_TOKENS = 8
MTP_DOCUMENTS = 2
MAX_TEMPORAL_PATCHES = 3
NUM_STEPS = 2
RUN_STEPS = 5
SAVE_EVERY = 3
# Evaluations are after the step that is skipped, and after a step that follows a resume.
EVAL_EVERY = 2
# With a smaller eps, an element with zero gradient would move by noise: 1e-17 / eps times the rate.
MIN_EPS = 1e-8
MAX_DECAY = 2


def shrink(spec: Spec, precision: Literal["fp64", "fp32"] = "fp64") -> Spec:
    """Return a small SGD spec with the layout of `spec`.

    Above 32 ranks grids are reduced first, with the same relations of ranks (see `shrink_grids`).

    Raises: ValueError if that still takes too many ranks, or loses a relation.
    """
    small = regrid(spec) if world_size(spec) > MAX_RANKS else spec
    modules = {
        name: _shrink_module(module, num_stages(spec, name), num_stages(small, name), precision)
        for name, module in small.modules.items()
    }
    for name, module in modules.items():
        if deep := (model := module.model).deep_rows:
            # The first layers, as many as both models allow, without the last layer of language.
            number = min(deep, model.layers, modules[LANGUAGE].model.layers - 1)
            small_model = model.replace(deepstack=tuple(range(number)))
            modules[name] = module.replace(model=small_model)
        if isinstance(model, TalkerModel) and model.reads_layer is not None:
            layer = min(model.reads_layer, modules[LANGUAGE].model.layers - 1) or None
            modules[name] = module.replace(model=model.replace(reads_layer=layer))
    data = _shrink_data(spec)
    # Placeholders that the user set become low ids among the random words of synthetic text; with
    # digits they become the last ids, like placeholders that the user did not set.
    given = [name for name, module in modules.items() if module.placeholder is not None]
    for number, name in enumerate(given, 2):
        placeholder = number if isinstance(data, SyntheticData) else None
        modules[name] = modules[name].replace(placeholder=placeholder)
    small = small.replace(
        modules=modules,
        data=data,
        # Large, clipped steps: a wrong norm or gradient shows in the weights.
        optimizer=small.optimizer.replace(
            kind="sgd", lr=0.5, clip=0.5, weight_decay=0.0, schedule=LrSchedule.model_validate({})
        ),
        train=small.train.replace(precision=precision, steps=NUM_STEPS),
        init_from=None,
        eval=None,
        checkpoint=None,
    )
    # The shortest sequence that holds every sample (several if packed) and that tp and cp divide.
    unit, least = seq_unit(small), longest_sample(small) * (3 if small.data.packing else 1)
    batch = small.batch.replace(global_=_global_batch(small), seq=-(-least // unit) * unit)
    small = small.replace(batch=batch)
    for what, before, after in differing(relations(spec), relations(small)):
        # The proof would be of another layout.
        raise ValueError(f"{what} would change from {before} to {after}")
    return small


def _shrink_data(spec: Spec) -> Data:
    """Return data with little text, small images and short clips; digits stay as they are."""
    data = spec.data
    if isinstance(data, UserData):
        # Layouts are proved on synthetic samples of the same kinds: with several images or none,
        # packed or not.
        data = SyntheticData.model_validate(
            {"kind": "synthetic", "max_images": 2, "text_only": 0.2, "packing": data.packing}
        )
    if not isinstance(data, SyntheticData):
        return data
    kinds = [kind_of(module.model) for module in spec.encoders.values()]
    shuffles = [kind.images.shuffle for kind in kinds if kind.images]
    clips = [kind.clips for kind in kinds if kind.clips]
    of_row = max(shuffles, default=1) ** 2
    frames_of_row = max((each.frames_per_row for each in clips), default=FRAMES_PER_TOKEN)
    two_tokens = max((each.frames_of(2) for each in clips), default=2 * FRAMES_PER_TOKEN)
    # An image of one patch has nothing to attend to: its queries and keys have no gradient. The
    # same is true for an image of one row in a connector if its tokens are rows.
    joined = any(kind.reading.takes_rows and not kind.reading.beside for kind in kinds)
    min_patches = 2 * (of_row if joined else 1)
    min_frames = 2 * frames_of_row if joined else two_tokens
    max_frames, depths = MAX_CLIP_ROWS * frames_of_row, kind_of(spec.language.model).depths
    update: dict[str, object] = {
        "min_patches": min_patches,
        "max_patches": max(min_patches, min(6 * of_row, data.max_patches)),
        # The same is true for a clip of one token.
        "min_frames": min_frames,
        "max_frames": max(min_frames, min(max_frames, data.max_frames)),
        # The same is true for the first token of a text: others must follow. A depth of `mtp`
        # learns only in documents that are longer than the depth.
        "min_text": TEXT_TOKENS * (1 + depths),
        "max_text": None,
        "max_documents": min(data.max_documents, MTP_DOCUMENTS) if depths else data.max_documents,
    }
    if any(kind.images and kind.images.reads_videos for kind in kinds):
        # Language counts the time of later images from the first image, not from the previous one.
        update["max_temporal_patches"] = MAX_TEMPORAL_PATCHES
    if data.image is not None:  # Whole squares of patches.
        (height, width), unit = data.image, lcm(*shuffles)
        update["image"] = min(height, 2 * unit), min(width, 3 * unit)
    return data.replace(**update)


def _shrink_module(
    module: ModuleSpec, stages_before: int, stages: int, precision: str
) -> ModuleSpec:
    model = module.model
    # Three can be frozen below, between and above others.
    most = 3 if module.frozen_layers else MAX_LAYERS
    sizes = shrink_stages(module, stages_before, stages, most)
    small = _shrink_model(model, module, sum(sizes))
    optimizer = module.optimizer.replace(kind=None, lr=None, weight_decay=None, warmup=None)
    return module.replace(
        model=small,
        stages=_stages(module, small, sizes),
        frozen=shrink_frozen(module, small),
        optimizer=optimizer,
        # Small widths have few inputs; how maps are cut and kept is the same for every kind.
        quantize_base=module.quantize_base and QuantizedBase(kind="int8", block=2),
        init_from=None,
        init_partial=False,
        adapter=module.adapter and module.adapter.replace(init_from=None),
        # The tests of other backends compare them with this backend.
        backend="torch",
        fp8=None,
        # Their tests compare cached runs; a proof writes nothing outside its own folder.
        cache=False,
        compile=(False if precision == "fp64" and module.compile == "auto" else module.compile),
    )


def _stages(module: ModuleSpec, small: Model, sizes: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the layers of each stage of a small module, None if they are cut evenly."""
    if isinstance(small, DecoderModel) and small.shared_keys is not None and len(sizes) > 1:
        # The last stage has the layers that share keys.
        return (*sizes[:-1], small.layers - sum(sizes[:-1]))
    return None if module.stages is None else _over(small.layers, sizes)


def _over(layers: int, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return stages of these sizes; the longest also takes further layers that a model needs."""
    longest = sizes.index(max(sizes))
    more = layers - sum(sizes)
    return tuple(each + more * (number == longest) for number, each in enumerate(sizes))


@singledispatch
def _shrink_model(model: Model, module: ModuleSpec, layers: int) -> Model:
    """Return a small model of the same class with this number of layers."""
    del module, layers
    return model  # How the sizes of a user's class depend on each other is unknown.


_shrink_model.register(EncoderBlocks, shrink_blocks)
_shrink_model.register(TransformerEncoder, shrink_encoder)
_shrink_model.register(VitModel, shrink_vit)
_shrink_model.register(AudioModel, shrink_audio)
_shrink_model.register(DecoderModel, shrink_decoder)
_shrink_model.register(HybridModel, shrink_hybrid)
_shrink_model.register(TalkerModel, shrink_talker)


def _global_batch(spec: Spec) -> int:
    """Return the smallest legal batch with, if possible, two samples in a microbatch."""
    replicas, microbatches = spec.language.grid.dp, spec.schedule.microbatches
    now = spec.batch.global_ // (replicas * microbatches)
    legal = [
        size
        for size in range(1, max(1, now) + 1)
        if all(
            replicas * size * group_size(spec, name) % module.grid.dp == 0
            for name, module in spec.modules.items()
        )
    ]
    wanted = [size for size in legal if size >= MAX_SAMPLES_PER_MICROBATCH]
    size = wanted[0] if wanted else (legal[-1] if legal else now)
    return replicas * microbatches * size


def short_run(asked: Spec, small: Spec) -> Spec:
    """Return `small`, which `shrink` made of `asked`, with a short form of its training."""
    own = {name: module.optimizer for name, module in asked.modules.items()}
    common, steps = asked.optimizer.schedule, asked.train.steps
    # Warm-ups become small numbers in the same order, and end before the run does.
    counts = {name: common.warmup_steps(steps, each.warmup) for name, each in own.items()}
    warmups = {common.warmup_steps(steps), *counts.values()}
    few = {0: 0}
    for i, warmup in enumerate(sorted(each for each in warmups if each > 0)):
        few[warmup] = min(warmup, 2 + i, RUN_STEPS - MAX_DECAY)
    modules = {}
    for name, module in small.modules.items():
        update = {"warmup": None if own[name].warmup is None else few[counts[name]]}
        modules[name] = module.replace(optimizer=own[name].replace(**update))
    schedule = common.replace(
        warmup=few[common.warmup_steps(steps)], decay=min(MAX_DECAY, common.decay_steps(steps))
    )
    return small.replace(
        modules=modules,
        optimizer=asked.optimizer.replace(eps=max(MIN_EPS, asked.optimizer.eps), schedule=schedule),
        train=small.train.replace(steps=RUN_STEPS, max_skipped=max(2, asked.train.max_skipped)),
        # Two batches, which may differ in their labels.
        eval=asked.eval
        and EvalSpec(
            every=EVAL_EVERY if asked.eval.every else None,
            at_start=asked.eval.at_start,
            # Sets have no names: they are shards, and a proof has none.
            metric=asked.eval.judged_number,
            stop_after=asked.eval.stop_after and 1,
            samples=small.batch.global_ + 1,
        ),
        checkpoint=(asked.saving or CheckpointSpec()).replace(every=SAVE_EVERY),
    )
