"""The rule by which MiniCPM cuts an image: a smaller copy of all of it, then slices of equal size.

Decides: the grid of slices, and height and width of the copy and of the slices.
Relies on: `cut_rules` for what a cut is, `resize_rules` for limits on size.
Leaves: pixels to `data.samples.decode_media`, the text around slices to `image_texts`.

Source: arXiv:2408.01800, section 3.2, and `transformers` 5.24, models/minicpmv4_6.
"""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from mimo_launch.diag.frozen import frozen
from mimo_launch.processors.cut_rules import Cut
from mimo_launch.processors.resize_rules import MAX_ASPECT, OfFactor, Size, limit_aspect


@frozen
class Slices(OfFactor):
    """Sizes near the area of a square with side `resolution`, in multiples of `factor`.

    At most `most` slices are made. An image of no more than that area is enlarged to it, if the
    rule `enlarges`.
    """

    resolution: int
    most: int
    enlarges: bool

    @property
    def most_pixels(self) -> int:
        """The most pixels of the copy or of a slice."""
        # Each side is rounded, by at most half of the factor unless that makes it zero.
        thin = math.sqrt(MAX_ASPECT)
        sides = self.resolution * thin, self.resolution / thin
        return math.ceil(math.prod(side + self.factor for side in sides))

    def size(self, height: int, width: int) -> Size:
        """Return height and width of the copy of an image. Raises: ImageTooThin."""
        grows = self.grid(height, width) == (1, 1) and self.enlarges
        return self._near(height, width, grows=grows)

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Return how many slices an image becomes, down and to the right. Raises: ImageTooThin."""
        limit_aspect(height, width)
        wanted = min(math.ceil(width * height / self.resolution**2), self.most)
        aspect, nearest, best = math.log(width / height), math.inf, (1, 1)
        for slices in (wanted - 1, wanted, wanted + 1) if wanted > 1 else ():
            for tall in range(1, slices + 1) if 1 < slices <= self.most else ():
                if slices % tall:
                    continue
                away = abs(aspect - math.log(slices // tall / tall))
                if away < nearest or (away == nearest and tall > best[0]):
                    nearest, best = away, (tall, slices // tall)
        return best

    def slice_size(self, height: int, width: int) -> Size:
        """Return height and width of a slice of an image. Raises: ImageTooThin."""
        tall, wide = self.grid(height, width)
        if (tall, wide) == (1, 1):
            return self.size(height, width)
        return self._near(_multiple(height, tall) / tall, _multiple(width, wide) / wide, grows=True)

    def _near(self, height: float, width: float, *, grows: bool) -> Size:
        if grows or height * width > self.resolution**2:
            aspect = width / height
            height = int(self.resolution / math.sqrt(aspect))
            width = int(height * aspect)
        return _multiple(height, self.factor), _multiple(width, self.factor)


def _multiple(length: float, of: int) -> int:
    return max(round(length / of) * of, of)


@frozen
class Sliced(Cut):
    """The rule of MiniCPM; `tile` is the square with the area of a slice."""

    shrinks_grid: ClassVar[bool] = False
    whole_first: ClassVar[bool] = True
    slices: Slices

    @property
    def resize(self) -> Slices:
        """The rule for the copy of the whole image."""
        return self.slices

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Return how many slices an image becomes, down and to the right. Raises: ImageTooThin."""
        return self.slices.grid(height, width)

    def steps(self, height: int, width: int) -> list[Size]:
        """Return the size of the grid of an image, its only size. Raises: ImageTooThin."""
        tall, wide = self.grid(height, width)
        down, right = self.tile_of(height, width)
        return [(tall * down, wide * right)]

    def tile_of(self, height: int, width: int) -> Size:
        """Return height and width of a slice of an image. Raises: ImageTooThin."""
        return self.slices.slice_size(height, width)

    def whole_of(self, height: int, width: int) -> Size:
        """Return height and width of the copy of an image. Raises: ImageTooThin."""
        return self.slices.size(height, width)


def sliced_of(config: Mapping[str, Any]) -> Sliced:
    """Return the rule of a MiniCPM. Raises: KeyError, TypeError, ValueError."""
    small, side = config["small_image_upsize"], int(config["scale_resolution"])
    if small not in ("always", "never"):
        raise ValueError(
            f"small_image_upsize: {small}, by which sizes follow from pixels; write `always`"
        )
    if not config.get("do_resize", True):
        raise ValueError("do_resize: false")
    factor = int(config["patch_size"]) * (2 if config["downsample_mode"] == "4x" else 4)
    most = int(config["max_slice_nums"]) if config["slice_mode"] else 1
    if min(factor, side, most) < 1:
        raise ValueError(f"scale_resolution: {side}, max_slice_nums: {most}")
    return Sliced((side, side), (1, most), Slices(factor, side, most, small == "always"))
