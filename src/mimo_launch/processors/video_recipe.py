"""The steps from a video to the inputs of an encoder.

Decides: how frames are grouped and timed, and what a spec may change.
Relies on: `frame_sampling` and `frame_sizes` for the choice and size of frames; `video_words`.
Leaves: settings of folders to `videos`; frames themselves to `decode_video`.
"""

from dataclasses import replace
from fractions import Fraction
from math import ceil

from mimo_launch.diag.frozen import frozen
from mimo_launch.processors.files import ProcessorError
from mimo_launch.processors.frame_sampling import (
    FPS,
    NEEDS_FPS,
    FrameSampling,
    Sampling,
    VideoSize,
)
from mimo_launch.processors.frame_sizes import ExactFrames, FrameSize
from mimo_launch.processors.image_recipe import BICUBIC, HALF
from mimo_launch.processors.resize_rules import Size
from mimo_launch.processors.sound_of_videos import CHUNK
from mimo_launch.processors.video_words import told_of
from mimo_launch.spec.spec import Videos
from mimo_launch.spec.user_data import VideoSettings


@frozen
class TakenVideo:
    """The frames taken from a video, their height and width in pixels, and times of their groups.

    A group is a temporal patch; the last frame is repeated to fill one. `told` encodes what the
    text says of each group (see `video_words`); `later` is its distance in positions from the first
    group, None for the first group of an image. `before` holds the intermediate sizes of frames.
    """

    indices: tuple[int, ...]
    height: int
    width: int
    told: tuple[int, ...]
    later: tuple[int | None, ...]
    before: tuple[Size, ...] = ()


@frozen
class VideoRecipe:
    """Steps from a decoded video to the arrays of an encoder, in this order.

    Without `sampling`, all frames are taken. `nominal_fps` is the requested rate, whatever is
    taken. `resample` is the number of a Pillow filter.
    """

    sampling: Sampling | None
    frame_size: FrameSize | ExactFrames
    videos: Videos
    resample: int = BICUBIC
    scale: float = 1 / 255
    mean: tuple[float, ...] = HALF
    std: tuple[float, ...] = HALF
    nominal_fps: float = FPS

    @property
    def group(self) -> int:
        """Number of frames of a temporal patch."""
        return self.frame_size.group

    @property
    def places_of_chunk(self) -> int | None:
        """Places of a chunk of frames and sound; None if they alternate (Qwen3-Omni)."""
        exact = self.videos.time == "exact_seconds"
        return None if exact else max(1, int(CHUNK * (self.videos.per_second or 1)))

    @property
    def most_groups(self) -> int | None:
        """The most temporal patches of a video, None without a limit on frames."""
        if self.sampling is None:
            return None
        if isinstance(self.sampling, FrameSampling):
            return ceil((self.sampling.number or self.sampling.most) / self.group)
        most = self.sampling.most_taken
        return None if most is None else ceil(most / self.group)

    def taken(self, size: VideoSize) -> TakenVideo:
        """Return what is taken from a video. Raises: ImageTooThin, VideoTooShort."""
        every = tuple(range(size.frames))
        indices = every if self.sampling is None else self.sampling.indices(size)
        height, width = self.frame_size.size(len(indices), size.height, size.width)
        padded = [*indices, *indices[-1:] * (-len(indices) % self.group)]
        times = [index / size.rate for index in padded]
        told = told_of(self.videos, times, self.group, size.frames / size.rate)
        later = self._later(len(told), indices, size)
        before = self.frame_size.before(size.height, size.width)
        return TakenVideo(indices, height, width, told, later, before)

    def _later(
        self, groups: int, indices: tuple[int, ...], size: VideoSize
    ) -> tuple[int | None, ...]:
        if not self.videos.on_axis:
            return (None,) * groups
        if not self.videos.in_seconds:
            return (None, *range(1, groups))
        import numpy as np

        # In fp32 and in the reference's order, because rounding decides between two positions.
        second, numbers = np.float32(self.videos.per_second or 1), np.arange(groups)
        if self.videos.holds_text:
            times = numbers.astype(np.float32) * np.float32(self.group / self.nominal_fps) * second
        else:
            taken_rate = len(indices) / size.frames * size.rate
            times = numbers.astype(np.float32) * (second * np.float32(self.group / taken_rate))
        if self.videos.time == "exact_seconds":
            times = np.rint(times)
        return (None, *times.astype(np.int64).tolist()[1:])


def as_asked(recipe: VideoRecipe, asked: VideoSettings) -> VideoRecipe:
    """Return a recipe with the frames that a spec asks for. Raises: ProcessorError."""
    sampling, fps, most = recipe.sampling, asked.fps, asked.max_frames
    try:
        if sampling is None and fps is not None:
            sampling = recipe.frame_size.sampling(fps, most)
        elif sampling is not None:
            sampling = sampling.asked(fps, most)
        elif most is not None:
            raise ValueError(NEEDS_FPS)
    except ValueError as error:
        raise ProcessorError(str(error)) from error
    if isinstance(sampling, FrameSampling):
        fills = recipe.frame_size.over_time or not sampling.to_ends
        if fills and sampling.most_taken < recipe.group:
            raise ProcessorError(
                f"at most {sampling.number or sampling.most} frame is taken of a video, but a "
                f"temporal patch has {recipe.group}: write `max_frames: {recipe.group}` or more, "
                "and `fps`, in `data.video`"
            )
    nominal = recipe.nominal_fps if fps is None else fps
    _refuse_times(recipe, nominal, hears=asked.sound)
    return replace(recipe, sampling=sampling, nominal_fps=nominal)


def _refuse_times(recipe: VideoRecipe, nominal: float, *, hears: bool) -> None:
    """Raise ProcessorError for a rate at which frames have no whole places, or none among sound."""
    group, seconds = recipe.group, recipe.group / nominal
    each = group * (recipe.videos.per_second or 1)
    at = f"at {nominal:g} frames per second a temporal patch"

    def is_exact(rate: float) -> bool:
        # Sound beside a frame comes before it if `transformers` rounds its time up.
        return not hears or Fraction(group / rate) * Fraction(rate) == group

    if recipe.videos.time == "exact_seconds" and not (each % nominal == 0 and is_exact(nominal)):
        rates = range(1, int(nominal) + 1)
        fits = max((n for n in rates if each % n == 0 and is_exact(n)), default=1)
        takes = f"takes {each / nominal:g} places of language, which are no whole ones"
        if each % nominal == 0:
            takes = f"lasts {seconds:g} s, which `transformers` rounds"
        raise ProcessorError(f"{at} {takes}: write `fps: {fits}` in `data.video`")
    if hears and recipe.places_of_chunk is not None and seconds > CHUNK:
        raise ProcessorError(
            f"{at} lasts {seconds:g} s, longer than a chunk of {CHUNK} s of frames and sound: "
            f"write `fps: {group / CHUNK:g}` in `data.video`"
        )
