"""Parameters that every tp rank holds whole, because their output is between regions.

Decides: their initial values, and that tables do not decay unless embeddings do.
Relies on: `parameter_segments` for the kind of a tp rank's gradient: complete, or one term of a
sum.
Leaves: layers that are cut over tp to `linear`.

Legend: n tokens of this rank, D width.
"""

from dataclasses import replace

import torch.nn.functional as F
from torch import Tensor

from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.parameter_segments import Segment, SegmentedModule, replicated


def table_segment(context: ParallelContext, *shape: int) -> Segment:
    """Return an embedding that every tp rank holds whole, for tokens between regions."""
    table = replicated(
        "weight",
        shape,
        context.token_grad,
        counted=context.counts,
        std=shape[-1] ** -0.5,
        decay=False,
    )
    return replace(table, embedding=True)


class WholeTable(SegmentedModule):
    """A table of vectors: places [n] -> [n, D]."""

    def __init__(self, context: ParallelContext, rows: int, width: int) -> None:
        super().__init__()
        self.num_rows = rows
        self.declare("weight", table_segment(context, rows, width), dtype=context.dtype)

    def __len__(self) -> int:
        return self.num_rows

    def forward(self, places_n: Tensor) -> Tensor:
        """Return the vectors at these places."""
        return F.embedding(places_n, self.weight)


class WholeLinear(SegmentedModule):
    """One linear map per token: [n, inputs] -> [n, outputs]."""

    def __init__(
        self, context: ParallelContext, inputs: int, outputs: int, *, bias: bool = True
    ) -> None:
        super().__init__()
        weight = replicated(
            "weight",
            (outputs, inputs),
            context.token_grad,
            counted=context.counts,
            std=inputs**-0.5,
        )
        self.declare("weight", weight, dtype=context.dtype)
        if bias:
            segment = replicated(
                "bias",
                (outputs,),
                context.token_grad,
                counted=context.counts,
                init="zeros",
                decay=False,
            )
            self.declare("bias", segment, dtype=context.dtype)
        else:
            self.bias = None

    def forward(self, x_n: Tensor) -> Tensor:
        """Return the map of each token."""
        return F.linear(x_n, self.weight, self.bias)
