"""The rules by which an image is cut into tiles, which are separate images or parts of one.

Decides: the grid of tiles for an image of a given size, and the sizes to which it is resized first;
for tiles of LLaVA-OneVision the patches that show the image.
Relies on: `resize_rules` for limits on size; `kinds.tiles` for the tiles of one image.
Leaves: pixels to `data.samples.decode_media`, the text around tiles to `image_texts`.

A `Cut` turns one image into several: its tiles, then the whole image. Each is a separate image to
the encoder and to language, keeps all its rows, and has its own place in the text. To language, the
tiles of LLaVA-OneVision are one image.

Source: arXiv:2408.12637, section 3.1, arXiv:2404.16821, section 3.3, arXiv:2310.03744, section 3.4,
and `transformers` 5.24, models/idefics3, models/smolvlm, models/got_ocr2, models/llava_onevision.
"""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, ClassVar

from mimo_launch.diag.frozen import frozen
from mimo_launch.kinds.tiles import TileRule, Tiling
from mimo_launch.processors.resize_rules import (
    MOST_PIXELS,
    MOST_SIDE,
    Exact,
    Resize,
    Size,
    even_sides,
    limit_aspect,
)


@frozen
class Cut(ABC):
    """A rule by which one image becomes several: tiles of one size, and the whole image.

    The whole image is last, or `whole_first`. `tiles` are the fewest and the most tiles of an
    image; `tile` is a height and width in pixels.
    """

    # Whether the tile of the whole image is made from the resized grid or from the original image.
    shrinks_grid: ClassVar[bool]
    whole_first: ClassVar[bool] = False
    tile: Size
    tiles: tuple[int, int]

    @property
    def resize(self) -> Resize:
        """The rule for the size of the whole image, if it is one of several."""
        return Exact(*self.tile)

    @property
    def fewest(self) -> int:
        """The fewest images that one image can become."""
        return _with_whole(self.tiles[0])

    @property
    def most(self) -> int:
        """The most images that one image can become."""
        return _with_whole(self.tiles[1])

    @abstractmethod
    def steps(self, height: int, width: int) -> list[Size]:
        """Return the sizes that an image gets, in order; the last is the size of the grid."""

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Return how many tiles an image is cut into, down and to the right."""
        tall, wide = self.steps(height, width)[-1]
        return tall // self.tile[0], wide // self.tile[1]

    def tile_of(self, height: int, width: int) -> Size:
        """Return height and width of a tile of an image, in pixels."""
        del height, width
        return self.tile

    def whole_of(self, height: int, width: int) -> Size:
        """Return height and width of the whole image as one of several, in pixels."""
        del height, width
        return self.tile

    def pieces(self, height: int, width: int) -> list[Size]:
        """Return height and width of each image that one becomes. Raises: ImageTooThin."""
        number = math.prod(self.grid(height, width))
        tiles = [self.tile_of(height, width)] * number
        whole = [self.whole_of(height, width)] if number > 1 else []
        return [*whole, *tiles] if self.whole_first else [*tiles, *whole]


@frozen
class Enlarged(Cut):
    """The rule of Idefics3: make the longer side `longest`, then both multiples of a tile's side.

    Without `splits`, every image is one tile.
    """

    shrinks_grid: ClassVar[bool] = True
    longest: int
    splits: bool

    def steps(self, height: int, width: int) -> list[Size]:
        """Return the sizes that an image gets, in order; the last is the size of the grid."""
        height, width = first = self._first(height, width)
        if not self.splits:
            return [first, self.tile]
        aspect = width / height
        # The longer side first; the other follows from its new length.
        if width >= height:
            width = self._multiple(width)
            height = self._multiple(int(width / aspect))
        else:
            height = self._multiple(height)
            width = self._multiple(int(height * aspect))
        return [first, (height, width)]

    def _first(self, height: int, width: int) -> Size:
        tall, wide = even_sides(self.longest, height, width)
        if max(tall, wide) <= MOST_SIDE:
            return tall, wide
        aspect = wide / tall
        if wide >= tall:
            return max(int(MOST_SIDE / aspect), 1), MOST_SIDE
        return MOST_SIDE, max(int(MOST_SIDE * aspect), 1)

    def _multiple(self, length: int) -> int:
        return math.ceil(length / self.tile[0]) * self.tile[0]


@frozen
class NearestAspect(Cut):
    """The rule of InternVL: the grid with the nearest aspect.

    Of equally near grids, the largest with less than twice the image's pixels, else the smallest.
    """

    shrinks_grid: ClassVar[bool] = False

    def steps(self, height: int, width: int) -> list[Size]:
        """Return the size of the grid of an image, its only size."""
        aspect, area = width / height, height * width
        nearest, best = math.inf, (1, 1)
        for tall, wide in grids_between(*self.tiles):
            away = abs(aspect - wide / tall)
            more = area > 0.5 * math.prod(self.tile) * tall * wide
            if away < nearest or (away == nearest and more):
                nearest, best = away, (tall, wide)
        return [(best[0] * self.tile[0], best[1] * self.tile[1])]


def _with_whole(tiles: int) -> int:
    return tiles + (tiles > 1)


@lru_cache(maxsize=8)
def grids_between(least: int, most: int) -> list[tuple[int, int]]:
    """Return the grids of `least` to `most` tiles, by number of tiles, narrow before wide."""
    found = [
        (tall, wide)
        for wide in range(1, most + 1)
        for tall in range(1, most // wide + 1)
        if tall * wide >= least
    ]
    return sorted(found, key=math.prod)


def enlarged_of(config: Mapping[str, Any]) -> Enlarged:
    """Return the rule of an Idefics3 or SmolVLM. Raises: KeyError, TypeError, ValueError."""
    size, side = config["size"], int(config["max_image_size"]["longest_edge"])
    if not config.get("do_resize", True):
        raise ValueError("do_resize: false")
    if set(size) != {"longest_edge"} or min(int(size["longest_edge"]), side) < 1:
        raise ValueError(f"size: {json.dumps(size)}, max_image_size: {side}")
    longest, splits = int(size["longest_edge"]), bool(config.get("do_image_splitting", True))
    along = math.ceil(min(longest, MOST_SIDE) / side) if splits else 1
    return Enlarged((side, side), (along, along**2), longest, splits)


def nearest_of(config: Mapping[str, Any]) -> NearestAspect | None:
    """Return the rule of an InternVL, or None if its images are not cut.

    Raises: KeyError, TypeError, ValueError.
    """
    least, most = int(config.get("min_patches", 1)), int(config.get("max_patches", 12))
    if not config.get("crop_to_patches", False) or most <= 1:
        return None
    height, width = int(config["size"]["height"]), int(config["size"]["width"])
    if min(height, width) < 1 or height * width * most > MOST_PIXELS:
        raise ValueError(f"max_patches: {most} of {width} x {height} pixels")
    if not 0 <= least <= most:
        raise ValueError(f"min_patches: {least}, max_patches: {most}")
    return NearestAspect((height, width), (max(least, 1), most))


def grids_of(config: Mapping[str, Any]) -> tuple[Size, ...]:
    """Return the grids of a LLaVA-OneVision in pixels. Raises: KeyError, TypeError, ValueError."""
    pins = config["image_grid_pinpoints"]
    found = tuple((int(down), int(right)) for down, right in pins)
    if not found or min(map(min, found)) < 1:
        raise ValueError(f"image_grid_pinpoints: {json.dumps(pins)}")
    return found


def best_grid(height: int, width: int, grids: Iterable[Size]) -> Size:
    """Return the grid, in pixels, that keeps most pixels of an image and wastes fewest of the grid.

    Of equal grids the first is taken. Raises: ImageTooThin.
    """
    limit_aspect(height, width)

    def kept_and_spare(grid: Size) -> tuple[int, int]:
        scale = min(grid[0] / height, grid[1] / width)
        kept = min(int(height * scale) * int(width * scale), height * width)
        return kept, kept - grid[0] * grid[1]

    return max(grids, key=kept_and_spare)


def fitted(height: int, width: int, grid: Size) -> Size:
    """Return height and width, in pixels, of an image resized to fit a grid."""
    down, right = grid[0] / height, grid[1] / width
    if right < down:
        return min(math.ceil(height * right), grid[0]), grid[1]
    return grid[0], min(math.ceil(width * down), grid[1])


def tiling(height: int, width: int, grid: Size, side: int, rule: TileRule) -> Tiling:
    """Return the tiles of an image on a grid in pixels, and which of their patches show it."""
    tall, wide = grid[0] // side, grid[1] // side
    if rule.whole_last:
        return rule.filled(tall, wide)
    lines, columns = tall * rule.height, wide * rule.width
    # Rounded before it is truncated, so that no division error costs a line.
    if width / height > columns / lines:
        shown = int(round(height * (columns / width), 7))
        return Tiling(tall, wide, lines - (lines - shown) // 2 * 2, columns)
    shown = int(round(width * (lines / height), 7))
    return Tiling(tall, wide, lines, columns - (columns - shown) // 2 * 2)
