"""Parameters that every tp rank holds whole, because their output is between regions.

Decides: nothing.
Relies on: `kinds.shapes` for how they are drawn and summed.
Leaves: layers that are cut over tp to `linear`.

Legend: n tokens of this rank, D width.
"""

import torch.nn.functional as F
from torch import Tensor

from mimo_launch.kinds.shapes import WholeShape
from mimo_launch.kinds.weights import LayerShape
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.parameter_segments import SegmentedModule


class WholeTable(SegmentedModule):
    """A table of vectors: places [n] -> [n, D]."""

    def __init__(self, context: ParallelContext, shape: LayerShape) -> None:
        super().__init__()
        context.declare(self, shape)

    def __len__(self) -> int:
        return self.segments["weight"][0].shape[0]

    def forward(self, places_n: Tensor) -> Tensor:
        """Return the vectors at these places."""
        return F.embedding(places_n, self.weight)


class WholeLinear(SegmentedModule):
    """One linear map per token: [n, inputs] -> [n, outputs]."""

    def __init__(self, context: ParallelContext, shape: WholeShape) -> None:
        super().__init__()
        context.declare(self, shape)

    def forward(self, x_n: Tensor) -> Tensor:
        """Return the map of each token."""
        return F.linear(x_n, self.weight, self.bias)
