"""The rules by which video processors resize frames.

Decides: height and width of the frames of a video, and the sizes that they get on the way.
Relies on: `resize_rules`.
Leaves: settings of folders to `videos`, pixels to `data.samples.decode_video`.

Source: `transformers` 5.24, models/qwen2_vl, qwen3_vl, glm4v and smolvlm.
"""

from mimo_launch.diag.frozen import frozen
from mimo_launch.processors.frame_sampling import (
    MAX_FRAMES,
    MIN_FRAMES,
    EndlessSampling,
    FrameSampling,
    VideoTooShort,
)
from mimo_launch.processors.resize_rules import MOST_SIDE, OverTime, Size, Smart, even_sides, limit

# The share of a context that `cap_pixels_per_frame` leaves to a video, and the factor of the cap
# over the least size.
_SHARE, _ABOVE = 0.9, 1.05


@frozen
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

    def sampling(self, fps: float, most: int | None) -> FrameSampling:
        """Return the rule for frames that a spec asks for, where a folder has none."""
        limits = None, None, MIN_FRAMES, MAX_FRAMES
        return FrameSampling(*limits, self.group, self.over_time).asked(fps, most)

    def before(self, height: int, width: int) -> tuple[Size, ...]:
        """Return the intermediate sizes of a frame: none."""
        del height, width
        return ()

    def size(self, frames: int, height: int, width: int) -> Size:
        """Return height and width of `frames` frames. Raises: ImageTooThin, VideoTooShort."""
        if not self.over_time:
            most = self.max_pixels
            if self.cap is not None:
                total = int(self.cap * self.factor**2 * _SHARE)
                least = int(self.min_pixels * _ABOVE)
                most = max(min(most, total * self.group // frames), least)
            return Smart(self.factor, self.min_pixels, most).size(height, width)
        return self._over_time(frames, height, width)

    def _over_time(self, frames: int, height: int, width: int) -> Size:
        factor, most = self.factor, self.max_pixels
        if frames < self.group:
            raise VideoTooShort(
                f"too few frames are taken: {frames}; a temporal patch has {self.group}"
            )
        if self.cap is not None:
            each = max(min(self.cap * factor**2, most // frames), int(self.min_pixels * _ABOVE))
            most = each * frames
        rule = OverTime(factor, self.min_pixels, most, self.group)
        return rule.size_of_frames(frames, height, width)


@frozen
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

    def sampling(self, fps: float, most: int | None) -> EndlessSampling:
        """Return the rule for frames that a spec asks for, where a folder has none.

        All other processors of such frames have a rule. Raises: ValueError.
        """
        if most is None:
            raise ValueError(
                "its video processor takes so many frames a second only up to some number: write "
                f"`fps: {fps:g}, max_frames: 64` in `data.video`"
            )
        return EndlessSampling(fps, most)

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


@frozen(kw_only=True)
class SquareFrames(ExactFrames):
    """Frames of one size that are first resized: longer side to `longest`, other to an even number.

    The rule of SmolVLM.
    """

    longest: int

    def before(self, height: int, width: int) -> tuple[Size, ...]:
        """Return the intermediate sizes of a frame."""
        return (even_sides(min(self.longest, MOST_SIDE), height, width),)
