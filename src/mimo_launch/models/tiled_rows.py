"""Rows of tiled images: each is a projected row, an average of up to four, or a learned row.

Decides: the order of rows; the patches that each is made from, at most four; that every rank makes
its own rows from the projected patches of all ranks.
Relies on: `kinds.tiles` for the number of rows.
Leaves: the choice of a rank's rows to `layout.replica_views`.

Legend: n rows of patches of this rank (each of one patch, or of a square of patches), M those of
all ranks of a replica, r rows made here, L width of a row before or after the projector.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mimo_launch.comm.async_copies import to_device
from mimo_launch.comm.autograd_collectives import gather_tokens
from mimo_launch.kinds.shapes import OneShape
from mimo_launch.kinds.tiles import Frame, IndicatorRule, Shown, TileRule, Tiling
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.shaped_layer import ShapedLayer
from mimo_launch.layout.replica_views import EncoderView
from mimo_launch.models.patches import parts_held

# Mark learned rows among the places of patches: of a line, and before a last whole image. Further
# ones of other rules count on below the first.
NEWLINE, SEPARATOR = -1, -2


Places = npt.NDArray[np.int64]
Shares = npt.NDArray[np.float64]


def row_patches(rule: TileRule, shown: Shown) -> tuple[Places, Shares]:
    """Return the patches that each row of an image is made from, and their weights, [rows, 4].

    Patches are numbered through all tiles. Learned rows have `NEWLINE` and `SEPARATOR`.
    """
    if isinstance(rule, IndicatorRule):
        return _single(np.array(rule.order(shown)))
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
    if rule.whole_last:
        lines = np.pad(whole.reshape(rule.height, -1), ends[:2], constant_values=NEWLINE)
        last, one = _single(np.append(SEPARATOR, lines))
        return (
            np.concatenate([found.reshape(-1, 4), last]),
            np.concatenate([shares.reshape(-1, 4), one]),
        )
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


@dataclass(frozen=True, slots=True)
class RowSources:
    """The patches that make up rows, and their weights, [r, sources]; from M on, learned rows."""

    places: Tensor
    weights: Tensor


class Separator(ShapedLayer[OneShape]):
    """The learned row before a whole image that comes last."""

    def forward(self) -> Tensor:
        """Return the row, [L]."""
        return self.weight


class TiledRows(ShapedLayer[OneShape]):
    """Makes rows from patches; holds the learned row of a line, or several learned rows."""

    def forward(
        self, patches_nL: Tensor, sources: RowSources, separator_L: Tensor | None = None
    ) -> Tensor:
        """Return the rows [r, L], of patches before or after the projector.

        Ranks: collective over cp, and with sequence parallelism also over tp. Gradient: a patch
        gets the sum over all ranks that made rows from it.
        """
        if self.context.sequence_parallel:
            patches_nL = gather_tokens(patches_nL, self.context.tp)
        patches_ML = gather_tokens(patches_nL, self.context.cp)
        learned_L = self.weight.view(-1, patches_ML.shape[1])
        if separator_L is not None:
            learned_L = torch.cat([learned_L, separator_L[None]])
        all_ML = torch.cat([patches_ML, learned_L.to(patches_ML.dtype)])
        if sources.places.shape[1] == 1:
            return all_ML[sources.places[:, 0]]
        rows = [
            all_ML[places] * weights[:, None]
            for places, weights in zip(sources.places.T, sources.weights.T, strict=True)
        ]
        return torch.stack(rows).sum(dim=0)


def row_sources(view: EncoderView, context: ParallelContext) -> RowSources | None:
    """Return the sources of the rows that this rank makes of tiled images; None without tiles.

    Padding rows of the list use the learned row; no rank reads them.
    """
    if (tiles := view.module.tiles) is None:
        return None
    tp = context.tp.index if context.sequence_parallel else 0
    held = len(view.held(0)) // view.module.patches_per_row
    made, num_patches = view.made(context.cp.index, tp), held * context.cp.size
    places = np.full((len(made), 4), num_patches, dtype=np.int64)
    weights = np.tile([1.0, 0, 0, 0], (len(made), 1))
    patches = (tiles.num_tiles(image.shown) * tiles.patches for image in view.images)
    first_patches = list(accumulate(patches, initial=0))
    for number, here, part in parts_held((image.rows for image in view.images), made):
        found, shares = (each[part] for each in row_patches(tiles, view.images[number].shown))
        learned = num_patches + NEWLINE - found
        places[here] = np.where(found <= NEWLINE, learned, first_patches[number] + found)
        weights[here] = shares
    used = 4 if weights[:, 1:].any() else 1
    shared = to_device(weights[:, :used].copy(), context.device).to(context.compute_dtype)
    return RowSources(to_device(places[:, :used].copy(), context.device), shared)
