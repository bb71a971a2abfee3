"""The steps that prepare images and videos of shards for a module, by its folder or by default.

Decides: which folder has the processor of a module; the steps without one; which modules read
videos; that the input conditioner of a RADIO, which normalises inside the model, is a step here.
Relies on: `images` and `videos` for the steps of a folder. Both are imported only for a spec with
shards, because their rules take a twentieth of the time of `validate`.
Leaves: carrying out a recipe to `data.samples`.
"""

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mimo_launch.kinds.registry import kind_of
from mimo_launch.processors.files import PREPROCESSOR, PROCESSOR, ProcessorError, UnknownProcessor
from mimo_launch.spec.files import read_json
from mimo_launch.spec.load import earlier_specs
from mimo_launch.spec.spec import Spec, UserData, VitModel

if TYPE_CHECKING:
    from mimo_launch.processors.image_recipe import ImageRecipe
    from mimo_launch.processors.video_recipe import VideoRecipe


def recipe_of(spec: Spec, encoder: str) -> "ImageRecipe":
    """Return the steps for the images of an encoder or generator. Raises: ProcessorError."""
    model, data = spec.modules[encoder].model, spec.data
    images = kind_of(model).images
    if images is None or not isinstance(data, UserData):
        raise ProcessorError(f"`{encoder}` does not read images of shards")
    from mimo_launch.processors.image_recipe import ImageRecipe
    from mimo_launch.processors.images import read_recipe
    from mimo_launch.processors.resize_rules import Exact, Smart

    folder = processor_folder(spec, encoder)
    own = _conditioner_of(spec, encoder)
    if folder is not None:
        try:
            found = read_recipe(folder)
        except UnknownProcessor:
            if data.processor == "own":
                raise
            return _by_class(spec, encoder, folder)
        return found if own is None else _before(found, *own)
    # Images to generate should resemble the noise they start from: zero mean and unit variance.
    # Over many photographs, mean and deviation are 0.45 and 0.27 of the range of a pixel.
    deviation = 0.25 if kind_of(model).computes_loss else 0.5
    middle, spread = (0.5,) * images.channels, (deviation,) * images.channels
    if (usual := kind_of(model).tokens.usual_size) is not None:
        height, width = (side * images.patch for side in usual)
        resize: Exact | Smart = Exact(height, width)
    else:
        side = images.row_side
        resize = Smart(side, side**2, data.max_rows * side**2)
    if own is not None:
        return ImageRecipe(resize, mean=own[0], std=own[1])
    return ImageRecipe(resize, mean=middle, std=spread)


def _by_class(spec: Spec, encoder: str, folder: Path) -> "ImageRecipe":
    """Return the size of what the class of a processor makes. Raises: ProcessorError."""
    from mimo_launch.processors.other_classes import recipe_of_class

    recipe, rule = recipe_of_class(folder), kind_of(spec.modules[encoder].model).tokens.tiles
    if rule is not None or _conditioner_of(spec, encoder) is not None:
        what = "an input conditioner"
        if rule is not None:
            what = f"`tiles`, which need squares of {rule.side} pixels, such as a SigLIP's"
        raise ProcessorError(f"its class makes whole images, but `{encoder}` has {what}")
    return recipe


# The values of CLIP, which `config.json` of a RADIO may leave out.
_MEAN = (0.48145466, 0.4578275, 0.40821073)
_STD = (0.26862954, 0.26130258, 0.27577711)
Values = tuple[float, ...]


def _conditioner_of(spec: Spec, encoder: str) -> tuple[Values, Values] | None:
    """Return mean and deviation by which the model of a folder, a RADIO, normalises pixels itself.

    Raises: ProcessorError.
    """
    for start, _ in earlier_specs(spec.modules[encoder].init_from, encoder):
        file = Path(start) / "config.json"
        if not os.path.lexists(file):
            continue
        try:
            config = read_json(file)
        except (OSError, ValueError):
            return None  # `checks.init_from_folder` reports it.
        if not isinstance(config, dict) or config.get("model_type") != "radio":
            return None
        said = (config.get("norm_mean") or _MEAN, config.get("norm_std") or _STD)
        try:
            mean, std = (tuple(map(float, each)) for each in said)
        except (TypeError, ValueError) as error:
            raise ProcessorError(f"its input conditioner is malformed: {error}") from error
        return mean, std
    return None


def _before(recipe: "ImageRecipe", mean: Values, std: Values) -> "ImageRecipe":
    """Return a recipe in which one step normalises by its own values, then by these."""
    try:
        channels = list(zip(recipe.mean, recipe.std, mean, std, strict=True))
    except ValueError as error:
        raise ProcessorError(f"its input conditioner is malformed: {error}") from error
    means = tuple(own + deviation * each for own, deviation, each, _ in channels)
    return replace(recipe, mean=means, std=tuple(own * each for _, own, _, each in channels))


def processor_folder(spec: Spec, encoder: str) -> Path | None:
    """Return the folder with the image processor of a module, None if none is given.

    A run that starts from another run uses its processor.
    """
    given = spec.data.processors.get(encoder) if isinstance(spec.data, UserData) else None
    if given is not None and os.path.exists(given):  # `checks` refuses others, or plans without.
        return Path(given)
    for start, earlier in earlier_specs(spec.modules[encoder].init_from, encoder):
        if any((Path(start) / x).is_file() for x in (PREPROCESSOR, PROCESSOR)):
            return Path(start)
        earlier_ones = (earlier.get("data") or {}).get("processors") or {}
        if encoder in earlier_ones:
            return Path(earlier_ones[encoder])
    return None


def video_reader_of(spec: Spec) -> str | None:
    """Return the module that reads videos, if there is one; `checks` refuses a second one."""
    return next(iter(video_readers(spec)), None)


def video_readers(spec: Spec) -> list[str]:
    """Return the encoders that read videos."""
    found = ((name, kind_of(module.model).images) for name, module in spec.encoders.items())
    return [name for name, images in found if images is not None and images.reads_videos]


def video_recipe_of(spec: Spec, encoder: str) -> "VideoRecipe | None":
    """Return the steps for the videos of an encoder, None if it reads none.

    Raises: ProcessorError.
    """
    model, data = spec.modules[encoder].model, spec.data
    if not isinstance(model, VitModel) or not isinstance(data, UserData):
        return None
    if model.video is None:
        return None
    from mimo_launch.processors.frame_sampling import (
        FPS,
        MAX_FRAMES,
        MIN_FRAMES,
        EvenSampling,
        FrameSampling,
    )
    from mimo_launch.processors.frame_sizes import ExactFrames, FrameSize
    from mimo_launch.processors.video_recipe import VideoRecipe, as_asked
    from mimo_launch.processors.videos import read_video_recipe

    group = model.temporal_patch
    folder = processor_folder(spec, encoder)
    half = (0.5,) * model.channels
    if folder is not None:
        recipe = read_video_recipe(folder, model.video)
    elif model.tiles is not None:
        frames = ExactFrames(model.image_side, model.image_side)
        even = EvenSampling(FPS, None, MAX_FRAMES)
        recipe = VideoRecipe(even, frames, model.video, mean=half, std=half)
    else:
        side = model.row_side
        limits = FPS, None, MIN_FRAMES, MAX_FRAMES
        sampling = FrameSampling(*limits, group, to_ends=True)
        size = FrameSize(side, side**2, data.max_rows * side**2, group, over_time=False, cap=None)
        recipe = VideoRecipe(sampling, size, model.video, mean=half, std=half)
    return as_asked(recipe, data.video)
