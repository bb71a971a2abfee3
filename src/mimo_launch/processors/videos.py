"""The settings of the video processor in a Hugging Face folder.

Decides: what they mean as a `VideoRecipe`, and which video processors are supported.
Relies on: processor_config.json, video_preprocessor_config.json or preprocessor_config.json, as
transformers 4 and 5 write them, with the defaults of its classes in 5.23.
Leaves: the choice and size of frames to `frame_rules` and `single_frames`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from mimo_launch.processors.files import (
    PREPROCESSOR,
    PROCESSOR,
    VIDEO_PREPROCESSOR,
    ProcessorError,
    files_of,
    processor_class,
)
from mimo_launch.processors.frame_rules import (
    FrameSampling,
    FrameSize,
    SecondSampling,
)
from mimo_launch.processors.images import BICUBIC, BILINEAR, HALF, LANCZOS, pixels_of
from mimo_launch.processors.single_frames import (
    RULES,
)
from mimo_launch.processors.video_recipe import (
    FPS,
    MAX_FRAMES,
    MIN_FRAMES,
    Sampling,
    VideoRecipe,
)
from mimo_launch.spec.spec import Videos

_CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
_CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
_BOTH: dict[str, Any] = {
    "merge_size": 2, "temporal_patch_size": 2, "min_frames": MIN_FRAMES, "max_frames": MAX_FRAMES,
}  # fmt: skip
# Settings that a processor of all media imposes on its video processor, by its class.
_ASKED: dict[str, dict[str, Any]] = {
    "Qwen2_5Omni": {
        "size": {"shortest_edge": 128 * 28**2, "longest_edge": 768 * 28**2},
        "min_pixels": None, "max_pixels": None,
    },
}  # fmt: skip
# The defaults of transformers, by the name of the video processor without `VideoProcessor`.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "Qwen2VL": _BOTH | {
        "size": {"shortest_edge": 128 * 28**2, "longest_edge": 768 * 28**2}, "patch_size": 14,
        "image_mean": _CLIP_MEAN, "image_std": _CLIP_STD, "max_video_tokens": 128_000,
    },
    "Qwen3VL": _BOTH | {
        "size": {"shortest_edge": 128 * 32**2, "longest_edge": 768 * 32**2}, "patch_size": 16,
        "image_mean": HALF, "image_std": HALF, "max_video_tokens": 768,
        "do_sample_frames": True, "fps": FPS,
    },
    "Glm4v": _BOTH | {
        "size": {"shortest_edge": 112**2, "longest_edge": 28**2 * 2 * 30000}, "patch_size": 14,
        "image_mean": _CLIP_MEAN, "image_std": _CLIP_STD, "do_sample_frames": True, "fps": FPS,
        "max_duration": 300,
    },
    "LlavaOnevision": {
        "size": {"height": 384, "width": 384}, "image_mean": _CLIP_MEAN, "image_std": _CLIP_STD,
    },
    "InternVL": {
        "size": {"height": 384, "width": 384}, "image_mean": _CLIP_MEAN, "image_std": _CLIP_STD,
        "initial_shift": True,
    },
    "SmolVLM": {
        "max_image_size": {"longest_edge": 364}, "image_mean": HALF, "image_std": HALF,
        "resample": LANCZOS,
    },
}  # fmt: skip


def read_video_recipe(folder: Path, videos: Videos) -> VideoRecipe:
    """Return the recipe that a Hugging Face folder holds. Raises: ProcessorError."""
    config = _read(folder)
    name = str(
        config.get("video_processor_type")
        or str(config.get("image_processor_type", "")).replace("ImageProcessor", "VideoProcessor")
    )
    kind = name.removesuffix("Fast").removesuffix("VideoProcessor")
    if kind not in _DEFAULTS:
        known = ", ".join(f"{each}VideoProcessor" for each in _DEFAULTS)
        raise ProcessorError(f"its video processor is {name or 'not named'}; supported are {known}")
    try:
        config = config | _ASKED.get(processor_class(folder), {})
        config = _DEFAULTS[kind] | {key: each for key, each in config.items() if each is not None}
        return _recipe(kind, config, videos)
    except (TypeError, ValueError, KeyError, ZeroDivisionError) as error:
        raise ProcessorError(f"a setting of its {name} is not supported: {error}") from error


def _recipe(kind: str, config: Mapping[str, Any], videos: Videos) -> VideoRecipe:
    if (rules := RULES.get(kind)) is not None:
        return VideoRecipe(*rules(config), videos, **_pixels(config))
    over_time, by_second = kind in ("Qwen3VL", "Glm4v"), kind == "Glm4v"
    group, side, merged = (
        _positive(config, key) for key in ("temporal_patch_size", "patch_size", "merge_size")
    )
    least, most = (
        _limit(config, *names, is_older=not over_time)
        for names in (("shortest_edge", "min_pixels"), ("longest_edge", "max_pixels"))
    )
    number, fps = config.get("num_frames"), config.get("fps")
    sampling: Sampling | None = None
    if config.get("do_sample_frames", False) and by_second:
        longest = _positive(config, "max_duration", float)
        sampling = SecondSampling(_positive(config, "fps", float), longest)
    elif config.get("do_sample_frames", False):
        sampling = FrameSampling(
            fps=None if fps is None else _positive(config, "fps", float),
            number=None if number is None else int(number),
            least=int(config["min_frames"]),
            most=int(config["max_frames"]),
            group=group,
            to_ends=over_time,
        )
    is_capped = config.get("cap_pixels_per_frame", False) and not by_second
    cap = int(config["max_video_tokens"]) if is_capped else None
    size = FrameSize(side * merged, least, most, group, over_time=over_time, cap=cap)
    return VideoRecipe(sampling, size, videos, **_pixels(config))


def _pixels(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings for the pixels of frames. Raises: ValueError."""
    if not config.get("do_resize", True):
        raise ValueError("do_resize: false")
    if config.get("do_center_crop", False):
        raise ValueError("do_center_crop: true")
    resample = int(config.get("resample", BICUBIC))
    if resample not in (BILINEAR, BICUBIC, LANCZOS):
        raise ValueError(f"resample: {resample}")
    return pixels_of(config)


N = TypeVar("N", int, float)


def _positive(config: Mapping[str, Any], key: str, kind: type[N] = int) -> N:
    """Return a number above 0. Raises: ValueError."""
    if (found := kind(config[key])) <= 0:
        raise ValueError(f"{key}: {config[key]}")
    return found


def _limit(config: Mapping[str, Any], name: str, older: str, *, is_older: bool) -> int:
    """Return a limit for pixels. Raises: ValueError."""
    size = config["size"]
    found = size.get(name, size.get(older) if is_older else None)
    if is_older:
        # Older files have the two limits beside `size`; they take precedence.
        found = config.get(older, found)
    if found is None:
        raise ValueError(f"size without {name}")
    return int(found)


def _read(folder: Path) -> dict[str, Any]:
    """Return the settings of the video processor in a folder. Raises: ProcessorError."""
    for name, whole in files_of(folder, (PROCESSOR, VIDEO_PREPROCESSOR, PREPROCESSOR)):
        config = whole
        if name == PROCESSOR:
            # A processor of several modalities contains the video processor; older ones do not.
            config = whole.get("video_processor") if isinstance(whole, dict) else None
            if config is None:
                continue
        if isinstance(config, dict):
            return config
        raise ProcessorError(f"{name} is not a JSON object")
    raise ProcessorError(f"it has neither {PROCESSOR}, {VIDEO_PREPROCESSOR} nor {PREPROCESSOR}")
