"""The rules of video processors that treat frames as separate images, one temporal patch each.

Decides: which frames are taken from a video, and their height and width, with the numbers of the
video processors of LLaVA-OneVision, InternVL and SmolVLM; what their settings mean.
Relies on: `frame_rules` for videos, `resize_rules` for limits on size.
Leaves: pixels to `video_processor`.

Source: `transformers` 5.24, video_utils.py, models/internvl and models/smolvlm.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from mimo_launch.processors.frame_rules import VideoSize, VideoTooShort
from mimo_launch.processors.resize_rules import limit

Size = tuple[int, int]
_MOST_SIDE = 4096
# Seconds that SmolVLM skips at the beginning and at the end of a long video.
_SKIPPED = 1


@dataclass(frozen=True, slots=True)
class EvenSampling:
    """Which frames are taken: `number`, `fps` per second, or all; at most `most`, evenly.

    The rule of processors without a special one, such as LLaVA-OneVision's.
    """

    fps: float | None
    number: int | None
    most: int | None

    @property
    def most_taken(self) -> int | None:
        """The most frames that are taken from any video."""
        return self.number or self.most

    def asked(self, fps: float | None, most: int | None) -> "EvenSampling":
        """Return the rule with the frames that a spec asks for."""
        found = self if most is None else replace(self, most=most)
        return found if fps is None else replace(found, fps=fps, number=None)

    def indices(self, size: VideoSize) -> tuple[int, ...]:
        """Return the frames to take. Raises: VideoTooShort."""
        number = self._number(size, least=1)
        return tuple(each * size.frames // number for each in range(number))

    def _number(self, size: VideoSize, *, least: int) -> int:
        if (number := self.number) is None:
            number = size.frames
            if self.fps is not None:
                number = min(number, max(least, int(size.frames / size.rate * self.fps)))
        number = number if self.most is None else min(number, self.most)
        if not 0 < number <= size.frames:
            raise VideoTooShort(f"{number} frames are to be taken of {size.frames}")
        return number


@dataclass(frozen=True, slots=True)
class ShiftedSampling(EvenSampling):
    """Even sampling that starts at frame `shift` or mid-step. The rule of InternVL."""

    shift: float | None = None

    def indices(self, size: VideoSize) -> tuple[int, ...]:
        """Return the frames to take. Raises: VideoTooShort."""
        if self.number is None and self.fps is None and self.most is None:
            return tuple(range(size.frames))
        import numpy as np  # `validate` works without it.

        # `super()` without arguments fails in a dataclass with slots.
        step = size.frames / EvenSampling._number(self, size, least=0)
        shift = step / 2 if self.shift is None else self.shift
        number = max(0, ceil((size.frames - shift) / step))
        # In fp32, because its rounding decides between two neighbours.
        found = (shift + np.arange(number) * step).astype(np.float32).astype(np.int64)
        taken = tuple(each for each in found.tolist() if each < size.frames)
        if not taken:
            raise VideoTooShort(f"frames are to be taken from {shift:g} on of {size.frames}")
        return taken


@dataclass(frozen=True, slots=True)
class EndlessSampling:
    """Which frames are taken: `fps` per second, at most `most`, including the first and the last.

    A video that, without a second at each end, lasts more than `most * fps` seconds loses these
    seconds. The rule of SmolVLM.
    """

    fps: float
    most: int

    @property
    def most_taken(self) -> int:
        """The most frames that are taken from any video."""
        return self.most

    def asked(self, fps: float | None, most: int | None) -> "EndlessSampling":
        """Return the rule with the frames that a spec asks for."""
        return EndlessSampling(fps or self.fps, most or self.most)

    def indices(self, size: VideoSize) -> tuple[int, ...]:
        """Return the frames to take."""
        import numpy as np  # `validate` works without it.

        lasts, last = size.frames / size.rate, size.frames - 1
        number = max(1, min(round(self.fps * lasts), self.most))
        first, end = 0, last
        if lasts - 2 * _SKIPPED > self.most * self.fps:
            first = int(_SKIPPED * size.rate)
            end = min(int(size.frames - _SKIPPED * size.rate), last)
        if first >= end:
            first, end = 0, last
        return tuple(np.unique(np.linspace(first, end, number, dtype=int)).tolist())


@dataclass(frozen=True, slots=True)
class ExactFrames:
    """The rule for frames of one size, whatever the aspect of the video."""

    height: int
    width: int
    group: int = 1
    over_time: bool = False

    @property
    def most_pixels(self) -> int:
        """Pixels of a frame."""
        return self.height * self.width

    def size(self, frames: int, height: int, width: int) -> Size:
        """Return height and width of frames. Raises: ImageTooThin."""
        del frames
        for made in (*self.before(height, width), (self.height, self.width)):
            limit(height, width, made=made[0] * made[1])
        return self.height, self.width

    def before(self, height: int, width: int) -> tuple[Size, ...]:
        """Return the intermediate sizes of a frame."""
        del height, width
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SquareFrames(ExactFrames):
    """Frames of one size that are first resized: longer side to `longest`, other to an even number.

    The rule of SmolVLM.
    """

    longest: int

    def before(self, height: int, width: int) -> tuple[Size, ...]:
        """Return the intermediate sizes of a frame."""
        longest, aspect = min(self.longest, _MOST_SIDE), width / height
        if width >= height:
            shorter = int(longest / aspect)
            return ((max(shorter + shorter % 2, 1), longest),)
        shorter = int(longest * aspect)
        return ((longest, max(shorter + shorter % 2, 1)),)


SingleSampling = EvenSampling | EndlessSampling
Rules = tuple[SingleSampling | None, ExactFrames]


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


def _even(config: Mapping[str, Any]) -> Rules:
    fps, number = _said(config) if config.get("do_sample_frames", False) else (None, None)
    return EvenSampling(fps, number, None), _one_size(config)


def _shifted(config: Mapping[str, Any]) -> Rules:
    shift, sampled = config["initial_shift"], config.get("do_sample_frames", False)
    fps, number = _said(config) if sampled else (None, None)
    if sampled and fps is None and number is None:
        raise ValueError("do_sample_frames: true without num_frames or fps")
    if shift is not True and not float(shift) >= 0:
        raise ValueError(f"initial_shift: {shift}")
    middle = None if shift is True else float(shift)
    return ShiftedSampling(None if number else fps, number, None, middle), _one_size(config)


def _endless(config: Mapping[str, Any]) -> Rules:
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


# By name of a video processor, without `VideoProcessor`. Raise KeyError, TypeError, ValueError.
RULES: dict[str, Callable[[Mapping[str, Any]], Rules]] = {
    "LlavaOnevision": _even,
    "InternVL": _shifted,
    "SmolVLM": _endless,
}
