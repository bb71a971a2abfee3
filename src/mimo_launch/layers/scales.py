"""Small weights: layer scale, attention sinks, a gate of tokens.

Decides: the kind of each gradient.
Relies on: `parallel_context` for compiled passes.
Leaves: what they multiply or join to `attention` and `models`.

Legend: N tokens, D width.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.parameter_segments import SegmentedModule, replicated, sharded
from mimo_launch.layers.pointwise import widened


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
