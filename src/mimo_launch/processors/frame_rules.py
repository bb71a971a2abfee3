"""The rules of video processors: which frames are taken from a video, and their height and width.

Decides: both, with the numbers of `Qwen2VLVideoProcessor`, `Qwen3VLVideoProcessor` and
`Glm4vVideoProcessor`.
Relies on: `resize_rules` for the rules of sizes.
Leaves: settings of folders to `video_processor`, frames as separate images to `single_frames`.

Source: `transformers` 5.23, models/qwen2_vl and models/qwen3_vl.
"""

from dataclasses import dataclass, replace
from math import ceil, floor
from typing import TYPE_CHECKING

from mimo_launch.processors.resize_rules import (
    OverTime,
    Smart,
    over_time_size,
    smart_size,
)

if TYPE_CHECKING:
    import numpy as np

# The share of a context that `cap_pixels_per_frame` leaves to a video, and the factor of the cap
# over the least size.
_SHARE, _ABOVE = 0.9, 1.05


class VideoTooShort(ValueError):
    """A video from which too few frames can be taken."""


@dataclass(frozen=True, slots=True)
class VideoSize:
    """A video before decoding: number of frames, height and width in pixels, frames per second."""

    frames: int
    height: int
    width: int
    rate: float


@dataclass(frozen=True, slots=True)
class FrameSampling:
    """Which frames are taken: `number`, or `fps` per second within limits.

    `to_ends`: the first and the last frame, and others evenly between them, as in Qwen3-VL;
    otherwise a multiple of `group` frames in equal steps from the first one, as in Qwen2-VL.
    """

    fps: float | None
    number: int | None
    least: int
    most: int
    group: int
    to_ends: bool

    @property
    def most_taken(self) -> int:
        """The most frames that are taken from any video."""
        if self.to_ends:
            return self.number or self.most
        return round(self.number / self.group) * self.group if self.number else self.most

    def indices(self, size: VideoSize) -> tuple[int, ...]:
        """Return the frames to take. Raises: VideoTooShort."""
        taken = self._to_ends(size) if self.to_ends else self._in_steps(size)
        return tuple(taken.astype("int64").tolist())

    def _to_ends(self, size: VideoSize) -> "np.ndarray":
        import numpy as np  # `validate` works without it.

        number, most = self.number, min(self.most, size.frames)
        if number is not None and number > size.frames:
            raise VideoTooShort(f"{number} frames are to be taken of {size.frames}")
        if number is None:
            asked = size.frames if self.fps is None else int(size.frames / size.rate * self.fps)
            number = min(max(asked, self.least), most)
        return np.linspace(0, size.frames - 1, number).round()

    def _in_steps(self, size: VideoSize) -> "np.ndarray":
        import numpy as np

        if self.number is not None:
            number = self.most_taken
        elif self.fps is not None:
            most = floor(min(self.most, size.frames) / self.group) * self.group
            asked = size.frames / size.rate * self.fps
            number = floor(min(max(asked, self.least), most) / self.group) * self.group
        else:
            number = size.frames
        if not 0 < number <= size.frames:
            raise VideoTooShort(
                f"{max(number, self.group)} frames are to be taken of {size.frames}"
            )
        step = size.frames / number
        # In fp32, because its rounding decides between two neighbours. Rounding sometimes gives the
        # reference one more index, past the last frame, which cannot be decoded.
        return (np.arange(number) * step).astype(np.float32)


@dataclass(frozen=True, slots=True)
class SecondSampling:
    """Which frames are taken from a video: one every 1 / `fps` seconds, as in GLM-4.1V.

    A video of more than `longest` seconds gives as many frames as one of `longest` seconds, evenly
    over its length. The number is even: the last frame is repeated if necessary.
    """

    fps: float
    longest: float

    def asked(self, fps: float | None, most: int | None) -> "SecondSampling":
        """Return the rule with the frames that a spec asks for. Raises: ValueError."""
        if most is not None:
            raise ValueError("its video processor takes no `max_frames`, but `fps`")
        return replace(self, fps=self.fps if fps is None else fps)

    @property
    def most_taken(self) -> int:
        """The most frames that are taken from any video."""
        most = max(1, int(self.longest * self.fps))
        return most + most % 2

    def indices(self, size: VideoSize) -> tuple[int, ...]:
        """Return the frames to take."""
        import numpy as np  # `validate` works without it.

        last, lasts = size.frames - 1, size.frames / size.rate
        most = int(self.longest * self.fps)
        if lasts <= self.longest:
            number = max(floor(lasts * self.fps), 1)
            places = [ceil(each * size.rate / self.fps) for each in range(number)]
        elif most >= size.frames:
            places = list(range(size.frames))
        else:
            places = [ceil(each * size.rate) for each in np.linspace(0, lasts, most)]
        taken = list(dict.fromkeys(min(each, last) for each in places))
        return (*taken, *taken[-1:] * (len(taken) % 2))


@dataclass(frozen=True, slots=True)
class FrameSize:
    """The rule for the size of frames: multiples of `factor`, near the aspect of the video.

    `over_time`: the limits apply to the pixels of all frames together, as in Qwen3-VL; otherwise to
    one frame. `cap` is the number of tokens by which `cap_pixels_per_frame` limits a frame, or all
    frames with `over_time`.
    """

    factor: int
    min_pixels: int
    max_pixels: int
    group: int
    over_time: bool
    cap: int | None

    @property
    def most_pixels(self) -> int:
        """The most pixels of a frame: with `over_time`, of a frame of the shortest video."""
        return self.max_pixels // (self.group if self.over_time else 1)

    def before(self, height: int, width: int) -> tuple[tuple[int, int], ...]:
        """Return the intermediate sizes of a frame: none."""
        del height, width
        return ()

    def size(self, frames: int, height: int, width: int) -> tuple[int, int]:
        """Return height and width of `frames` frames. Raises: ImageTooThin, VideoTooShort."""
        if not self.over_time:
            most = self.max_pixels
            if self.cap is not None:
                total = int(self.cap * self.factor**2 * _SHARE)
                least = int(self.min_pixels * _ABOVE)
                most = max(min(most, total * self.group // frames), least)
            return smart_size(height, width, Smart(self.factor, self.min_pixels, most))
        return self._over_time(frames, height, width)

    def _over_time(self, frames: int, height: int, width: int) -> tuple[int, int]:
        factor, most = self.factor, self.max_pixels
        if frames < self.group:
            raise VideoTooShort(
                f"too few frames are taken: {frames}; a temporal patch has {self.group}"
            )
        if self.cap is not None:
            each = max(min(self.cap * factor**2, most // frames), int(self.min_pixels * _ABOVE))
            most = each * frames
        rule = OverTime(factor, self.min_pixels, most, self.group)
        return over_time_size(frames, height, width, rule)
