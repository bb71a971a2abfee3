"""Which recipe makes the images of an encoder: that of a Hugging Face folder, or a plain one.

Decides: which image processors of such folders are understood.
Relies on: preprocessor_config.json, or processor_config.json, as transformers 4 and 5 write them;
defaults are those of its classes.
Leaves: what a recipe makes to `image_recipe`.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mimo_launch.hugging_face.image_recipe import (
    BICUBIC,
    HALF,
    Exact,
    ImageRecipe,
    ShortEdge,
    Smart,
)
from mimo_launch.kinds.registry import kind_of
from mimo_launch.spec.files import read_json
from mimo_launch.spec.load import earlier_specs
from mimo_launch.spec.model import Spec, WebdatasetData, image_input

PREPROCESSOR, PROCESSOR = "preprocessor_config.json", "processor_config.json"
_CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
_CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
_CLIP = {
    "size": {"shortest_edge": 224},
    "do_center_crop": True,
    "crop_size": {"height": 224, "width": 224},
    "image_mean": _CLIP_MEAN,
    "image_std": _CLIP_STD,
}
# What transformers takes where a key is left out, by image processor without `ImageProcessor`.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "CLIP": _CLIP,
    "Llava": _CLIP,
    "Siglip": {"size": {"height": 224, "width": 224}, "image_mean": HALF, "image_std": HALF},
    "Qwen2VL": {
        "size": {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280},
        "patch_size": 14,
        "merge_size": 2,
        "image_mean": _CLIP_MEAN,
        "image_std": _CLIP_STD,
    },
}


class ProcessorError(ValueError):
    """A folder does not say how to make images, or in a way that is not understood."""


def recipe_of(spec: Spec, encoder: str) -> ImageRecipe:
    """Return what is done to the images of an encoder. Raises: ProcessorError."""
    model, data = spec.encoders[encoder].model, spec.data
    images = image_input(model)
    if images is None or not isinstance(data, WebdatasetData):
        raise ProcessorError(f"`{encoder}` reads no images of shards")
    folder = processor_folder(spec, encoder)
    if folder is not None:
        return read_recipe(folder)
    middle = (0.5,) * images.channels
    if (grid := kind_of(model).learned_grid) is not None:
        height, width = (side * images.patch for side in grid)
        resize: Exact | Smart = Exact(height, width)
    else:
        side = images.row_side
        resize = Smart(side, side**2, data.max_rows * side**2)
    return ImageRecipe(resize, mean=middle, std=middle)


def processor_folder(spec: Spec, encoder: str) -> Path | None:
    """Return the folder that says how images of an encoder are made, None if none is given.

    A run that starts from another one makes images as that one did.
    """
    if isinstance(spec.data, WebdatasetData) and encoder in spec.data.processors:
        return Path(spec.data.processors[encoder])
    for start, earlier in earlier_specs(spec.encoders[encoder].init_from, encoder):
        if any((Path(start) / x).is_file() for x in _FILES):
            return Path(start)
        given = (earlier.get("data") or {}).get("processors") or {}
        if encoder in given:
            return Path(given[encoder])
    return None


_FILES = (PREPROCESSOR, PROCESSOR)


def read_recipe(folder: Path) -> ImageRecipe:
    """Return the recipe that a Hugging Face folder holds. Raises: ProcessorError."""
    config = read_processor(folder)
    name = str(config.get("image_processor_type", config.get("feature_extractor_type")))
    kind = name.removesuffix("Fast").removesuffix("Pil")
    kind = kind.removesuffix("ImageProcessor").removesuffix("FeatureExtractor")
    if kind not in _DEFAULTS:
        known = ", ".join(f"{each}ImageProcessor" for each in _DEFAULTS)
        raise ProcessorError(f"its image processor is {name}; known are {known}")
    given = {key: value for key, value in config.items() if value is not None}
    try:
        return _recipe(kind, {**_DEFAULTS[kind], **given})
    except (TypeError, ValueError, KeyError) as error:
        raise ProcessorError(f"a setting of its {name} is not understood: {error}") from error


def read_processor(folder: Path) -> dict[str, Any]:
    """Return the settings of the image processor in a folder. Raises: ProcessorError."""
    for name in _FILES:
        try:
            config = read_json(folder / name)
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise ProcessorError(f"{name} cannot be read: {error}") from error
        # A processor of several kinds of input holds that of images inside.
        found = config.get("image_processor", config) if isinstance(config, dict) else None
        if isinstance(found, dict):
            return found
        raise ProcessorError(f"{name} is no JSON object")
    raise ProcessorError(f"it has neither {PREPROCESSOR} nor {PROCESSOR}")


def _recipe(kind: str, config: Mapping[str, Any]) -> ImageRecipe:
    pads = bool(config.get("do_pad", False))
    if pads and kind != "Llava":
        raise ValueError("do_pad: true")
    crop = config.get("crop_size") if config.get("do_center_crop", False) else None
    normal = config.get("do_normalize", True)
    return ImageRecipe(
        resize=_resize(kind, config) if config.get("do_resize", True) else None,
        pad_square=pads,
        crop=None if crop is None else _edges(crop),
        resample=int(config.get("resample", BICUBIC)),
        scale=float(config.get("rescale_factor", 1 / 255)) if config.get("do_rescale", True) else 1,
        mean=tuple(map(float, config["image_mean"])) if normal else (0.0,) * 3,
        std=tuple(map(float, config["image_std"])) if normal else (1.0,) * 3,
    )


def _resize(kind: str, config: Mapping[str, Any]) -> Exact | ShortEdge | Smart:
    size = config["size"]
    if kind == "Qwen2VL":
        # Files before transformers 4.49 have the two limits beside `size`, which they overrule.
        return Smart(
            int(config["patch_size"]) * int(config["merge_size"]),
            int(config.get("min_pixels", size.get("shortest_edge", size.get("min_pixels")))),
            int(config.get("max_pixels", size.get("longest_edge", size.get("max_pixels")))),
        )
    if isinstance(size, int):
        return ShortEdge(size)
    if set(size) == {"shortest_edge"}:
        return ShortEdge(int(size["shortest_edge"]))
    if set(size) == {"height", "width"}:
        return Exact(int(size["height"]), int(size["width"]))
    raise ValueError(f"size: {json.dumps(size)}")


def _edges(size: Any) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (int(size["height"]), int(size["width"]))
