"""The rules by which image and video processors resize, and the sizes that they make.

Decides: height and width of an image, or of the frames of a video.
Relies on: nothing.
Leaves: which rule a folder has to `image_processor` and `video_processor`.

Source: `transformers` 5.23.
"""

import math
from dataclasses import dataclass

MAX_ASPECT = 200
# The most pixels that a step may make: half a gigabyte in 8-bit RGB.
MOST_PIXELS = 178_000_000


class ImageTooThin(ValueError):
    """An image with an aspect or size that allows no row."""


@dataclass(frozen=True, slots=True)
class Exact:
    """Resize to this height and width."""

    height: int
    width: int


@dataclass(frozen=True, slots=True)
class ShortEdge:
    """Resize the shorter edge to this length."""

    length: int


@dataclass(frozen=True, slots=True)
class Smart:
    """Resize to multiples of `factor` with an area in a range, near the aspect of the image.

    The rule of Qwen2-VL (https://arxiv.org/abs/2409.12191, section 2.1).
    """

    factor: int
    min_pixels: int
    max_pixels: int


@dataclass(frozen=True, slots=True)
class Within:
    """Shrink, if larger, to at most this height and width; then round up to multiples of `factor`.

    The rule of Pixtral (https://arxiv.org/abs/2410.07073).
    """

    factor: int
    height: int
    width: int


@dataclass(frozen=True, slots=True)
class OverTime:
    """Resize to multiples of `factor`, with limits on the pixels of all frames together.

    Frames are counted in whole groups; an image is one group. The rule of the videos of Qwen3-VL,
    and of images and videos of GLM-4.1V.
    """

    factor: int
    min_pixels: int
    max_pixels: int
    group: int


@dataclass(frozen=True, slots=True)
class PatchCount:
    """Resize to a number of patches in a range, near the aspect of the image.

    Sides are multiples of `merge` patches of `patch` pixels; resized pixels are neither rounded nor
    clipped to their range. The rule of Nemotron-H Omni.
    """

    patch: int
    merge: int
    least: int
    most: int


Resize = Exact | ShortEdge | Smart | Within | OverTime | PatchCount


def limit(height: int, width: int, *, made: int) -> None:
    """Raise ImageTooThin where an image would become too many pixels."""
    if made > MOST_PIXELS:
        raise ImageTooThin(
            f"{width} x {height} pixels become {made / 1e6:.0f} million while resizing"
        )


def short_edge_size(height: int, width: int, short: int) -> tuple[int, int]:
    """Return height and width with the shorter one equal to `short`. Raises: ImageTooThin."""
    # Rounded down, as transformers does.
    long = int(short * max(height, width) / min(height, width))
    limit(height, width, made=long * short)
    return (long, short) if width <= height else (short, long)


def smart_size(height: int, width: int, rule: Smart) -> tuple[int, int]:
    """Return height and width by the rule of Qwen2-VL. Raises: ImageTooThin."""
    if max(height, width) > MAX_ASPECT * min(height, width):
        raise ImageTooThin(f"{width} x {height} pixels have sides of more than {MAX_ASPECT} to 1")
    factor = rule.factor
    tall, wide = round(height / factor) * factor, round(width / factor) * factor
    if tall * wide > rule.max_pixels:
        shrink = math.sqrt(height * width / rule.max_pixels)
        tall, wide = (
            max(factor, math.floor(edge / shrink / factor) * factor) for edge in (height, width)
        )
    elif tall * wide < rule.min_pixels:
        grow = math.sqrt(rule.min_pixels / (height * width))
        tall, wide = (math.ceil(edge * grow / factor) * factor for edge in (height, width))
    return tall, wide


def within_size(height: int, width: int, rule: Within) -> tuple[int, int]:
    """Return height and width by the rule of Pixtral. Raises: ImageTooThin."""
    shrink = max(height / rule.height, width / rule.width, 1)
    found = math.floor(height / shrink), math.floor(width / shrink)
    if not all(found):
        raise ImageTooThin(f"{width} x {height} pixels become {found[1]} x {found[0]}")
    tall, wide = (-(-edge // rule.factor) * rule.factor for edge in found)
    return tall, wide


def over_time_size(frames: int, height: int, width: int, rule: OverTime) -> tuple[int, int]:
    """Return height and width of `frames` frames. Raises: ImageTooThin."""
    factor = rule.factor
    if min(height, width) < factor:
        grow = max(factor / height, factor / width)
        height, width = int(height * grow), int(width * grow)
    if max(height, width) > MAX_ASPECT * min(height, width):
        raise ImageTooThin(f"{width} x {height} pixels have sides of more than {MAX_ASPECT} to 1")
    tall, wide = round(height / factor) * factor, round(width / factor) * factor
    pixels = round(frames / rule.group) * rule.group * tall * wide
    if pixels > rule.max_pixels:
        shrink = math.sqrt(frames * height * width / rule.max_pixels)
        return (
            max(factor, math.floor(height / shrink / factor) * factor),
            max(factor, math.floor(width / shrink / factor) * factor),
        )
    if pixels < rule.min_pixels:
        grow = math.sqrt(rule.min_pixels / (frames * height * width))
        return math.ceil(height * grow / factor) * factor, math.ceil(width * grow / factor) * factor
    return tall, wide


def patch_count_size(height: int, width: int, rule: PatchCount) -> tuple[int, int]:
    """Return height and width by the rule of Nemotron-H Omni. Raises: ImageTooThin."""
    patch, merge, most = rule.patch, rule.merge, rule.most
    tall, wide = (max(1, round(side / patch + 0.5)) for side in (height, width))
    shrink = min(math.sqrt(most / (tall * wide)), 1.0)
    tall, wide = math.floor(shrink * tall), math.floor(shrink * wide)
    if not tall * wide:
        raise ImageTooThin(f"{width} x {height} pixels become {wide} x {tall} patches")
    if most > rule.least > tall * wide:
        grow = math.sqrt(rule.least / (tall * wide))
        tall, wide = math.ceil(grow * tall), math.ceil(grow * wide)
    if over := tall % merge:
        more = tall + merge - over
        tall = more if more * wide <= most else max(merge, tall - over)
    if over := wide % merge:
        more = wide + merge - over
        wide = more if tall * more <= most else max(merge, wide - over)
    limit(height, width, made=tall * wide * patch**2)
    return tall * patch, wide * patch
