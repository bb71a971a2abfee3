"""The rules by which Ovis2 cuts an image into tiles that are parts of one image.

Decides: the grid of tiles; that a smaller copy of the whole image comes first.
Relies on: `cut_rules` for what a cut is, and for the grids that there are.
Leaves: pixels to `data.samples.decode_media`, rows between tiles to `kinds.tiles`.

Source: `transformers` 5.24, models/ovis2, `get_min_tile_covering_grid`.
"""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from mimo_launch.diag.frozen import frozen
from mimo_launch.processors.cut_rules import Cut, NearestAspect, grids_between, nearest_of
from mimo_launch.processors.resize_rules import Size

# The part of an image's pixels that tiles are to keep.
_ENOUGH = 0.9


@frozen
class Covering(Cut):
    """The fewest tiles that keep enough of the pixels of an image, or those that keep most.

    A part of an image becomes as large as fits into a tile without distortion, if it was larger.
    As in `transformers`, the parts of a grid of N lines of M tiles are M lines of N.
    """

    shrinks_grid: ClassVar[bool] = False
    whole_first: ClassVar[bool] = True

    def steps(self, height: int, width: int) -> list[Size]:
        """Return the size of the grid of an image, its only size."""
        grids = list(grids_between(*self.tiles))
        kept = [self._kept(height, width, lines=wide, columns=tall) for tall, wide in grids]
        enough = [number for number, part in enumerate(kept) if part > _ENOUGH]
        if enough:
            best = min(enough, key=lambda each: (grids[each][0] * grids[each][1], -kept[each]))
        else:
            best = min(range(len(grids)), key=lambda each: -kept[each])
        tall, wide = grids[best]
        return [(tall * self.tile[0], wide * self.tile[1])]

    def _kept(self, height: int, width: int, *, lines: int, columns: int) -> float:
        """Return the part of the pixels of an image that its parts keep in a tile each."""
        sizes = [
            (down, right) for down in _parts(height, lines) for right in _parts(width, columns)
        ]
        return sum(self._fitted(*each) for each in sizes) / (height * width)

    def _fitted(self, height: int, width: int) -> float:
        """Return the pixels of a part that fits into a tile."""
        longer, shorter, side = max(height, width), min(height, width), self.tile[0]
        if longer <= side:
            return longer * shorter
        return side * (shorter / longer * side)


def _parts(length: int, number: int) -> Iterable[int]:
    """Return the lengths of equal parts, of which the last one has the remainder."""
    each = length // number
    return [each] * (number - 1) + [length - each * (number - 1)]


@frozen
class NearestAfterWhole(NearestAspect):
    """The rule of InternVL, with the whole image first."""

    whole_first: ClassVar[bool] = True


def covering_of(config: Mapping[str, Any]) -> Cut | None:
    """Return the rule of an Ovis2, or None if its images are not cut.

    Raises: KeyError, TypeError, ValueError.
    """
    if (found := nearest_of(config)) is None:
        return None
    if not config.get("use_covering_area_grid", True):
        return NearestAfterWhole(found.tile, found.tiles)
    return Covering(found.tile, (1, found.tiles[1]))
