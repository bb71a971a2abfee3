"""The steps from an image to the input of an encoder, as in a Hugging Face folder.

Decides: the steps, and which image processors are supported.
Relies on: preprocessor_config.json, or processor_config.json, as transformers 4 and 5 write them,
with the defaults of its classes.
Leaves: images without a folder to `recipes`, sizes to `resize_rules`, pixels to `decode_media`,
which carries out a recipe.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mimo_launch.processors.cut_rules import Cut, best_grid, enlarged_of, grids_of, nearest_of
from mimo_launch.processors.files import (
    PREPROCESSOR,
    PROCESSOR,
    ProcessorError,
    files_of,
    processor_class,
)
from mimo_launch.processors.resize_rules import (
    Exact,
    OverTime,
    PatchCount,
    Resize,
    ShortEdge,
    Smart,
    Within,
    limit,
    over_time_size,
    patch_count_size,
    short_edge_size,
    smart_size,
    within_size,
)
from mimo_launch.spec.files import read_json

LANCZOS, BILINEAR, BICUBIC = 1, 2, 3
HALF = (0.5, 0.5, 0.5)


@dataclass(frozen=True, slots=True)
class ImageRecipe:
    """Steps from a decoded image to the array of an encoder, in this order.

    `resample` is the number of a Pillow filter. If there are `grids`, given by height and width in
    pixels, the only image of a sample is cut into tiles on one of them. With `cut`, each image
    becomes several, and the other steps apply to each.
    """

    resize: Resize | None
    pad_square: bool = False
    crop: tuple[int, int] | None = None
    resample: int = BICUBIC
    scale: float = 1 / 255
    mean: tuple[float, ...] = HALF
    std: tuple[float, ...] = HALF
    grids: tuple[tuple[int, int], ...] = ()
    cut: Cut | None = None

    def resized(self, height: int, width: int) -> tuple[int, int]:
        """Return height and width after resizing. Raises: ImageTooThin."""
        made = height, width
        match self.resize:
            case Exact(new_height, new_width):
                made = new_height, new_width
            case ShortEdge(short):
                made = short_edge_size(height, width, short)
            case Smart() as rule:
                made = smart_size(height, width, rule)
            case Within() as rule:
                made = within_size(height, width, rule)
            case OverTime() as rule:
                made = over_time_size(rule.group, height, width, rule)
            case PatchCount() as rule:
                made = patch_count_size(height, width, rule)
        return made

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Return height and width of an image after all steps. Raises: ImageTooThin."""
        if self.pad_square:
            limit(height, width, made=max(height, width) ** 2)
            height = width = max(height, width)
        resized = self.resized(height, width)
        return self.crop or resized

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Return the grid on which an image is cut into tiles. Raises: ImageTooThin."""
        return best_grid(height, width, self.grids)

    @property
    def factor(self) -> int | None:
        """A number of pixels that divides the sides of every image, if there is one."""
        if isinstance(self.resize, PatchCount):
            return self.resize.patch * self.resize.merge
        return self.resize.factor if isinstance(self.resize, Smart | Within | OverTime) else None

    @property
    def most_pixels(self) -> int | None:
        """The most pixels of an image, if there is a limit."""
        match self.resize:
            case Smart(_, _, most):
                return most
            case OverTime(_, _, most, group):
                return most // group
            case Within(factor, height, width):
                return -(-height // factor) * -(-width // factor) * factor**2
            case PatchCount(patch, _, least, most):
                # A thin image that grows to `least` patches may exceed them when rounded up.
                return max(most, 2 * least + 2) * patch**2
        return None

    @property
    def only_size(self) -> tuple[int, int] | None:
        """Height and width of every image, if all are equal."""
        if self.crop is None and isinstance(self.resize, Exact):
            return self.resize.height, self.resize.width
        return self.crop


_CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
_CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
_CLIP = {
    "size": {"shortest_edge": 224},
    "do_center_crop": True,
    "crop_size": {"height": 224, "width": 224},
    "image_mean": _CLIP_MEAN,
    "image_std": _CLIP_STD,
}
_IDEFICS = {
    "size": {"longest_edge": 4 * 364},
    "max_image_size": {"longest_edge": 364},
    "image_mean": HALF,
    "image_std": HALF,
    "resample": LANCZOS,
}
_GLM = {
    "size": {"shortest_edge": 112 * 112, "longest_edge": 28 * 28 * 15000},
    "patch_size": 14,
    "merge_size": 2,
    "temporal_patch_size": 2,
    "image_mean": _CLIP_MEAN,
    "image_std": _CLIP_STD,
}
# The defaults of transformers, by the name of the image processor without `ImageProcessor`.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "CLIP": _CLIP,
    "Llava": _CLIP,
    "Siglip": {"size": {"height": 224, "width": 224}, "image_mean": HALF, "image_std": HALF},
    "Gemma3": {
        "size": {"height": 224, "width": 224},
        "image_mean": HALF,
        "image_std": HALF,
        "resample": BILINEAR,
    },
    "Glm46V": _GLM,
    "Glm4v": _GLM,
    "GotOcr2": {
        "size": {"height": 384, "width": 384},
        "image_mean": _CLIP_MEAN,
        "image_std": _CLIP_STD,
    },
    "Idefics3": _IDEFICS,
    "LlavaOnevision": {
        "size": {"height": 384, "width": 384},
        "image_mean": _CLIP_MEAN,
        "image_std": _CLIP_STD,
        "image_grid_pinpoints": [
            [384 * down, 384 * right] for down in range(1, 7) for right in range(1, 7)
        ],
    },
    "NemotronH_Omni_Reasoning_V3": {
        "size": {},
        "patch_size": 16,
        "downsample_ratio": 0.5,
        "min_num_patches": 1024,
        "max_num_patches": 13312,
        "max_model_len": 16384,
        "image_mean": _CLIP_MEAN,
        "image_std": _CLIP_STD,
    },
    "Pixtral": {
        "size": {"longest_edge": 1024},
        "patch_size": {"height": 16, "width": 16},
        "image_mean": _CLIP_MEAN,
        "image_std": _CLIP_STD,
    },
    "Qwen2VL": {
        "size": {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280},
        "patch_size": 14,
        "merge_size": 2,
        "image_mean": _CLIP_MEAN,
        "image_std": _CLIP_STD,
    },
    "SmolVLM": _IDEFICS,
}


def read_recipe(folder: Path) -> ImageRecipe:
    """Return the recipe that a Hugging Face folder holds. Raises: ProcessorError."""
    config = read_processor(folder)
    name = str(config.get("image_processor_type", config.get("feature_extractor_type")))
    kind = name.removesuffix("Fast").removesuffix("Pil")
    kind = kind.removesuffix("ImageProcessor").removesuffix("FeatureExtractor")
    if kind not in _DEFAULTS:
        known = ", ".join(f"{each}ImageProcessor" for each in _DEFAULTS)
        raise ProcessorError(f"its image processor is {name}; supported are {known}")
    # Old names.
    old = {f"image_{x}": config[f"norm_{x}"] for x in ("mean", "std") if f"norm_{x}" in config}
    config = old | config
    config = _DEFAULTS[kind] | {key: each for key, each in config.items() if each is not None}
    try:
        if config.get("do_pan_and_scan", False):
            raise ValueError("do_pan_and_scan: true, which adds crops of large images")
        cut = _cut(folder, kind, config)
        # Pixtral pads the images of a batch, but the model ignores the padding; tiles are alike.
        tiles = kind == "LlavaOnevision"
        pads_none = kind == "Pixtral" or kind in _ENLARGE
        pads = tiles or (not pads_none and bool(config.get("do_pad", False)))
        if pads and kind not in ("Llava", "LlavaOnevision"):
            raise ValueError("do_pad: true")
        crop = config.get("crop_size") if config.get("do_center_crop", False) else None
        if isinstance(crop, int):
            crop = {"height": crop, "width": crop}
        resize: Resize | None = None if cut is None else Exact(*cut.tile)
        if cut is None and config.get("do_resize", True):
            resize = _resize(folder, kind, config)
        return ImageRecipe(
            resize=resize,
            pad_square=pads,
            crop=None if crop is None else (int(crop["height"]), int(crop["width"])),
            **pixels_of(config),
            grids=grids_of(config) if tiles else (),
            cut=cut,
        )
    except (TypeError, ValueError, KeyError) as error:
        raise ProcessorError(f"a setting of its {name} is not supported: {error}") from error


def pixels_of(config: Mapping[str, Any]) -> dict[str, Any]:
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


# Processors that enlarge images and cut them.
_ENLARGE = ("Idefics3", "SmolVLM")


def _cut(folder: Path, kind: str, config: Mapping[str, Any]) -> Cut | None:
    """Return the rule by which one image becomes several, if there is one."""
    if kind in _ENLARGE:
        return enlarged_of(config)
    if kind != "GotOcr2":
        return None
    # The processor of an InternVL requests tiles, whatever the file says.
    asks = processor_class(folder) == "InternVL"
    return nearest_of({**config, "crop_to_patches": True} if asks else config)


def read_processor(folder: Path) -> dict[str, Any]:
    """Return the settings of the image processor in a folder. Raises: ProcessorError."""
    for name, config in files_of(folder, (PREPROCESSOR, PROCESSOR)):
        # A processor of several modalities contains the image processor.
        found = config.get("image_processor", config) if isinstance(config, dict) else None
        if isinstance(found, dict):
            return found
        raise ProcessorError(f"{name} is not a JSON object")
    raise ProcessorError(f"it has neither {PREPROCESSOR} nor {PROCESSOR}")


def _resize(folder: Path, kind: str, config: Mapping[str, Any]) -> Resize:
    size = config["size"]
    if kind == "Pixtral":
        most = size.get("longest_edge")
        sides = (most, most) if most else (size["height"], size["width"])
        return Within(_side_of_rows(folder, config["patch_size"]), *map(int, sides))
    if kind in _RULES:
        return _RULES[kind](config)
    if isinstance(size, int):
        return ShortEdge(size)
    if set(size) == {"shortest_edge"}:
        return ShortEdge(int(size["shortest_edge"]))
    if set(size) == {"height", "width"}:
        return Exact(int(size["height"]), int(size["width"]))
    raise ValueError(f"size: {json.dumps(size)}")


def _smart(config: Mapping[str, Any]) -> Smart:
    """Return the rule of Qwen2-VL.

    Files before transformers 4.49 have the two limits beside `size`; they take precedence.
    """
    size = config["size"]
    return Smart(
        int(config["patch_size"]) * int(config["merge_size"]),
        int(config.get("min_pixels", size.get("shortest_edge", size.get("min_pixels")))),
        int(config.get("max_pixels", size.get("longest_edge", size.get("max_pixels")))),
    )


def _over_time(config: Mapping[str, Any]) -> OverTime:
    return OverTime(
        int(config["patch_size"]) * int(config["merge_size"]),
        int(config["size"]["shortest_edge"]),
        int(config["size"]["longest_edge"]),
        int(config["temporal_patch_size"]),
    )


def _patch_count(config: Mapping[str, Any]) -> PatchCount:
    """Return the rule for one image; its rows and four more tokens fit into `max_model_len`."""
    merge, least = round(1 / float(config["downsample_ratio"])), int(config["min_num_patches"])
    budget = max((int(config["max_model_len"]) - 4) * merge**2, least)
    most = min(budget, int(config["max_num_patches"]) or budget)
    return PatchCount(int(config["patch_size"]), merge, least, max(most, least))


_RULES: dict[str, Callable[[Mapping[str, Any]], Resize]] = {
    "Qwen2VL": _smart,
    "Glm46V": _over_time,
    "Glm4v": _over_time,
    "NemotronH_Omni_Reasoning_V3": _patch_count,
}


def _side_of_rows(folder: Path, patch: Any) -> int:
    """Return the side, in pixels, of the square that becomes a row.

    The processor of the model, if there is one, overrides the image processor.
    """
    whole = read_json(folder / PROCESSOR) if (folder / PROCESSOR).is_file() else {}
    if isinstance(whole, dict) and whole.get("processor_class") == "PixtralProcessor":
        return int(whole.get("patch_size", 16)) * int(whole.get("spatial_merge_size", 1))
    return int(patch["height"] if isinstance(patch, dict) else patch)
