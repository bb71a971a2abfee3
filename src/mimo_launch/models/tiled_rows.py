"""Rows of tiled images: each is a projected patch, an average of up to four, or the learned row.

Decides: that every rank makes its own rows from the projected patches of all ranks.
Relies on: `tile_sources` for the places of patches.
Leaves: the choice of a rank's rows to `runtime`.

Legend: n patches of this rank, M patches of all ranks of a replica, r rows made here, L width of
the language model.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mimo_launch.comm.autograd_collectives import gather_tokens
from mimo_launch.kinds.shapes import OneShape
from mimo_launch.layers.shaped_layer import ShapedLayer


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
