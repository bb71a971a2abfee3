"""The rules by which image and video processors resize, and the sizes that they make.

Decides: height and width of an image, or of the frames of a video.
Relies on: nothing.
Leaves: which rule a folder has to `images` and `videos`.

Source: `transformers` 5.23.
"""

import math
from abc import ABC, abstractmethod

from mimo_launch.diag.frozen import frozen

Size = tuple[int, int]
MAX_ASPECT = 200
# The most pixels that a step may make: half a gigabyte in 8-bit RGB.
MOST_PIXELS = 178_000_000
# The longest side that Idefics3 and SmolVLM enlarge an image or a frame to.
MOST_SIDE = 4096


class ImageTooThin(ValueError):
    """An image with an aspect or size that allows no row."""


class Resize(ABC):
    """A rule for height and width, in pixels; None for what a rule does not limit."""

    __slots__ = ()

    @abstractmethod
    def size(self, height: int, width: int) -> Size:
        """Return height and width after resizing. Raises: ImageTooThin."""

    @property
    def only_size(self) -> Size | None:
        """Height and width of every image, if all are equal."""
        return None

    @property
    def divisor(self) -> int | None:
        """A number that divides the sides of every image."""
        return None

    @property
    def most_pixels(self) -> int | None:
        """The most pixels of an image."""
        return None


@frozen
class Exact(Resize):
    """Resize to this height and width."""

    height: int
    width: int

    @property
    def only_size(self) -> Size:
        """Height and width of every image."""
        return self.height, self.width

    def size(self, height: int, width: int) -> Size:
        """Return the only size."""
        del height, width
        return self.only_size


@frozen
class ShortEdge(Resize):
    """Resize the shorter edge to this length."""

    length: int

    def size(self, height: int, width: int) -> Size:
        """Return height and width with the shorter one as asked. Raises: ImageTooThin."""
        # Rounded down, as transformers does.
        short, long = self.length, int(self.length * max(height, width) / min(height, width))
        limit(height, width, made=long * short)
        return (long, short) if width <= height else (short, long)


@frozen
class LongEdge(Resize):
    """Resize the longer edge to this length, and no edge to less than `least`.

    The rule of Janus (https://arxiv.org/abs/2410.13848).
    """

    length: int
    least: int

    def size(self, height: int, width: int) -> Size:
        """Return height and width with the longer one as asked."""
        scale = self.length / max(height, width)
        return max(round(height * scale), self.least), max(round(width * scale), self.least)


@frozen
class OfFactor(Resize):
    """A rule that makes multiples of `factor`."""

    factor: int

    @property
    def divisor(self) -> int:
        """The factor."""
        return self.factor


@frozen
class Smart(OfFactor):
    """Resize to multiples of `factor` with an area in a range, near the aspect of the image.

    The rule of Qwen2-VL (https://arxiv.org/abs/2409.12191, section 2.1).
    """

    min_pixels: int
    max_pixels: int

    @property
    def most_pixels(self) -> int:
        """The most pixels of an image."""
        return self.max_pixels

    def size(self, height: int, width: int) -> Size:
        """Return height and width near the aspect of the image. Raises: ImageTooThin."""
        limit_aspect(height, width)
        return _near_aspect(self, height, width, frames=1, counted=1)


@frozen
class SmartAndLarge(Smart):
    """The same after an image with a side below `factor` is enlarged, as for PaddleOCR-VL."""

    def size(self, height: int, width: int) -> Size:
        """Return height and width near the aspect of the image. Raises: ImageTooThin."""
        if height < self.factor:
            height, width = self.factor, round(width * self.factor / height)
        if width < self.factor:
            height, width = round(height * self.factor / width), self.factor
        return Smart.size(self, height, width)


@frozen
class Within(OfFactor):
    """Shrink, if larger, to at most this height and width; then round up to multiples of `factor`.

    The rule of Pixtral (https://arxiv.org/abs/2410.07073).
    """

    height: int
    width: int

    @property
    def most_pixels(self) -> int:
        """Pixels of the largest image, rounded up."""
        return math.prod(self._up(side) for side in (self.height, self.width))

    def size(self, height: int, width: int) -> Size:
        """Return height and width, rounded up. Raises: ImageTooThin."""
        shrink = max(height / self.height, width / self.width, 1)
        found = math.floor(height / shrink), math.floor(width / shrink)
        if not all(found):
            raise ImageTooThin(f"{width} x {height} pixels become {found[1]} x {found[0]}")
        return self._up(found[0]), self._up(found[1])

    def _up(self, side: int) -> int:
        return -(-side // self.factor) * self.factor


@frozen
class OverTime(OfFactor):
    """Resize to multiples of `factor`, with limits on the pixels of all frames together.

    Frames are counted in whole groups; an image is one group. The rule of the videos of Qwen3-VL,
    and of images and videos of GLM-4.1V.
    """

    min_pixels: int
    max_pixels: int
    group: int

    @property
    def most_pixels(self) -> int:
        """The most pixels of an image, which is as large as a group of frames may be."""
        return self.max_pixels // self.group

    def size(self, height: int, width: int) -> Size:
        """Return height and width of an image. Raises: ImageTooThin."""
        return self.size_of_frames(self.group, height, width)

    def size_of_frames(self, frames: int, height: int, width: int) -> Size:
        """Return height and width of `frames` frames. Raises: ImageTooThin."""
        factor = self.factor
        if min(height, width) < factor:
            grow = max(factor / height, factor / width)
            height, width = int(height * grow), int(width * grow)
        limit_aspect(height, width)
        counted = round(frames / self.group) * self.group
        return _near_aspect(self, height, width, frames=frames, counted=counted)


@frozen
class PatchCount(Resize):
    """Resize to a number of patches in a range, near the aspect of the image.

    Sides are multiples of `merge` patches of `patch` pixels; resized pixels are neither rounded nor
    clipped to their range. The rule of Nemotron-H Omni.
    """

    patch: int
    merge: int
    least: int
    most: int

    @property
    def divisor(self) -> int:
        """The side of a row."""
        return self.patch * self.merge

    @property
    def most_pixels(self) -> int:
        """The most pixels of an image."""
        # A thin image that grows to `least` patches may exceed them when rounded up.
        return max(self.most, 2 * self.least + 2) * self.patch**2

    def size(self, height: int, width: int) -> Size:
        """Return height and width of whole rows. Raises: ImageTooThin."""
        patch, merge, most = self.patch, self.merge, self.most
        tall, wide = (max(1, round(side / patch + 0.5)) for side in (height, width))
        shrink = min(math.sqrt(most / (tall * wide)), 1.0)
        tall, wide = math.floor(shrink * tall), math.floor(shrink * wide)
        if not tall * wide:
            raise ImageTooThin(f"{width} x {height} pixels become {wide} x {tall} patches")
        if most > self.least > tall * wide:
            grow = math.sqrt(self.least / (tall * wide))
            tall, wide = math.ceil(grow * tall), math.ceil(grow * wide)
        if over := tall % merge:
            more = tall + merge - over
            tall = more if more * wide <= most else max(merge, tall - over)
        if over := wide % merge:
            more = wide + merge - over
            wide = more if tall * more <= most else max(merge, wide - over)
        limit(height, width, made=tall * wide * patch**2)
        return tall * patch, wide * patch


@frozen
class SoftTokens(OfFactor):
    """Resize to the most multiples of `factor` that make up to `most` rows, near the aspect.

    Sides are rounded down, so small images grow as well. The rule of Gemma 4.
    """

    most: int

    @property
    def most_pixels(self) -> int:
        """The most pixels of an image."""
        return self.most * self.factor**2

    def size(self, height: int, width: int) -> Size:
        """Return height and width of whole rows. Raises: ImageTooThin."""
        grow = math.sqrt(self.most_pixels / (height * width))
        tall, wide = (math.floor(grow * side / self.factor) for side in (height, width))
        if not tall and not wide:
            raise ImageTooThin(f"{width} x {height} pixels become no row")
        # Of a thin image one line of rows is left.
        if not tall:
            tall, wide = 1, min(width // height, self.most)
        elif not wide:
            tall, wide = min(height // width, self.most), 1
        return tall * self.factor, wide * self.factor


def limit(height: int, width: int, *, made: int) -> None:
    """Raise ImageTooThin where an image would become too many pixels."""
    if made > MOST_PIXELS:
        raise ImageTooThin(
            f"{width} x {height} pixels become {made / 1e6:.0f} million while resizing"
        )


def limit_aspect(height: int, width: int) -> None:
    """Raise ImageTooThin for sides that are too unequal."""
    if max(height, width) > MAX_ASPECT * min(height, width):
        raise ImageTooThin(f"{width} x {height} pixels have sides of more than {MAX_ASPECT} to 1")


def even_sides(longest: int, height: int, width: int) -> Size:
    """Return height and width with this longer side, and the other one an even number."""
    aspect = width / height
    if width >= height:
        shorter = int(longest / aspect)
        return max(shorter + shorter % 2, 1), longest
    shorter = int(longest * aspect)
    return longest, max(shorter + shorter % 2, 1)


def _near_aspect(
    rule: Smart | OverTime, height: int, width: int, *, frames: int, counted: int
) -> Size:
    """Return multiples of the factor with an area in the range, over all `frames`."""
    factor, pixels = rule.factor, frames * height * width
    tall, wide = (round(side / factor) * factor for side in (height, width))
    if counted * tall * wide > rule.max_pixels:
        shrink = math.sqrt(pixels / rule.max_pixels)
        tall, wide = (
            max(factor, math.floor(side / shrink / factor) * factor) for side in (height, width)
        )
    elif counted * tall * wide < rule.min_pixels:
        grow = math.sqrt(rule.min_pixels / pixels)
        tall, wide = (math.ceil(side * grow / factor) * factor for side in (height, width))
    return tall, wide
