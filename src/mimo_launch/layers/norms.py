"""Norms, and other small weights: layer scales, attention sinks, a gate on tokens.

Decides: where a norm cut over tp sums its squares over the tp group.
Relies on: `parallel_context` for compiled passes.
Leaves: the formulas of norms to `pointwise`; the use of scales and sinks to `attention` and
`models`.

Legend: N tokens, D width; h heads of size K of this rank.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from mimo_launch.comm.autograd_collectives import enter_tp, exit_tp
from mimo_launch.kinds.shapes import (
    NormShape,
    ScaleShape,
    SinksShape,
    TokenGateShape,
    WideNormShape,
)
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.parameter_segments import SegmentedModule
from mimo_launch.layers.pointwise import (
    add_layer_norm,
    add_rms_norm,
    layer_norm,
    rms_norm,
    widened,
)


def _squares(x_NhK: Tensor) -> Tensor:
    """Return the sum of squares of each token, [N, 1]."""
    return widened(x_NhK).flatten(1).square().sum(dim=1, keepdim=True)


def _scaled(x_NhK: Tensor, scale_N1: Tensor, weight_D: Tensor) -> Tensor:
    """Return x times a factor per token and a weight per channel."""
    wide = widened(x_NhK).flatten(1) * scale_N1 * weight_D.to(scale_N1.dtype)
    return wide.to(x_NhK.dtype).view(x_NhK.shape)


class WideNorm(SegmentedModule):
    """RMSNorm over all heads of a token, across tp ranks: [N, h, K] -> [N, h, K]."""

    def __init__(self, context: ParallelContext, shape: WideNormShape) -> None:
        super().__init__()
        self.context, self.eps, self.width = context, shape.eps, shape.width
        context.declare(self, shape)

    def forward(self, x_NhK: Tensor) -> Tensor:
        """Return x over the root mean square of the heads of all tp ranks, times the weight."""
        tp = self.context.tp
        # Every rank uses the sum, so its gradient is also a sum over ranks.
        squares = enter_tp(exit_tp(self.context.fused(_squares, x_NhK), tp), tp)
        scale = (squares / self.width + self.eps).rsqrt()
        return self.context.fused(_scaled, x_NhK, scale, self.weight)


class Norm(SegmentedModule):
    """RMSNorm or LayerNorm over the width, computed in at least fp32."""

    def __init__(self, context: ParallelContext, shape: NormShape) -> None:
        super().__init__()
        self.context, self.eps, self.offset = context, shape.eps, shape.offset
        context.declare(self, shape)

    def forward(self, x: Tensor) -> Tensor:
        """Return x normalised over its last dimension."""
        if self.bias is None:
            return self.context.fused(rms_norm, x, self.weight, self.eps, self.offset)
        return self.context.fused(layer_norm, x, self.weight, self.bias, self.eps)

    def after(self, x: Tensor, change: Tensor) -> tuple[Tensor, Tensor]:
        """Return x plus `change`, and the norm of the sum."""
        if self.bias is None:
            return self.context.fused(add_rms_norm, x, change, self.weight, self.eps, self.offset)
        return self.context.fused(add_layer_norm, x, change, self.weight, self.bias, self.eps)


class LayerScale(SegmentedModule):
    """A weight per channel on a layer's addition to the stream: [n, D] -> [n, D]."""

    def __init__(self, context: ParallelContext, shape: ScaleShape) -> None:
        super().__init__()
        context.declare(self, shape)

    def forward(self, x_nD: Tensor) -> Tensor:
        """Return x times the weight."""
        return torch.mul(x_nD, self.weight)


class Sinks(SegmentedModule):
    """A logit per head [h] that joins the denominator of a softmax (arXiv:2309.17453)."""

    def __init__(self, context: ParallelContext, shape: SinksShape) -> None:
        super().__init__()
        context.declare(self, shape)

    def forward(self) -> Tensor:
        """Return the logits of this rank's heads."""
        return self.weight


def _gated(x_ND: Tensor, gate_N1: Tensor) -> Tensor:
    """Return x times the sigmoid of one number per token."""
    return (widened(x_ND) * torch.sigmoid(widened(gate_N1))).to(x_ND.dtype)


class TokenGate(SegmentedModule):
    """A factor per token, the sigmoid of a linear map to one number: [n, D] -> [n, D]."""

    def __init__(self, context: ParallelContext, shape: TokenGateShape) -> None:
        super().__init__()
        self.context = context
        context.declare(self, shape)

    def forward(self, x_nD: Tensor, change_nD: Tensor) -> Tensor:
        """Return `change`, an addition to the stream, times the factors computed from x."""
        return self.context.fused(_gated, change_nD, F.linear(x_nD, self.weight))
