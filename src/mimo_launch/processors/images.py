"""The image recipe that a Hugging Face folder holds.

Relies on: preprocessor_config.json, or processor_config.json, as transformers 4 and 5 write them;
`image_classes` for what each class of processor makes of its settings.
Leaves: images without a folder to `recipes`.
"""

import json
from pathlib import Path
from typing import Any

from mimo_launch.processors.cut_rules import grids_of
from mimo_launch.processors.files import (
    PREPROCESSOR,
    PROCESSOR,
    ProcessorError,
    UnknownProcessor,
    settings_of,
)
from mimo_launch.processors.image_classes import FOLDER, PROCESSORS, Config, ImageProcessor
from mimo_launch.processors.image_recipe import BICUBIC, ImageRecipe
from mimo_launch.processors.resize_rules import LongEdge, Resize


def read_recipe(folder: Path) -> ImageRecipe:
    """Return the recipe that a Hugging Face folder holds. Raises: ProcessorError."""
    config = read_processor(folder)
    name = str(config.get("image_processor_type", config.get("feature_extractor_type")))
    kind = name.removesuffix("Fast").removesuffix("Pil")
    kind = kind.removesuffix("ImageProcessor").removesuffix("FeatureExtractor")
    if kind not in PROCESSORS:
        known = ", ".join(f"{each}ImageProcessor" for each in PROCESSORS)
        raise UnknownProcessor(f"its image processor is {name}; supported are {known}")
    # Old names.
    old = {f"image_{x}": config[f"norm_{x}"] for x in ("mean", "std") if f"norm_{x}" in config}
    said = {key: each for key, each in (old | config).items() if each is not None}
    processor = PROCESSORS[kind]
    try:
        config = {**processor.defaults, **said, **processor.fixed, FOLDER: folder}
        return _recipe(processor, {**config, **_sizes(processor, config)})
    except (TypeError, ValueError, KeyError) as error:
        raise ProcessorError(f"a setting of its {name} is not supported: {error}") from error


def _sizes(processor: ImageProcessor, config: Config) -> Config:
    """Return the sizes of a processor as transformers 5 writes them. Raises: TypeError."""
    found = {}
    for key in ("size", "crop_size"):
        match config.get(key):
            case int(side):
                is_square = key == "crop_size" or not processor.is_short_edge
                found[key] = (
                    {"height": side, "width": side} if is_square else {"shortest_edge": side}
                )
            case [height, width]:
                found[key] = {"height": height, "width": width}
            case dict(size):
                found[key] = {name: each for name, each in size.items() if each is not None}
            case None:
                pass
            case other:
                raise TypeError(f"{key}: {json.dumps(other)}")
    return found


def _recipe(processor: ImageProcessor, config: Config) -> ImageRecipe:
    """Return the steps of a processor with all its settings."""
    if config.get("do_pan_and_scan", False):
        raise ValueError("do_pan_and_scan: true, which adds crops of large images")
    cut = processor.cut(config)
    pads = bool(config.get("do_pad", False))
    if pads and processor.pads is None:
        raise ValueError("do_pad: true")
    crops = processor.crops and config.get("do_center_crop", False)
    crop = config["crop_size"] if crops else None
    resize: Resize | None = None if cut is None else cut.resize
    if cut is None and config.get("do_resize", True):
        resize = processor.resize(config)
    canvas = None
    if pads and processor.pads == "after":
        if not isinstance(resize, LongEdge):
            raise ValueError("do_pad: true with do_resize: false")
        canvas = (resize.length, resize.length)
    return ImageRecipe(
        resize=resize,
        pad_square=pads and canvas is None,
        canvas=canvas,
        crop=None if crop is None else (int(crop["height"]), int(crop["width"])),
        **(_centred(pixels_of(config)) if processor.centres else pixels_of(config)),
        fill=tuple(int(each * 255) for each in config["image_mean"]),
        grids=_grids(config) if processor.has_tiles else (),
        cut=cut,
        tiled=processor.tiled(config),
        as_floats=processor.as_floats,
    )


def _grids(config: Config) -> tuple[tuple[int, int], ...]:
    """Return the grids of tiles, all of which have one side. Raises: ValueError."""
    sides = {*config["size"].values(), *(config.get("crop_size") or {}).values()}
    if len(sides) > 1:
        sizes = f"size: {json.dumps(config['size'])}, crop_size: {json.dumps(config['crop_size'])}"
        raise ValueError(f"{sizes}, so that tiles are cut in one size and resized to another")
    return grids_of(config)


def _centred(pixels: dict[str, Any]) -> dict[str, Any]:
    """Return the same settings of pixels that a model maps from 0 .. 1 to -1 .. 1."""
    channels = list(zip(pixels["mean"], pixels["std"], strict=True))
    return pixels | {
        "mean": tuple(mean + std / 2 for mean, std in channels),
        "std": tuple(std / 2 for _, std in channels),
    }


def pixels_of(config: Config) -> dict[str, Any]:
    """Return filter, scale, mean and deviation of a recipe.

    Raises: KeyError, TypeError, ValueError.
    """
    scales, normal = config.get("do_rescale", True), config.get("do_normalize", True)
    return {
        "resample": int(config.get("resample", BICUBIC)),
        "scale": float(config.get("rescale_factor", 1 / 255)) if scales else 1,
        "mean": tuple(map(float, config["image_mean"])) if normal else (0.0,) * 3,
        "std": tuple(map(float, config["image_std"])) if normal else (1.0,) * 3,
    }


def read_processor(folder: Path) -> dict[str, Any]:
    """Return the settings of the image processor in a folder. Raises: ProcessorError."""
    if (found := settings_of(folder, "image_processor", (PREPROCESSOR,))) is None:
        raise ProcessorError(f"it has neither {PREPROCESSOR} nor {PROCESSOR}")
    return found
