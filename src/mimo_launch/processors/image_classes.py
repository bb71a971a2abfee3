"""The image processors of transformers that are supported, and how their settings are read.

Decides: defaults, and the rules for sizes, tiles and cuts of each class.
Relies on: the defaults of its classes in transformers 5.
Leaves: files and the steps of a recipe to `images`.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, Literal

from mimo_launch.diag.frozen import frozen
from mimo_launch.processors.canvas_rules import canvas_of
from mimo_launch.processors.covering_rules import covering_of
from mimo_launch.processors.cut_rules import Cut, enlarged_of, nearest_of
from mimo_launch.processors.files import PROCESSOR, processor_class
from mimo_launch.processors.image_recipe import BILINEAR, HALF, LANCZOS
from mimo_launch.processors.resize_rules import (
    Exact,
    LongEdge,
    OverTime,
    PatchCount,
    Resize,
    ShortEdge,
    Smart,
    SmartAndLarge,
    SoftTokens,
    Within,
)
from mimo_launch.processors.slice_rules import sliced_of
from mimo_launch.spec.files import read_json

Config = Mapping[str, Any]
# The key that we add to the settings of a file: the folder that it is in.
FOLDER = "_folder"


def _by_size(config: Config) -> Resize:
    """Return the rule of `size` alone."""
    size = config["size"]
    if config.get("use_square_size", False):
        raise ValueError("use_square_size: true")
    if set(size) == {"shortest_edge"}:
        return ShortEdge(int(size["shortest_edge"]))
    if set(size) == {"height", "width"}:
        return Exact(int(size["height"]), int(size["width"]))
    raise ValueError(f"size: {json.dumps(size)}")


def _long_edge(config: Config) -> LongEdge:
    """Return the rule of Janus."""
    size, least = config["size"], int(config["min_size"])
    length = int(size["height"])
    if length != int(size["width"]) or not 1 <= least <= length:
        raise ValueError(f"size: {json.dumps(size)}, min_size: {least}")
    return LongEdge(length, least)


def _smart(config: Config) -> Smart:
    """Return the rule of Qwen2-VL.

    Files before transformers 4.49 have the two limits beside `size`; they take precedence.
    """
    size = config["size"]
    return Smart(
        int(config["patch_size"]) * int(config["merge_size"]),
        int(config.get("min_pixels", size.get("shortest_edge", size.get("min_pixels")))),
        int(config.get("max_pixels", size.get("longest_edge", size.get("max_pixels")))),
    )


def _large(config: Config) -> SmartAndLarge:
    smart = _smart(config)
    return SmartAndLarge(smart.factor, smart.min_pixels, smart.max_pixels)


def _over_time(config: Config) -> OverTime:
    return OverTime(
        int(config["patch_size"])
        * int(config["merge_size"])
        * int(config.get("patch_expand_factor", 1)),
        int(config["size"]["shortest_edge"]),
        int(config["size"]["longest_edge"]),
        int(config["temporal_patch_size"]),
    )


# Rows of an image that the processor of Gemma 4 allows at most.
_SOFT_TOKENS = (70, 140, 280, 560, 1120)


def _soft_tokens(config: Config) -> SoftTokens:
    """Return the rule of Gemma 4. Raises: ValueError."""
    side = int(config["patch_size"]) * int(config["pooling_kernel_size"])
    most = int(config["max_soft_tokens"])
    if most not in _SOFT_TOKENS:
        raise ValueError(f"`max_soft_tokens` is {most}, not one of {_SOFT_TOKENS}")
    return SoftTokens(side, most)


def _patch_count(config: Config) -> PatchCount:
    """Return the rule for one image; its rows and four more tokens fit into `max_model_len`."""
    merge, least = round(1 / float(config["downsample_ratio"])), int(config["min_num_patches"])
    budget = max((int(config["max_model_len"]) - 4) * merge**2, least)
    most = min(budget, int(config["max_num_patches"]) or budget)
    return PatchCount(int(config["patch_size"]), merge, least, max(most, least))


def _within(config: Config) -> Within:
    """Return the rule of Pixtral.

    The processor of the model, if there is one, overrides the patch of the image processor.
    """
    size, patch = config["size"], config["patch_size"]
    most = size.get("longest_edge")
    sides = (most, most) if most else (size["height"], size["width"])
    whole = read_json(config[FOLDER] / PROCESSOR) if (config[FOLDER] / PROCESSOR).is_file() else {}
    if isinstance(whole, dict) and whole.get("processor_class") == "PixtralProcessor":
        row = int(whole.get("patch_size", 16)) * int(whole.get("spatial_merge_size", 1))
    else:
        row, *others = set(patch.values()) if isinstance(patch, dict) else (int(patch),)
        if others:
            raise ValueError(f"patch_size: {json.dumps(patch)}")
    return Within(row, *map(int, sides))


def _nearest(config: Config) -> Cut | None:
    """Return the rule of InternVL; some processors request tiles, whatever the file says.

    Raises: KeyError, TypeError, ValueError.
    """
    name = processor_class(config[FOLDER])
    if name == "AyaVision":
        raise ValueError(
            "an Aya Vision cuts every image into tiles behind `TILE_1`, `TILE_2`, ..., which are "
            "not written here; to show whole images, name a folder with another image processor, "
            "such as SiglipImageProcessor, in `data.processors`"
        )
    asks = name in ("InternVL", "QianfanOCR")
    return nearest_of({**config, "crop_to_patches": True} if asks else config)


@frozen
class ImageProcessor:
    """An image processor of transformers: its defaults, and how its settings are read.

    `cut` returns the rule by which one image becomes several, if there is one, and `tiled` that by
    which it becomes tiles of one image. `fixed` are settings
    that hold whatever the file says. If it `pads`, an image becomes a square before or after it is
    resized; `as_floats` is as in `ImageRecipe`. The model itself `centres` pixels: it maps 0 .. 1
    to -1 .. 1. Only one that `crops` keeps the middle of an image if the file says so. A size
    without names `is_short_edge`, or it is that of a square.
    """

    defaults: Config
    resize: Callable[[Config], Resize] = _by_size
    cut: Callable[[Config], Cut | None] = lambda config: None
    tiled: Callable[[Config], Cut | None] = lambda config: None
    fixed: Config = field(default_factory=dict)
    pads: Literal["before", "after"] | None = None
    has_tiles: bool = False
    as_floats: bool = False
    centres: bool = False
    crops: bool = False
    is_short_edge: bool = False


_IMAGENET = {"image_mean": (0.485, 0.456, 0.406), "image_std": (0.229, 0.224, 0.225)}
CLIP_NORM = {
    "image_mean": (0.48145466, 0.4578275, 0.40821073),
    "image_std": (0.26862954, 0.26130258, 0.27577711),
}
_HALF_NORM = {"image_mean": HALF, "image_std": HALF}
_CLIP = {
    "size": {"shortest_edge": 224}, "do_center_crop": True,
    "crop_size": {"height": 224, "width": 224}, **CLIP_NORM,
}  # fmt: skip
_PLAIN: dict[str, Any] = {"crops": True, "is_short_edge": True}
_SIGLIP = {"size": {"height": 224, "width": 224}, **_HALF_NORM}
_OF_384 = {"size": {"height": 384, "width": 384}, **CLIP_NORM}
# Both pad the images of a batch, but the model ignores the padding, and tiles are alike.
_UNPADDED = {"do_pad": False}
_IDEFICS = ImageProcessor(
    {
        "size": {"longest_edge": 4 * 364}, "max_image_size": {"longest_edge": 364},
        "resample": LANCZOS, **_HALF_NORM,
    },
    cut=enlarged_of,
    fixed=_UNPADDED,
)  # fmt: skip
_GLM = ImageProcessor(
    {
        "size": {"shortest_edge": 112 * 112, "longest_edge": 28 * 28 * 15000}, "patch_size": 14,
        "merge_size": 2, "temporal_patch_size": 2, **CLIP_NORM,
    },
    resize=_over_time,
)  # fmt: skip
_MINICPM = {
    "max_slice_nums": 9, "scale_resolution": 448, "patch_size": 14, "slice_mode": True,
    "downsample_mode": "4x", "small_image_upsize": "always", **_HALF_NORM,
}  # fmt: skip
# By name, without `ImageProcessor`.
PROCESSORS: dict[str, ImageProcessor] = {
    "CLIP": ImageProcessor(_CLIP, **_PLAIN),
    "DINOv3ViT": ImageProcessor(
        {"size": {"height": 224, "width": 224}, "resample": BILINEAR, **_IMAGENET},
        as_floats=True,
        crops=True,
    ),
    "Cosmos3Edge": ImageProcessor(
        {
            "size": {"shortest_edge": 256 * 256, "longest_edge": 4096 * 4096}, "patch_size": 16,
            "merge_size": 2, "temporal_patch_size": 1, **_HALF_NORM,
        },
        resize=_over_time,
    ),
    "Janus": ImageProcessor(
        {
            "size": {"height": 384, "width": 384}, "min_size": 14, "do_pad": True, **CLIP_NORM,
        },
        resize=_long_edge,
        pads="after",
    ),
    "Llava": ImageProcessor(_CLIP, pads="before", **_PLAIN),
    "Siglip": ImageProcessor(_SIGLIP, **_PLAIN),
    "Gemma3": ImageProcessor({**_SIGLIP, "resample": BILINEAR}),
    "Gemma4": ImageProcessor(
        {
            "patch_size": 16, "pooling_kernel_size": 3, "max_soft_tokens": 280,
            "do_normalize": False, "image_mean": (0.0,) * 3, "image_std": (1.0,) * 3,
        },
        resize=_soft_tokens,
        centres=True,
    ),
    "Glm46V": _GLM,
    "Glm4v": _GLM,
    "Glmga": _GLM,
    "GotOcr2": ImageProcessor(_OF_384, cut=_nearest),
    "Idefics3": _IDEFICS,
    "Llama4": ImageProcessor(
        {
            "size": {"height": 336, "width": 336}, "resample": BILINEAR, "max_patches": 16,
            "resize_to_max_canvas": False, **_HALF_NORM,
        },
        cut=canvas_of,
    ),
    "LlavaNext": ImageProcessor(
        {
            **_CLIP,
            "image_grid_pinpoints": [
                [336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008],
            ],
        },
        fixed=_UNPADDED,
        has_tiles=True,
        **_PLAIN,
    ),
    "LlavaOnevision": ImageProcessor(
        {
            **_OF_384,
            "image_grid_pinpoints": [
                [384 * down, 384 * right] for down in range(1, 7) for right in range(1, 7)
            ],
        },
        fixed={"do_pad": True},
        pads="before",
        has_tiles=True,
        **_PLAIN,
    ),
    "MiniCPMOcr": ImageProcessor(_MINICPM, cut=sliced_of),
    "MiniCPMV4_6": ImageProcessor({**_MINICPM, "downsample_mode": "16x"}, cut=sliced_of),
    "NemotronH_Omni_Reasoning_V3": ImageProcessor(
        {
            "size": {}, "patch_size": 16, "downsample_ratio": 0.5, "min_num_patches": 1024,
            "max_num_patches": 13312, "max_model_len": 16384, **CLIP_NORM,
        },
        resize=_patch_count,
        as_floats=True,
    ),
    "Ovis2": ImageProcessor(_OF_384, tiled=covering_of, crops=True),
    "PaddleOCRVL": ImageProcessor(
        {
            "size": {"shortest_edge": 384 * 384, "longest_edge": 1536 * 1536}, "patch_size": 14,
            "merge_size": 2, **CLIP_NORM,
        },
        resize=_large,
    ),
    "Pixtral": ImageProcessor(
        {
            "size": {"longest_edge": 1024}, "patch_size": {"height": 16, "width": 16}, **CLIP_NORM,
        },
        resize=_within,
        fixed=_UNPADDED,
        crops=True,
    ),
    "Qwen2VL": ImageProcessor(
        {
            "size": {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280}, "patch_size": 14,
            "merge_size": 2, **CLIP_NORM,
        },
        resize=_smart,
    ),
    "SmolVLM": _IDEFICS,
    "VideoLlama3": ImageProcessor(
        {
            "size": {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280}, "patch_size": 14,
            "merge_size": 1, **_HALF_NORM,
        },
        resize=_smart,
    ),
    "VideoLlava": ImageProcessor(_CLIP, **_PLAIN),
}  # fmt: skip
