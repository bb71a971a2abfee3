"""Small weights: layer scale, RMSNorm of a width cut over tp, attention sinks, a gate of tokens.

Decides: where the sum of squares crosses the tp group, and the kind of each gradient.
Relies on: `parallel_context` for compiled passes.
Leaves: norms of whole widths to `linear`.

Legend: N tokens, D width; h heads of size K of this rank.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from mimo_launch.comm.autograd_collectives import enter_tp, exit_tp
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.parameter_segments import SegmentedModule, replicated, sharded
from mimo_launch.layers.pointwise import widened


def _squares(x_NhK: Tensor) -> Tensor:
    """Return the sum of squares of each token, [N, 1]."""
    return widened(x_NhK).flatten(1).square().sum(dim=1, keepdim=True)


def _scaled(x_NhK: Tensor, scale_N1: Tensor, weight_D: Tensor) -> Tensor:
    """Return x times a factor per token and a weight per channel."""
    wide = widened(x_NhK).flatten(1) * scale_N1 * weight_D.to(scale_N1.dtype)
    return wide.to(x_NhK.dtype).view(x_NhK.shape)


class WideNorm(SegmentedModule):
    """RMSNorm over all heads of a token together, which tp ranks share: [N, h, K] -> [N, h, K]."""

    def __init__(self, context: ParallelContext, width: int, *, eps: float) -> None:
        super().__init__()
        self.context, self.eps, self.width = context, eps, width
        weight = sharded("weight", (width,), 0, context.part(width), init="ones", decay=False)
        self.declare("weight", weight, dtype=context.dtype)

    def forward(self, x_NhK: Tensor) -> Tensor:
        """Return x over the root mean square of the heads of all tp ranks, times the weight."""
        tp = self.context.tp
        # Every rank uses the sum, so its gradient is a sum over ranks, too.
        squares = enter_tp(exit_tp(self.context.fused(_squares, x_NhK), tp), tp)
        scale = (squares / self.width + self.eps).rsqrt()
        return self.context.fused(_scaled, x_NhK, scale, self.weight)


class LayerScale(SegmentedModule):
    """A weight per channel of what a layer adds to the stream: [n, D] -> [n, D]."""

    def __init__(self, context: ParallelContext, width: int, start: float) -> None:
        super().__init__()
        weight = replicated(
            "weight",
            (width,),
            context.token_grad,
            counted=context.counts,
            std=start,
            init="constant",
            decay=False,
        )
        self.declare("weight", weight, dtype=context.dtype)

    def forward(self, x_nD: Tensor) -> Tensor:
        """Return x times the weight."""
        return torch.mul(x_nD, self.weight)


class Sinks(SegmentedModule):
    """A logit per head [h] that joins the denominator of a softmax (arXiv:2309.17453)."""

    def __init__(self, context: ParallelContext, heads: int) -> None:
        super().__init__()
        logits = sharded("weight", (heads,), 0, context.part(heads), init="zeros", decay=False)
        self.declare("weight", logits, dtype=context.dtype)

    def forward(self) -> Tensor:
        """Return the logits of this rank's heads."""
        return self.weight


def _gated(x_ND: Tensor, gate_N1: Tensor) -> Tensor:
    """Return x times the sigmoid of a number per token."""
    return (widened(x_ND) * torch.sigmoid(widened(gate_N1))).to(x_ND.dtype)


class TokenGate(SegmentedModule):
    """A linear map of each token to one number, whose sigmoid is a factor: [n, D] -> [n, D]."""

    def __init__(self, context: ParallelContext, width: int) -> None:
        super().__init__()
        self.context = context
        weight = replicated(
            "weight", (1, width), context.token_grad, counted=context.counts, std=width**-0.5
        )
        self.declare("weight", weight, dtype=context.dtype)

    def forward(self, x_nD: Tensor, change_nD: Tensor) -> Tensor:
        """Return what is to be added to the stream, times the factors made of x."""
        return self.context.fused(_gated, change_nD, F.linear(x_nD, self.weight))
