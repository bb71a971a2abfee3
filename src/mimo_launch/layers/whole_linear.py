"""Parameters that every tp rank holds whole, because their output is between regions.

Decides: nothing.
Relies on: `kinds.shapes` for how they are drawn and summed.
Leaves: layers that are cut over tp to `linear`.

Legend: n tokens of this rank, D width.
"""

import torch.nn.functional as F
from torch import Tensor

from mimo_launch.kinds.shapes import OneShape, WholeShape
from mimo_launch.layers.shaped_layer import ShapedLayer


class WholeTable(ShapedLayer[OneShape]):
    """A table of vectors: places [n] -> [n, D]."""

    def __len__(self) -> int:
        return self.shape.weight.shape[0]

    def forward(self, places_n: Tensor) -> Tensor:
        """Return the vectors at these places."""
        return F.embedding(places_n, self.weight)


class WholeLinear(ShapedLayer[WholeShape]):
    """One linear map per token: [n, inputs] -> [n, outputs]."""

    def forward(self, x_n: Tensor) -> Tensor:
        """Return the map of each token."""
        return F.linear(x_n, self.weight, self.bias)
