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
from mimo_launch.kinds.shapes import NormShape, OneShape, WideNormShape
from mimo_launch.layers.pointwise import (
    add_layer_norm,
    add_rms_norm,
    layer_norm,
    rms_norm,
    widened,
)
from mimo_launch.layers.shaped_layer import ShapedLayer

# A sum of more numbers is compiled together with the norm after it: the GPU then saves more in
# reading and writing than the host spends on the call.
MOST_TO_ADD_ALONE = 1 << 24


def _squares(x_NhK: Tensor) -> Tensor:
    """Return the sum of squares of each token, [N, 1]."""
    return widened(x_NhK).flatten(1).square().sum(dim=1, keepdim=True)


def _scaled(x_NhK: Tensor, scale_N1: Tensor, weight_D: Tensor, offset: float) -> Tensor:
    """Return x times a factor per token and a weight per channel plus an offset."""
    weight = weight_D.to(scale_N1.dtype)
    wide = widened(x_NhK).flatten(1) * scale_N1 * (weight + offset if offset else weight)
    return wide.to(x_NhK.dtype).view(x_NhK.shape)


class WideNorm(ShapedLayer[WideNormShape]):
    """RMSNorm over all heads of a token, across tp ranks: [N, h, K] -> [N, h, K]."""

    def forward(self, x_NhK: Tensor) -> Tensor:
        """Return x over the root mean square of the heads of all tp ranks, times the weight."""
        tp = self.context.tp
        # Every rank uses the sum, so its gradient is also a sum over ranks.
        squares = enter_tp(exit_tp(self.context.fused(_squares, x_NhK), tp), tp)
        counted = self.shape.width * self.shape.scale.copies(tp.size)
        scale = (squares / counted + self.shape.eps).rsqrt()
        return self.context.fused(_scaled, x_NhK, scale, self.weight, self.shape.offset)


class Norm(ShapedLayer[NormShape]):
    """RMSNorm or LayerNorm over the width, computed in at least fp32."""

    def forward(self, x: Tensor) -> Tensor:
        """Return x normalised over its last dimension."""
        fused, eps, offset = self.context.fused, self.shape.eps, self.shape.offset
        if self.shape.kind != "rms":
            return fused(layer_norm, x, self.weight, self.bias, eps)
        if self._has_kernel(x):
            return F.rms_norm(x, self.weight.shape, self.weight, eps)
        return fused(rms_norm, x, self.weight, eps, offset)

    def after(self, x: Tensor, change: Tensor) -> tuple[Tensor, Tensor]:
        """Return x plus `change`, and the norm of the sum."""
        fused, eps, offset = self.context.fused, self.shape.eps, self.shape.offset
        if self.shape.kind != "rms":
            return fused(add_layer_norm, x, change, self.weight, self.bias, eps)
        if self._has_kernel(x) and x.numel() <= MOST_TO_ADD_ALONE:
            total = x + change
            return total, self(total)
        return fused(add_rms_norm, x, change, self.weight, eps, offset)

    def _has_kernel(self, x: Tensor) -> bool:
        """Return whether torch has a kernel for this norm, to take in place of a compiled pass.

        Its sums are in fp32, and it starts in a third of the host's time. It is for GPUs, and for
        numbers of one type; that for LayerNorm takes a GPU twice as long as a compiled pass.
        """
        is_plain = x.is_cuda and self.shape.kind == "rms" and not self.shape.offset
        return is_plain and self.context.compiled and x.dtype == self.weight.dtype


class LayerScale(ShapedLayer[OneShape]):
    """A weight per channel on a layer's addition to the stream: [n, D] -> [n, D]."""

    def forward(self, x_nD: Tensor) -> Tensor:
        """Return x times the weight."""
        return torch.mul(x_nD, self.weight)


class LayerScalar(ShapedLayer[OneShape]):
    """A number that does not train, on the stream after a block: [n, D] -> [n, D]."""

    def forward(self, x_nD: Tensor) -> Tensor:
        """Return x times the number."""
        return x_nD * self.weight.to(x_nD.dtype)


class Sinks(ShapedLayer[OneShape]):
    """A logit per head [h] that joins the denominator of a softmax (arXiv:2309.17453)."""

    def forward(self) -> Tensor:
        """Return the logits of this rank's heads."""
        return self.weight


def _gated(x_ND: Tensor, gate_N1: Tensor) -> Tensor:
    """Return x times the sigmoid of one number per token."""
    return (widened(x_ND) * torch.sigmoid(widened(gate_N1))).to(x_ND.dtype)


class TokenGate(ShapedLayer[OneShape]):
    """A factor per token, the sigmoid of a linear map to one number: [n, D] -> [n, D]."""

    def forward(self, x_nD: Tensor, change_nD: Tensor) -> Tensor:
        """Return `change`, an addition to the stream, times the factors computed from x."""
        return self.context.fused(_gated, change_nD, F.linear(x_nD, self.weight))
