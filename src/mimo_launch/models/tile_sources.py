"""The patches of a tiled image that each of its rows is made from.

Decides: the order of rows; that rows of many tiles and of frames average at most four patches.
Relies on: `kinds.tiles` for the number of rows.
Leaves: computing rows to `tiled_rows`.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt

from mimo_launch.kinds.tiles import Frame, Shown, TileRule, Tiling

# Marks the learned row among the places of patches.
NEWLINE = -1


Places = npt.NDArray[np.int64]
Shares = npt.NDArray[np.float64]


def row_patches(rule: TileRule, shown: Shown) -> tuple[Places, Shares]:
    """Return the patches that each row of an image is made from, and their weights, [rows, 4].

    Patches are numbered through all tiles. The learned row has `NEWLINE`.
    """
    whole = np.arange(rule.patches)
    if shown is None:
        return _single(np.append(whole, NEWLINE))
    if isinstance(shown, Frame):
        size = rule.height, rule.width
        found, shares = _averages(size, rule.pooled, lambda y, x: y[:, None] * rule.width + x)
        end, one = _single(np.full(int(shown.is_last), NEWLINE))
        return (
            np.concatenate([found.reshape(-1, 4), end]),
            np.concatenate([shares.reshape(-1, 4), one]),
        )
    size = shown.height, shown.width
    found, shares = _averages(size, rule.shrunk(shown), partial(_places, rule, shown))
    # A learned row after each line.
    ends = ((0, 0), (0, 1), (0, 0))
    found = np.pad(found, ends, constant_values=NEWLINE)
    shares = np.pad(shares, ends)
    shares[:, -1, 0] = 1
    first, one = _single(whole)
    return (
        np.concatenate([first, found.reshape(-1, 4)]),
        np.concatenate([one, shares.reshape(-1, 4)]),
    )


def _averages(
    size: tuple[int, int], number: tuple[int, int], places_of: Callable[[Places, Places], Places]
) -> tuple[Places, Shares]:
    """Return the patches and weights that `number` lines and columns average, [lines, columns, 4].

    The lines and columns are spread over a grid of `size` patches; `places_of` maps lines and
    columns of the grid to patch numbers.
    """
    places, weights = [], []
    for down, share_y in _neighbours(size[0], number[0]):
        for right, share_x in _neighbours(size[1], number[1]):
            places.append(places_of(down, right))
            weights.append(share_y[:, None] * share_x)
    return np.stack(places, axis=-1), np.stack(weights, axis=-1)


def _places(rule: TileRule, tiling: Tiling, down: Places, right: Places) -> Places:
    """Return the numbers of the patches at lines and columns of the image area of the tiles."""
    top = (tiling.tall * rule.height - tiling.height) // 2
    left = (tiling.wide * rule.width - tiling.width) // 2
    tile_y, y = np.divmod(top + down[:, None], rule.height)
    tile_x, x = np.divmod(left + right, rule.width)
    tile = 1 + tile_y * tiling.wide + tile_x
    found: Places = tile * rule.patches + y * rule.width + x
    return found


def _single(places: Places) -> tuple[Places, Shares]:
    """Return places as rows of one source each."""
    return np.repeat(places[:, None], 4, axis=1), np.tile([1.0, 0, 0, 0], (len(places), 1))


def _neighbours(size: int, number: int) -> list[tuple[Places, Shares]]:
    """Return the two neighbours, with their shares, of each of `number` even steps through `size`.

    Steps run between centres, as in `torch.nn.functional.interpolate`.
    """
    at = np.maximum((np.arange(number) + 0.5) * (size / number) - 0.5, 0)
    before = np.floor(at).astype(np.int64)
    share = at - before
    return [(before, 1 - share), (np.minimum(before + 1, size - 1), share)]
