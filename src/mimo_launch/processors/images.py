"""The steps from an image to the input of an encoder, as in a Hugging Face folder.

Decides: the steps, and which image processors are supported.
Relies on: preprocessor_config.json, or processor_config.json, as transformers 4 and 5 write them,
with the defaults of its classes.
Leaves: images without a folder to `recipes`, sizes to `resize_rules`, pixels to `decode_media`,
which carries out a recipe.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, Literal

from mimo_launch.diag.frozen import frozen
from mimo_launch.processors.canvas_rules import canvas_of
from mimo_launch.processors.covering_rules import covering_of
from mimo_launch.processors.cut_rules import Cut, best_grid, enlarged_of, grids_of, nearest_of
from mimo_launch.processors.files import (
    PREPROCESSOR,
    PROCESSOR,
    ProcessorError,
    UnknownProcessor,
    processor_class,
    settings_of,
)
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
    limit,
)
from mimo_launch.processors.slice_rules import sliced_of
from mimo_launch.spec.files import read_json

LANCZOS, BILINEAR, BICUBIC = 1, 2, 3
HALF = (0.5, 0.5, 0.5)
CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
Config = Mapping[str, Any]
# The key that we add to the settings of a file: the folder that it is in.
_FOLDER = "_folder"


@frozen
class ImageRecipe:
    """Steps from a decoded image to the array of an encoder, in this order.

    `resample` is the number of a Pillow filter; pixels are resized `as_floats`, or in 8 bits. If
    there are `grids`, given by height and width in pixels, the only image of a sample, or each, is
    cut into tiles on one of them. With `cut`, each image becomes several, and the other steps apply
    to each; if it is `tiled` by a cut, these are tiles of one image. With a `canvas`, a resized
    image is centred on that height and width.
    What is around an image in a square or on a canvas has the colour `fill`.
    If it is `made_by` the class of the processor in a folder, `resize` is the size that it makes.
    """

    resize: Resize | None
    pad_square: bool = False
    canvas: tuple[int, int] | None = None
    crop: tuple[int, int] | None = None
    resample: int = BICUBIC
    scale: float = 1 / 255
    mean: tuple[float, ...] = HALF
    std: tuple[float, ...] = HALF
    fill: tuple[int, ...] = (127, 127, 127)
    grids: tuple[tuple[int, int], ...] = ()
    cut: Cut | None = None
    tiled: Cut | None = None
    as_floats: bool = False
    made_by: Path | None = None

    def resized(self, height: int, width: int) -> tuple[int, int]:
        """Return height and width after resizing. Raises: ImageTooThin."""
        return (height, width) if self.resize is None else self.resize.size(height, width)

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Return height and width of an image after all steps. Raises: ImageTooThin."""
        if self.pad_square:
            limit(height, width, made=max(height, width) ** 2)
            height = width = max(height, width)
        resized = self.resized(height, width)
        return self.crop or self.canvas or resized

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Return the grid on which an image is cut into tiles. Raises: ImageTooThin."""
        return best_grid(height, width, self.grids)

    @property
    def factor(self) -> int | None:
        """A number of pixels that divides the sides of every image, if there is one."""
        return None if self.resize is None else self.resize.divisor

    @property
    def most_pixels(self) -> int | None:
        """The most pixels of an image, if there is a limit."""
        return None if self.resize is None else self.resize.most_pixels

    @property
    def only_size(self) -> tuple[int, int] | None:
        """Height and width of every image, if all are equal."""
        fixed = self.crop or self.canvas
        return fixed or (None if self.resize is None else self.resize.only_size)


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
    whole = (
        read_json(config[_FOLDER] / PROCESSOR) if (config[_FOLDER] / PROCESSOR).is_file() else {}
    )
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
    name = processor_class(config[_FOLDER])
    if name == "AyaVision":
        raise ValueError(
            "an Aya Vision cuts every image into tiles behind `TILE_1`, `TILE_2`, ..., which are "
            "not written here; to show whole images, name a folder with another image processor, "
            "such as SiglipImageProcessor, in `data.processors`"
        )
    asks = name in ("InternVL", "QianfanOCR")
    return nearest_of({**config, "crop_to_patches": True} if asks else config)


@frozen
class _ImageProcessor:
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
_CLIP_NORM = {"image_mean": CLIP_MEAN, "image_std": CLIP_STD}
_HALF_NORM = {"image_mean": HALF, "image_std": HALF}
_CLIP = {
    "size": {"shortest_edge": 224}, "do_center_crop": True,
    "crop_size": {"height": 224, "width": 224}, **_CLIP_NORM,
}  # fmt: skip
_PLAIN: dict[str, Any] = {"crops": True, "is_short_edge": True}
_SIGLIP = {"size": {"height": 224, "width": 224}, **_HALF_NORM}
_OF_384 = {"size": {"height": 384, "width": 384}, **_CLIP_NORM}
# Both pad the images of a batch, but the model ignores the padding, and tiles are alike.
_UNPADDED = {"do_pad": False}
_IDEFICS = _ImageProcessor(
    {
        "size": {"longest_edge": 4 * 364}, "max_image_size": {"longest_edge": 364},
        "resample": LANCZOS, **_HALF_NORM,
    },
    cut=enlarged_of,
    fixed=_UNPADDED,
)  # fmt: skip
_GLM = _ImageProcessor(
    {
        "size": {"shortest_edge": 112 * 112, "longest_edge": 28 * 28 * 15000}, "patch_size": 14,
        "merge_size": 2, "temporal_patch_size": 2, **_CLIP_NORM,
    },
    resize=_over_time,
)  # fmt: skip
_MINICPM = {
    "max_slice_nums": 9, "scale_resolution": 448, "patch_size": 14, "slice_mode": True,
    "downsample_mode": "4x", "small_image_upsize": "always", **_HALF_NORM,
}  # fmt: skip
# By name, without `ImageProcessor`.
_PROCESSORS: dict[str, _ImageProcessor] = {
    "CLIP": _ImageProcessor(_CLIP, **_PLAIN),
    "DINOv3ViT": _ImageProcessor(
        {"size": {"height": 224, "width": 224}, "resample": BILINEAR, **_IMAGENET},
        as_floats=True,
        crops=True,
    ),
    "Cosmos3Edge": _ImageProcessor(
        {
            "size": {"shortest_edge": 256 * 256, "longest_edge": 4096 * 4096}, "patch_size": 16,
            "merge_size": 2, "temporal_patch_size": 1, **_HALF_NORM,
        },
        resize=_over_time,
    ),
    "Janus": _ImageProcessor(
        {
            "size": {"height": 384, "width": 384}, "min_size": 14, "do_pad": True, **_CLIP_NORM,
        },
        resize=_long_edge,
        pads="after",
    ),
    "Llava": _ImageProcessor(_CLIP, pads="before", **_PLAIN),
    "Siglip": _ImageProcessor(_SIGLIP, **_PLAIN),
    "Gemma3": _ImageProcessor({**_SIGLIP, "resample": BILINEAR}),
    "Gemma4": _ImageProcessor(
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
    "GotOcr2": _ImageProcessor(_OF_384, cut=_nearest),
    "Idefics3": _IDEFICS,
    "Llama4": _ImageProcessor(
        {
            "size": {"height": 336, "width": 336}, "resample": BILINEAR, "max_patches": 16,
            "resize_to_max_canvas": False, **_HALF_NORM,
        },
        cut=canvas_of,
    ),
    "LlavaNext": _ImageProcessor(
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
    "LlavaOnevision": _ImageProcessor(
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
    "MiniCPMOcr": _ImageProcessor(_MINICPM, cut=sliced_of),
    "MiniCPMV4_6": _ImageProcessor({**_MINICPM, "downsample_mode": "16x"}, cut=sliced_of),
    "NemotronH_Omni_Reasoning_V3": _ImageProcessor(
        {
            "size": {}, "patch_size": 16, "downsample_ratio": 0.5, "min_num_patches": 1024,
            "max_num_patches": 13312, "max_model_len": 16384, **_CLIP_NORM,
        },
        resize=_patch_count,
        as_floats=True,
    ),
    "Ovis2": _ImageProcessor(_OF_384, tiled=covering_of, crops=True),
    "PaddleOCRVL": _ImageProcessor(
        {
            "size": {"shortest_edge": 384 * 384, "longest_edge": 1536 * 1536}, "patch_size": 14,
            "merge_size": 2, **_CLIP_NORM,
        },
        resize=_large,
    ),
    "Pixtral": _ImageProcessor(
        {
            "size": {"longest_edge": 1024}, "patch_size": {"height": 16, "width": 16}, **_CLIP_NORM,
        },
        resize=_within,
        fixed=_UNPADDED,
        crops=True,
    ),
    "Qwen2VL": _ImageProcessor(
        {
            "size": {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280}, "patch_size": 14,
            "merge_size": 2, **_CLIP_NORM,
        },
        resize=_smart,
    ),
    "SmolVLM": _IDEFICS,
    "VideoLlama3": _ImageProcessor(
        {
            "size": {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280}, "patch_size": 14,
            "merge_size": 1, **_HALF_NORM,
        },
        resize=_smart,
    ),
    "VideoLlava": _ImageProcessor(_CLIP, **_PLAIN),
}  # fmt: skip


def read_recipe(folder: Path) -> ImageRecipe:
    """Return the recipe that a Hugging Face folder holds. Raises: ProcessorError."""
    config = read_processor(folder)
    name = str(config.get("image_processor_type", config.get("feature_extractor_type")))
    kind = name.removesuffix("Fast").removesuffix("Pil")
    kind = kind.removesuffix("ImageProcessor").removesuffix("FeatureExtractor")
    if kind not in _PROCESSORS:
        known = ", ".join(f"{each}ImageProcessor" for each in _PROCESSORS)
        raise UnknownProcessor(f"its image processor is {name}; supported are {known}")
    # Old names.
    old = {f"image_{x}": config[f"norm_{x}"] for x in ("mean", "std") if f"norm_{x}" in config}
    said = {key: each for key, each in (old | config).items() if each is not None}
    processor = _PROCESSORS[kind]
    try:
        config = {**processor.defaults, **said, **processor.fixed, _FOLDER: folder}
        return _recipe(processor, {**config, **_sizes(processor, config)})
    except (TypeError, ValueError, KeyError) as error:
        raise ProcessorError(f"a setting of its {name} is not supported: {error}") from error


def _sizes(processor: _ImageProcessor, config: Config) -> Config:
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


def _recipe(processor: _ImageProcessor, config: Config) -> ImageRecipe:
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
