"""The vocabulary, cut over tp: token embedding and output layer.

Decides: that its rows are cut as evenly as can be, and that each rank looks up its own words.
Relies on: `parallel_context` for the sum at the end of a look-up.
Leaves: the loss over parts of the vocabulary to `cross_entropy`.

Legend: N tokens, D width; lower case is this rank's share.
"""

from dataclasses import replace

import torch.nn.functional as F
from torch import Tensor

from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.parameter_segments import Segment, SegmentedModule, sharded
from mimo_launch.layers.weight_gradients import GradAccumulator, linear


class VocabEmbedding(SegmentedModule):
    """Token embedding with the vocabulary cut over tp as evenly as can be: [N] -> [n or N, D]."""

    def __init__(
        self,
        context: ParallelContext,
        vocab: int,
        width: int,
        *,
        std: float = 0.5,
        counted: bool = True,
    ) -> None:
        """`counted` is False on the second stage that holds a tied embedding."""
        super().__init__()
        self.context = context
        self.part = context.part(vocab)
        segment = sharded("weight", (vocab, width), 0, self.part, std=std, decay=False)
        segment = replace(segment, counted=counted, embedding=True)
        self.declare("weight", segment, dtype=context.dtype)

    def forward(self, ids_N: Tensor) -> Tensor:
        """Return the embeddings; each rank looks up its own ids, the rest are zero in the sum."""
        local = ids_N - self.part.start
        outside = (local < 0) | (local >= len(self.part))
        rows = F.embedding(local.masked_fill(outside, 0), self.weight)
        return self.context.leave(rows.masked_fill(outside.unsqueeze(1), 0))


class VocabHead(SegmentedModule):
    """Output layer with the vocabulary cut over tp: [N, D] -> this rank's logits [N, v]."""

    weight_gradients: GradAccumulator | None = None

    def __init__(self, context: ParallelContext, vocab: int, width: int) -> None:
        super().__init__()
        self.part = context.part(vocab)
        segment: Segment = sharded("weight", (vocab, width), 0, self.part, std=width**-0.5)
        self.declare("weight", segment, dtype=context.dtype)

    def forward(self, x_ND: Tensor) -> Tensor:
        """Return this rank's logits."""
        return linear(x_ND, self.weight, None, self.weight_gradients)
