"""Rows of tiled images: each is a projected patch, an average of up to four, or the learned row.

Decides: that every rank makes its own rows from the projected patches of all ranks.
Relies on: `tile_sources` for the places of patches.
Leaves: the choice of a rank's rows to `layout.replica_views`.

Legend: n patches of this rank, M patches of all ranks of a replica, r rows made here, L width of
the language model.
"""

from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from mimo_launch.comm.async_copies import to_device
from mimo_launch.comm.autograd_collectives import gather_tokens
from mimo_launch.kinds.shapes import OneShape
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.shaped_layer import ShapedLayer
from mimo_launch.layout.replica_views import EncoderView
from mimo_launch.models.patches import parts_held
from mimo_launch.models.tile_sources import NEWLINE, row_patches


@dataclass(frozen=True, slots=True)
class RowSources:
    """The patches that make up rows, and their weights, [r, sources]; M is the learned row."""

    places: Tensor
    weights: Tensor


class TiledRows(ShapedLayer[OneShape]):
    """Makes rows from patches; holds the learned row."""

    def forward(self, patches_nL: Tensor, sources: RowSources) -> Tensor:
        """Return the rows [r, L].

        Ranks: collective over cp, and with sequence parallelism also over tp. Gradient: a patch
        gets the sum over all ranks that made rows from it.
        """
        if self.context.sequence_parallel:
            patches_nL = gather_tokens(patches_nL, self.context.tp)
        patches_ML = gather_tokens(patches_nL, self.context.cp)
        all_ML = torch.cat([patches_ML, self.weight[None].to(patches_ML.dtype)])
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
    made, num_patches = view.made(context.cp.index, tp), len(view.held(0)) * context.cp.size
    places = np.full((len(made), 4), num_patches, dtype=np.int64)
    weights = np.tile([1.0, 0, 0, 0], (len(made), 1))
    patches = (tiles.num_tiles(image.shown) * tiles.patches for image in view.images)
    first_patches = list(accumulate(patches, initial=0))
    for number, here, part in parts_held((image.rows for image in view.images), made):
        found, shares = (each[part] for each in row_patches(tiles, view.images[number].shown))
        places[here] = np.where(found == NEWLINE, num_patches, first_patches[number] + found)
        weights[here] = shares
    used = 4 if weights[:, 1:].any() else 1
    shared = to_device(weights[:, :used].copy(), context.device).to(context.compute_dtype)
    return RowSources(to_device(places[:, :used].copy(), context.device), shared)
