"""Which patches of an image in tiles each of its rows is made of.

Decides: the order of rows; that rows of many tiles are averages of four patches at most.
Relies on: `kinds.tiles` for the number of rows.
Leaves: computing rows to `tiled_rows`.
"""

import numpy as np
import numpy.typing as npt

from mimo_launch.kinds.tiles import TileRule, Tiling

# The mark of the learned row among the places of patches.
NEWLINE = -1


def row_patches(
    rule: TileRule, tiling: Tiling | None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Return the patches of an image that each row is made of, and their weights, [rows, 4].

    Patches are numbered through the tiles. A row that is learned has `NEWLINE`.
    """
    whole = np.arange(rule.patches)
    if tiling is None:
        return _single(np.append(whole, NEWLINE))
    lines, columns = rule.shrunk(tiling)
    places, weights = [], []
    for down, share_y in _neighbours(tiling.height, lines):
        for right, share_x in _neighbours(tiling.width, columns):
            places.append(_places(rule, tiling, down, right))
            weights.append(share_y[:, None] * share_x)
    # [lines, columns, 4], with a learned row behind each line.
    ends = ((0, 0), (0, 1), (0, 0))
    found = np.pad(np.stack(places, axis=-1), ends, constant_values=NEWLINE)
    shares = np.pad(np.stack(weights, axis=-1), ends)
    shares[:, -1, 0] = 1
    first, one = _single(whole)
    return (
        np.concatenate([first, found.reshape(-1, 4)]),
        np.concatenate([one, shares.reshape(-1, 4)]),
    )


def _places(
    rule: TileRule, tiling: Tiling, down: npt.NDArray[np.int64], right: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Return the numbers of the patches at some lines and columns of what shows the image."""
    top = (tiling.tall * rule.height - tiling.height) // 2
    left = (tiling.wide * rule.width - tiling.width) // 2
    tile_y, y = np.divmod(top + down[:, None], rule.height)
    tile_x, x = np.divmod(left + right, rule.width)
    tile = 1 + tile_y * tiling.wide + tile_x
    found: npt.NDArray[np.int64] = tile * rule.patches + y * rule.width + x
    return found


def _single(
    places: npt.NDArray[np.int64],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Return places as rows of one source each."""
    return np.repeat(places[:, None], 4, axis=1), np.tile([1.0, 0, 0, 0], (len(places), 1))


def _neighbours(
    size: int, number: int
) -> list[tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]]:
    """Return the two neighbours of each of `number` even steps through `size`, and their shares.

    Steps are between centres, as those of `torch.nn.functional.interpolate`.
    """
    at = np.maximum((np.arange(number) + 0.5) * (size / number) - 0.5, 0)
    before = np.floor(at).astype(np.int64)
    share = at - before
    return [(before, 1 - share), (np.minimum(before + 1, size - 1), share)]
