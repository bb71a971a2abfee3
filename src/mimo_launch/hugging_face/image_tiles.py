"""Which tiles an image of some size is cut into, by the rule of LLaVA-OneVision.

Decides: the grid of an image, the size that it has on that grid, and the patches that show it.
Relies on: `kinds.tiles` for what tiles are.
Leaves: pixels to `data.webdataset.decode_media`, tiles that are images by themselves to
`cut_rules`.

Source: arXiv:2310.03744, section 3.4, and `transformers` 5.23, models/llava_onevision.
"""

import math
from collections.abc import Iterable

from mimo_launch.hugging_face.resize_rules import MAX_ASPECT, ImageTooThin
from mimo_launch.kinds.tiles import TileRule, Tiling

Size = tuple[int, int]


def best_grid(height: int, width: int, grids: Iterable[Size]) -> Size:
    """Return the grid, in pixels, that keeps most pixels of an image and wastes fewest of its own.

    Of equal ones the first. Raises: ImageTooThin.
    """
    if max(height, width) > MAX_ASPECT * min(height, width):
        raise ImageTooThin(f"{width} x {height} pixels have sides of more than {MAX_ASPECT} to 1")

    def kept_and_spare(grid: Size) -> tuple[int, int]:
        scale = min(grid[0] / height, grid[1] / width)
        kept = min(int(height * scale) * int(width * scale), height * width)
        return kept, kept - grid[0] * grid[1]

    return max(grids, key=kept_and_spare)


def fitted(height: int, width: int, grid: Size) -> Size:
    """Return height and width of an image that is made as large as a grid, in pixels."""
    down, right = grid[0] / height, grid[1] / width
    if right < down:
        return min(math.ceil(height * right), grid[0]), grid[1]
    return grid[0], min(math.ceil(width * down), grid[1])


def tiling(height: int, width: int, grid: Size, side: int, rule: TileRule) -> Tiling:
    """Return the tiles of an image on a grid in pixels, and which of their patches show it."""
    tall, wide = grid[0] // side, grid[1] // side
    lines, columns = tall * rule.height, wide * rule.width
    # Rounded before it is cut off, so that no error of a division costs a line.
    if width / height > columns / lines:
        shown = int(round(height * (columns / width), 7))
        return Tiling(tall, wide, lines - (lines - shown) // 2 * 2, columns)
    shown = int(round(width * (lines / height), 7))
    return Tiling(tall, wide, lines, columns - (columns - shown) // 2 * 2)
