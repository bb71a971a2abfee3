"""Multi-token prediction: a block after the last layer for each further token.

Decides: what a depth reads; that with recomputation of activations, the whole depth is recomputed.
Relies on: `transformer_block`; the embedding and the output layer of `language_model`.
Leaves: tokens and labels further ahead to `language_input`, and losses to `language_model`.
Source: DeepSeek-V3 (arXiv:2412.19437, section 2.2). As in its published weights, the embedding
comes before the state in the product's input, and the state is taken after the norm that precedes a
head.

Legend: n tokens of this tp rank, N tokens of its replica's cp rank, D width.
"""

import torch
from torch import Tensor

from mimo_launch.kinds.block_shapes import DepthShape
from mimo_launch.layers.linear import RowLinear
from mimo_launch.layers.norms import Norm
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.recompute import recomputed
from mimo_launch.layers.sequence_contexts import SequenceContext
from mimo_launch.layers.shaped_layer import ShapedLayer
from mimo_launch.models.transformer_block import Block


class MtpDepth(ShapedLayer[DepthShape]):
    """One depth: [n, D] from the depth before and embeddings -> [n, D] for the output layer."""

    token_norm: Norm
    hidden_norm: Norm
    project: RowLinear
    block: Block
    norm: Norm

    def __init__(self, context: ParallelContext, shape: DepthShape, *, recompute: bool) -> None:
        super().__init__(context, shape)
        self.recompute, self.part = recompute, context.part(2 * shape.block.width)

    def forward(self, x_nD: Tensor, token_nD: Tensor, sequences: SequenceContext) -> Tensor:
        """Return each token's state, from its state at the depth before and the token ahead."""
        if not self.recompute:
            return self._compute(x_nD, token_nD, sequences)
        out: Tensor = recomputed(self._compute, x_nD, token_nD, sequences)
        return out

    def _compute(self, x_nD: Tensor, token_nD: Tensor, sequences: SequenceContext) -> Tensor:
        both = torch.cat([self.token_norm(token_nD), self.hidden_norm(x_nD)], dim=1)
        # Each tp rank multiplies its part of the input features.
        mine = self.context.enter(both)[:, self.part.start : self.part.stop]
        out: Tensor = self.norm(self.block(self.project(mine), sequences))
        return out
