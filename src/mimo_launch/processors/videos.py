"""The settings of the video processor in a Hugging Face folder.

Decides: what they mean as a `VideoRecipe`, and which video processors are supported.
Relies on: processor_config.json, video_preprocessor_config.json or preprocessor_config.json, as
transformers 4 and 5 write them, with the defaults of its classes in 5.23.
Leaves: the choice of frames to `frame_sampling`, their size to `frame_sizes`.
"""

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from mimo_launch.diag.frozen import frozen
from mimo_launch.processors.files import (
    PREPROCESSOR,
    PROCESSOR,
    VIDEO_PREPROCESSOR,
    ProcessorError,
    processor_class,
    settings_of,
)
from mimo_launch.processors.frame_sampling import (
    FPS,
    MAX_FRAMES,
    MIN_FRAMES,
    EndlessSampling,
    EvenSampling,
    FrameSampling,
    Sampling,
    SecondSampling,
    ShiftedSampling,
)
from mimo_launch.processors.frame_sizes import ExactFrames, FrameSize, SquareFrames
from mimo_launch.processors.image_classes import CLIP_NORM
from mimo_launch.processors.image_recipe import BICUBIC, BILINEAR, HALF, LANCZOS
from mimo_launch.processors.images import pixels_of
from mimo_launch.processors.video_recipe import VideoRecipe
from mimo_launch.spec.spec import Videos

_Rules = tuple[Sampling | None, FrameSize | ExactFrames]
N = TypeVar("N", int, float)


def _one_size(config: Mapping[str, Any]) -> ExactFrames:
    size = config["size"]
    if set(size) != {"height", "width"} or min(map(int, size.values())) < 1:
        raise ValueError(f"size: {json.dumps(size)}")
    return ExactFrames(int(size["height"]), int(size["width"]))


def _said(config: Mapping[str, Any]) -> tuple[float | None, int | None]:
    """Return a processor's frames per second and number of frames. Raises: ValueError."""
    fps, number = config.get("fps"), config.get("num_frames")
    for key, each in (("fps", fps), ("num_frames", number)):
        if each is not None and not float(each) > 0:
            raise ValueError(f"{key}: {each}")
    return None if fps is None else float(fps), None if number is None else int(number)


def _even(config: Mapping[str, Any]) -> _Rules:
    fps, number = _said(config) if config.get("do_sample_frames", False) else (None, None)
    return EvenSampling(fps, number, None), _one_size(config)


def _shifted(config: Mapping[str, Any]) -> _Rules:
    shift, sampled = config["initial_shift"], config.get("do_sample_frames", False)
    fps, number = _said(config) if sampled else (None, None)
    if sampled and fps is None and number is None:
        raise ValueError("do_sample_frames: true without num_frames or fps")
    if shift is not True and not float(shift) >= 0:
        raise ValueError(f"initial_shift: {shift}")
    middle = None if shift is True else float(shift)
    return ShiftedSampling(None if number else fps, number, None, middle), _one_size(config)


def _endless(config: Mapping[str, Any]) -> _Rules:
    """Return the rules of SmolVLM, which samples frames only if the settings say how.

    Older files have the settings of sampling in a separate section.
    """
    own = config.get("video_sampling") or {}
    size = config.get("size") or own.get("video_size") or {"longest_edge": 4 * 364}
    renamed = {"fps": own.get("fps"), "num_frames": own.get("max_frames")}
    fps, most = _said({**config, **{k: each for k, each in renamed.items() if each is not None}})
    if (fps is None) != (most is None):
        raise ValueError("fps and num_frames are needed, or neither")
    side, longest = int(config["max_image_size"]["longest_edge"]), size.get("longest_edge", 0)
    if side < 1 or set(size) != {"longest_edge"} or int(longest) < 1:
        raise ValueError(f"size: {json.dumps(size)}, max_image_size: {side}")
    sampling = None if fps is None or most is None else EndlessSampling(fps, most)
    return sampling, SquareFrames(side, side, longest=int(longest))


def _grouped(
    config: Mapping[str, Any], *, over_time: bool = False, by_second: bool = False
) -> _Rules:
    """Return the rules of Qwen-VL and GLM, of which several frames make a temporal patch."""
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
    return sampling, FrameSize(side * merged, least, most, group, over_time=over_time, cap=cap)


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


@frozen
class _VideoProcessor:
    """A video processor of transformers: its defaults, and what its settings mean.

    `rules` raises KeyError, TypeError or ValueError for settings that are not supported.
    """

    defaults: Mapping[str, Any]
    rules: Callable[[Mapping[str, Any]], _Rules]


_HALF_NORM = {"image_mean": HALF, "image_std": HALF}
_OF_384 = {"size": {"height": 384, "width": 384}, **CLIP_NORM}
_GROUPS = {
    "merge_size": 2, "temporal_patch_size": 2, "min_frames": MIN_FRAMES, "max_frames": MAX_FRAMES,
}  # fmt: skip
_SAMPLED = {"do_sample_frames": True, "fps": FPS}
_OF_QWEN2 = {"shortest_edge": 128 * 28**2, "longest_edge": 768 * 28**2}
_OF_QWEN3 = {"shortest_edge": 128 * 32**2, "longest_edge": 768 * 32**2}
# By name, without `VideoProcessor`.
_PROCESSORS = {
    "Qwen2VL": _VideoProcessor(
        {
            **_GROUPS, "size": _OF_QWEN2, "patch_size": 14, "max_video_tokens": 128_000,
            **CLIP_NORM,
        },
        _grouped,
    ),
    "Qwen3VL": _VideoProcessor(
        {
            **_GROUPS, "size": _OF_QWEN3, "patch_size": 16, "max_video_tokens": 768,
            **_SAMPLED, **_HALF_NORM,
        },
        partial(_grouped, over_time=True),
    ),
    "Glm4v": _VideoProcessor(
        {
            **_GROUPS, "size": {"shortest_edge": 112**2, "longest_edge": 28**2 * 2 * 30000},
            "patch_size": 14, "max_duration": 300, **_SAMPLED, **CLIP_NORM,
        },
        partial(_grouped, over_time=True, by_second=True),
    ),
    "LlavaOnevision": _VideoProcessor(_OF_384, _even),
    "InternVL": _VideoProcessor({**_OF_384, "initial_shift": True}, _shifted),
    "SmolVLM": _VideoProcessor(
        {"max_image_size": {"longest_edge": 364}, "resample": LANCZOS, **_HALF_NORM}, _endless
    ),
}  # fmt: skip
# Settings that a processor of all media imposes on its video processor, by its class.
_IMPOSED: dict[str, dict[str, Any]] = {
    "Qwen2_5Omni": {"size": _OF_QWEN2, "min_pixels": None, "max_pixels": None},
    "Qwen3OmniMoe": {"size": _OF_QWEN3, "min_pixels": None, "max_pixels": None},
}


def read_video_recipe(folder: Path, videos: Videos) -> VideoRecipe:
    """Return the recipe that a Hugging Face folder holds. Raises: ProcessorError."""
    config = _read(folder)
    name = str(
        config.get("video_processor_type")
        or str(config.get("image_processor_type", "")).replace("ImageProcessor", "VideoProcessor")
    )
    kind = name.removesuffix("Fast").removesuffix("VideoProcessor")
    if kind not in _PROCESSORS:
        known = ", ".join(f"{each}VideoProcessor" for each in _PROCESSORS)
        raise ProcessorError(f"its video processor is {name or 'not named'}; supported are {known}")
    processor = _PROCESSORS[kind]
    try:
        said = config | _IMPOSED.get(processor_class(folder), {})
        said = {key: each for key, each in said.items() if each is not None}
        config = {**processor.defaults, **said}
        if not isinstance(size := config.get("size", {}), dict):
            raise TypeError(f"size: {json.dumps(size)}, without names")
        # Whatever it takes, the processor of Qwen3-Omni counts by this rate.
        nominal = 1.0 if videos.time == "exact_seconds" else FPS
        rest = {"nominal_fps": nominal, **_pixels(config)}
        return VideoRecipe(*processor.rules(config), videos, **rest)
    except (TypeError, ValueError, KeyError, ZeroDivisionError) as error:
        raise ProcessorError(f"a setting of its {name} is not supported: {error}") from error


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


def _read(folder: Path) -> dict[str, Any]:
    """Return the settings of the video processor in a folder. Raises: ProcessorError."""
    found = settings_of(folder, "video_processor", (VIDEO_PREPROCESSOR, PREPROCESSOR))
    if found is None:
        raise ProcessorError(f"it has neither {PROCESSOR}, {VIDEO_PREPROCESSOR} nor {PREPROCESSOR}")
    return found
