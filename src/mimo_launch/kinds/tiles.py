"""Images cut into tiles: which patches of the tiles become the rows that language reads.

Decides: the rows of an image: first the rows of a tile that shows the whole image, then, line by
line, the rows of the other tiles together, without padding; the most rows; that a learned row ends
each line (LLaVA-OneVision, arXiv:2408.03326, section 3). A frame of a video is one tile, with half
its lines and columns; a learned row ends the video.
Relies on: nothing.
Leaves: cutting pixels to `data`, the patches of each row to `models.tiled_rows`.
"""

import math
from dataclasses import dataclass, field

# The tiles are shrunk if the sides of their grid exceed the limit from `most` by this factor.
_SLACK = 1.1


@dataclass(frozen=True, slots=True)
class Tiling:
    """The tiles after the one that shows the whole image: `tall x wide` of them.

    Of all their patches together, the `height x width` in the middle show the image.
    """

    tall: int
    wide: int
    height: int
    width: int


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame of a video: one tile; the learned row comes after the last frame."""

    is_last: bool


# How an image is shown; None is one tile, followed by the learned row.
Shown = Tiling | Frame | None


@dataclass(frozen=True, slots=True)
class TileRule:
    """Height and width of a tile in patches, and how many tiles may keep all their rows.

    `each` of several images of a sample is cut, too. `side` is the side of a tile in pixels, which
    may exceed its patches; `grids` are the grids of tiles into which an image may be cut, by height
    and width. Neither of these two affects the number of rows.
    """

    height: int
    width: int
    most: int | None
    each: bool
    side: int = field(repr=False)
    grids: tuple[tuple[int, int], ...] = field(repr=False)

    @property
    def patches(self) -> int:
        """Number of patches of a tile."""
        return self.height * self.width

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
        return self.patches + lines * (columns + 1)

    def shrunk(self, tiling: Tiling) -> tuple[int, int]:
        """Return the lines and columns of rows made from the patches of the tiles."""
        if self.most is not None:
            over = math.sqrt(tiling.height * tiling.width / (self.most * self.patches))
            if over > _SLACK:
                return int(tiling.height // over), int(tiling.width // over)
        return tiling.height, tiling.width
