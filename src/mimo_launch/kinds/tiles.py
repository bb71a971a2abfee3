"""Images cut into tiles: which patches of the tiles become the rows that language reads.

Decides: the rows of an image: first the rows of a tile that shows the whole image, then, line by
line, the rows of the other tiles together, without padding; the most rows; that a learned row ends
each line (LLaVA-OneVision, arXiv:2408.03326, section 3). A frame of a video is one tile, with half
its lines and columns; a learned row ends the video. If the whole image comes last, a learned row
ends its lines, too, and another one precedes it (Phi-4 multimodal, arXiv:2503.01743, section 2.1).
Of an Ovis2, the rows of each tile come together, with learned rows around and between tiles.
Relies on: nothing.
Leaves: cutting pixels to `data`, the patches of each row to `models.tiled_rows`.
"""

import math
from dataclasses import field

from mimo_launch.diag.frozen import frozen

# The tiles are shrunk if the sides of their grid exceed the limit from `most` by this factor.
_SLACK = 1.1


@frozen
class Tiling:
    """The tiles beside the one that shows the whole image: `tall x wide` of them.

    Of all their rows together, the `height x width` in the middle show the image.
    """

    tall: int
    wide: int
    height: int
    width: int


@frozen
class Frame:
    """A frame of a video: one tile; the learned row comes after the last frame."""

    is_last: bool


# How an image is shown; None is one tile.
Shown = Tiling | Frame | None


@frozen
class TileRule:
    """Height and width of a tile in rows, and how many tiles may keep all their rows.

    `each` of several images of a sample is cut, too. `side` is the side of a tile in pixels, which
    may exceed its patches; `grids` are the grids of tiles into which an image may be cut, by height
    and width. Neither of these two affects the number of rows. If the whole image is last
    (`whole_last`), each of its lines ends with the learned row, too, after another learned row, and
    images fill their grid.
    """

    height: int
    width: int
    most: int | None
    each: bool
    side: int = field(repr=False)
    grids: tuple[tuple[int, int], ...] = field(repr=False)
    whole_last: bool = False

    @property
    def patches(self) -> int:
        """Number of rows made of a tile, before any are averaged; here each is a patch."""
        return self.height * self.width

    def filled(self, tall: int, wide: int) -> Tiling:
        """Return the tiles of an image that fills a grid of `tall x wide`."""
        return Tiling(tall, wide, tall * self.height, wide * self.width)

    @property
    def pooled(self) -> tuple[int, int]:
        """Lines and columns of the rows of a frame."""
        return math.ceil(self.height / 2), math.ceil(self.width / 2)

    def num_tiles(self, shown: Shown) -> int:
        """Return the number of tiles of an image, including the one that shows the whole."""
        return 1 + shown.tall * shown.wide if isinstance(shown, Tiling) else 1

    def num_rows(self, shown: Shown) -> int:
        """Return the number of rows of an image, including learned rows."""
        if shown is None:
            return self.patches + 1
        if isinstance(shown, Frame):
            return math.prod(self.pooled) + shown.is_last
        lines, columns = self.shrunk(shown)
        whole = self.patches
        if self.whole_last:
            whole += 1 + self.height
        return whole + lines * (columns + 1)

    def shrunk(self, tiling: Tiling) -> tuple[int, int]:
        """Return the lines and columns of the rows of the tiles that are not the whole image."""
        if self.most is not None:
            over = math.sqrt(tiling.height * tiling.width / (self.most * self.patches))
            if over > _SLACK:
                return int(tiling.height // over), int(tiling.width // over)
        return tiling.height, tiling.width

    def shown_on(self, tall: int, wide: int) -> list[Shown]:
        """Return how images fill a grid of tiles: one all of it, others with padding."""
        if self.whole_last:
            return [self.filled(tall, wide)]
        height, width = tall * self.height, wide * self.width
        sizes = ((height, width), (height - 2, width), (height, width - 2))
        return [Tiling(tall, wide, *each) for each in sizes if min(each) > 0]


# Learned rows of an Ovis2, in the order of its table: before an image, after the tile of the whole
# image, between tiles of a line, between lines of tiles, after an image.
INDICATORS = 5
_START, _WHOLE, _COLUMN, _LINE, _END = range(-1, -1 - INDICATORS, -1)


@frozen
class IndicatorRule(TileRule):
    """Rows of an Ovis2: all those of each tile together, and learned rows around and between them.

    A grid of one tile is the whole image.
    """

    def num_rows(self, shown: Shown) -> int:
        """Return the number of rows of an image, including learned rows."""
        # One learned row follows each tile, and one comes before the first and after the last.
        return self.num_tiles(shown) * (self.patches + 1) + 1 + (shown is None)

    def order(self, shown: Shown) -> list[int]:
        """Return the rows of an image, numbered through all tiles; -1 and below are learned."""
        found = [_START, *range(self.patches), _WHOLE]
        if isinstance(shown, Tiling):
            for number in range(1, 1 + shown.tall * shown.wide):
                found += range(number * self.patches, (number + 1) * self.patches)
                found.append(_LINE if number % shown.wide == 0 else _COLUMN)
            return [*found[:-1], _END]
        return [*found, _END]

    def shown_on(self, tall: int, wide: int) -> list[Shown]:
        """Return how images fill a grid of tiles: all of it."""
        if tall * wide == 1:
            return [None]
        return [self.filled(tall, wide)]
