"""Multi-token prediction: a block behind the last layer for each further token.

Decides: what a depth reads; that all of it is computed again where activations are recomputed.
Relies on: `transformer_block`; the embedding and the output layer of `language_model`.
Leaves: tokens and labels further ahead to `runtime.tokens_ahead`, losses to `language_model`.
Source: DeepSeek-V3 (arXiv:2412.19437, section 2.2). As in its published weights, the embedding
stands before the state in the product, and a state is that behind the norm in front of a head.

Legend: n tokens of this tp rank, N those of its replica's cp rank, D width.
"""

import torch
from torch import Tensor, nn

from mimo_launch.layers.linear import RowLinear
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.recompute import recomputed
from mimo_launch.layers.sequence_contexts import SequenceContext
from mimo_launch.models.transformer_block import Block, BlockShape, norm_of


class MtpDepth(nn.Module):
    """One depth: [n, D] of the depth before and of embeddings -> [n, D] for the output layer."""

    def __init__(self, context: ParallelContext, shape: BlockShape, *, recompute: bool) -> None:
        super().__init__()
        self.context, self.recompute = context, recompute
        self.token_norm = norm_of(context, shape)
        self.hidden_norm = norm_of(context, shape)
        self.part = context.part(2 * shape.width)
        self.project = RowLinear(context, "project", 2 * shape.width, shape.width, bias=False)
        self.block = Block(context, shape, recompute=False)
        self.norm = norm_of(context, shape)

    def forward(self, x_nD: Tensor, token_nD: Tensor, sequences: SequenceContext) -> Tensor:
        """Return the state of each token, from that of the depth before and a token ahead."""
        if not self.recompute:
            return self._compute(x_nD, token_nD, sequences)
        out: Tensor = recomputed(self._compute, x_nD, token_nD, sequences)
        return out

    def _compute(self, x_nD: Tensor, token_nD: Tensor, sequences: SequenceContext) -> Tensor:
        both = torch.cat([self.token_norm(token_nD), self.hidden_norm(x_nD)], dim=1)
        # Of its inputs, each tp rank multiplies a part.
        mine = self.context.enter(both)[:, self.part.start : self.part.stop]
        out: Tensor = self.norm(self.block(self.project(mine), sequences))
        return out
