"""Images cut into tiles: which patches of the tiles are the rows that language reads.

Decides: the rows of an image: those of a tile that shows all of it, then, line by line, those of
the other tiles together, without what only pads them; how many there are at most; that a learned
row ends each line (LLaVA-OneVision, arXiv:2408.03326, section 3). A frame of a video is one tile,
of half its lines and columns; a learned row ends the video.
Relies on: nothing.
Leaves: cutting pixels to `data`, what each row is made of to `models.tile_sources`.
"""

import math
from dataclasses import dataclass, field

# Tiles are shrunk together where their sides are this much longer than those of the most.
_SLACK = 1.1


@dataclass(frozen=True, slots=True)
class Tiling:
    """The tiles behind the one that shows the whole image: `tall x wide` of them.

    Of all their patches together the `height x width` in the middle show the image.
    """

    tall: int
    wide: int
    height: int
    width: int


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame of a video: one tile; the learned row stands behind the last one."""

    is_last: bool


# How an image is shown; None is one tile, with the learned row behind it.
Shown = Tiling | Frame | None


@dataclass(frozen=True, slots=True)
class TileRule:
    """Height and width of a tile in patches, and how many tiles may keep all their rows.

    `side` is that of a tile in pixels, which may be more than its patches; `grids` are the grids of
    tiles into which an image may be cut, by height and width. No number of rows depends on them.
    """

    height: int
    width: int
    most: int | None
    side: int = field(repr=False)
    grids: tuple[tuple[int, int], ...] = field(repr=False)

    @property
    def patches(self) -> int:
        """Patches of a tile."""
        return self.height * self.width

    @property
    def pooled(self) -> tuple[int, int]:
        """Lines and columns of rows of a frame."""
        return math.ceil(self.height / 2), math.ceil(self.width / 2)

    def num_tiles(self, shown: Shown) -> int:
        """Return the number of tiles of an image; without others, one shows all of it."""
        return 1 + shown.tall * shown.wide if isinstance(shown, Tiling) else 1

    def num_rows(self, shown: Shown) -> int:
        """Return the number of rows of an image, learned ones included."""
        if shown is None:
            return self.patches + 1
        if isinstance(shown, Frame):
            return math.prod(self.pooled) + shown.is_last
        lines, columns = self.shrunk(shown)
        return self.patches + lines * (columns + 1)

    def shrunk(self, tiling: Tiling) -> tuple[int, int]:
        """Return the lines and columns of rows that are made of the patches of the tiles."""
        if self.most is not None:
            over = math.sqrt(tiling.height * tiling.width / (self.most * self.patches))
            if over > _SLACK:
                return int(tiling.height // over), int(tiling.width // over)
        return tiling.height, tiling.width
