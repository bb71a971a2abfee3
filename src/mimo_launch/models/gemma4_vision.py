"""Layers of the tower of Gemma 4: learned rows and columns, and the norm of rows.

Decides: the vectors of places, and what makes rows of patches.
Relies on: nothing.
Leaves: the rest to `vision_encoder`.
Source: `transformers` 5.24, models/gemma4.

Legend: n patches or rows of this rank, D width.
"""

import torch.nn.functional as F
from torch import Tensor

from mimo_launch.kinds.gemma4_vision import PlacesShape, RowNormShape
from mimo_launch.layers.pointwise import rms_norm, widened
from mimo_launch.layers.shaped_layer import ShapedLayer


class LearnedPlaces(ShapedLayer[PlacesShape]):
    """A vector for each column and one for each row: [n, 2] -> [n, D]."""

    def forward(self, places_n2: Tensor) -> Tensor:
        """Return the sum of both vectors of each patch, given its (y, x)."""
        rows_n2 = places_n2.flip(1)
        rows_n2[:, 1] += self.shape.places
        return F.embedding(rows_n2, self.weight).sum(dim=1)


class RowNorm(ShapedLayer[RowNormShape]):
    """Rows times the root of their width, standardized, over their root mean square."""

    def forward(self, rows_nD: Tensor) -> Tensor:
        """Return the rows [n, D], computed in at least fp32."""
        numbers = self.bias, self.weight, self.shape.eps
        normed: Tensor = self.context.fused(_normed, rows_nD, *numbers)
        return normed


def _normed(rows_nD: Tensor, bias_D: Tensor | None, weight_D: Tensor | None, eps: float) -> Tensor:
    wide = widened(rows_nD) * rows_nD.shape[1] ** 0.5
    if bias_D is not None and weight_D is not None:
        wide = (wide - bias_D.to(wide.dtype)) * weight_D.to(wide.dtype)
    return rms_norm(wide, None, eps).to(rows_nD.dtype)
