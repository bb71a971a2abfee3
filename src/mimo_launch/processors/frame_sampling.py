"""The rules by which video processors take frames from a video.

Decides: which frames are taken, and what a spec may change, with the numbers of the video
processors of Qwen2-VL, Qwen3-VL, GLM-4.1V, LLaVA-OneVision, InternVL and SmolVLM.
Relies on: numpy, imported on first use: `validate` works without it.
Leaves: settings of folders to `videos`, the size of frames to `frame_sizes`.

Source: `transformers` 5.24, video_utils.py and the processors of these models.
"""

from dataclasses import replace
from math import ceil, floor
from typing import TYPE_CHECKING

from mimo_launch.diag.frozen import frozen

if TYPE_CHECKING:
    import numpy as np

# Without a processor: the values of Qwen3-VL.
FPS, MIN_FRAMES, MAX_FRAMES = 2.0, 4, 768
NEEDS_FPS = "its video processor takes no `max_frames`: write `fps` as well"
# Seconds that SmolVLM skips at the beginning and at the end of a long video.
_SKIPPED = 1


class VideoTooShort(ValueError):
    """A video from which too few frames can be taken."""


@frozen
class VideoSize:
    """A video before decoding: number of frames, height and width in pixels, frames per second."""

    frames: int
    height: int
    width: int
    rate: float


@frozen
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

    def asked(self, fps: float | None, most: int | None) -> "FrameSampling":
        """Return the rule with the frames that a spec asks for. Raises: ValueError."""
        found = self if fps is None else replace(self, fps=fps, number=None)
        if most is None:
            return found
        if found.number is not None:
            raise ValueError(NEEDS_FPS)
        return replace(found, most=most, least=min(found.least, most))

    def indices(self, size: VideoSize) -> tuple[int, ...]:
        """Return the frames to take. Raises: VideoTooShort."""
        taken = self._to_ends(size) if self.to_ends else self._in_steps(size)
        return tuple(taken.astype("int64").tolist())

    def _to_ends(self, size: VideoSize) -> "np.ndarray":
        import numpy as np

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


@frozen
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
        import numpy as np

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


@frozen
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


@frozen
class ShiftedSampling(EvenSampling):
    """Even sampling that starts at frame `shift` or mid-step. The rule of InternVL."""

    shift: float | None = None

    def indices(self, size: VideoSize) -> tuple[int, ...]:
        """Return the frames to take. Raises: VideoTooShort."""
        if self.number is None and self.fps is None and self.most is None:
            return tuple(range(size.frames))
        import numpy as np

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


@frozen
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
        import numpy as np

        lasts, last = size.frames / size.rate, size.frames - 1
        number = max(1, min(round(self.fps * lasts), self.most))
        first, end = 0, last
        if lasts - 2 * _SKIPPED > self.most * self.fps:
            first = int(_SKIPPED * size.rate)
            end = min(int(size.frames - _SKIPPED * size.rate), last)
        if first >= end:
            first, end = 0, last
        return tuple(np.unique(np.linspace(first, end, number, dtype=int)).tolist())


Sampling = FrameSampling | SecondSampling | EvenSampling | EndlessSampling
