"""Linear maps that clip what they read and what they give, as in the tower of Gemma 4.

Decides: where clips are, and how several maps share an input.
Relies on: `linear` for the maps.
Leaves: the bounds' values to the folder that weights come from.
Source: `transformers` 5.24, models/gemma4, `Gemma4ClippableLinear`.

Legend: N tokens of a region, n tokens of this tp rank, D width, F features.
"""

import torch
from torch import Tensor

from mimo_launch.kinds.clipped_shapes import ClippedColumnsShape, ClippedShape
from mimo_launch.layers.dropout import Draws
from mimo_launch.layers.linear import ColumnLinear, RegionInputs, RowLinear
from mimo_launch.layers.shaped_layer import ShapedLayer


class Clipped(ShapedLayer[ClippedShape]):
    """One map between two clips: [N, D] -> [N, F]."""

    input_min: Tensor
    input_max: Tensor
    output_min: Tensor
    output_max: Tensor
    inside: ColumnLinear | RowLinear

    def forward(self, x_ND: Tensor, draws: Draws | None = None) -> Tensor:
        """Return the map of clipped tokens, clipped after any sum over tp."""
        out = self.inside(clipped(x_ND, self.input_min, self.input_max), draws)
        return clipped(out, self.output_min, self.output_max)


class ClippedColumns(RegionInputs[ClippedColumnsShape]):
    """Maps that share an input, each with its own clips: [N, D] -> [N, F]."""

    def forward(self, x_ND: Tensor, draws: Draws | None = None) -> Tensor:
        """Return this rank's features of all maps, concatenated."""
        maps = (getattr(self, each.name) for each in self.shape.outputs)
        return torch.cat([each(x_ND, draws) for each in maps], dim=1)


def clipped(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return x between bounds, which are rounded to its dtype; outside, its gradient is 0."""
    return torch.clamp(x, low.to(x.dtype), high.to(x.dtype))
