"""xIELU, the activation of Apertus, with two learned numbers for each MLP (arXiv:2411.13010).

Decides: its maths in at least fp32, and its gradients from its input alone: autograd would keep
four times as much.
Relies on: `ParallelContext.fused`, which runs each direction as one pass over memory on GPUs.
Leaves: the width that it acts on, a share of each tp rank, to `models.mlp`.

Legend: N tokens, f features of this rank.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mimo_launch.kinds.mlp_shapes import XieluShape
from mimo_launch.layers.pointwise import Fused, widened
from mimo_launch.layers.shaped_layer import ShapedLayer


def xielu(x_Nf: Tensor, alpha_p: Tensor, alpha_n: Tensor, beta: Tensor, eps: Tensor) -> Tensor:
    """Return the xIELU of x by its numbers, [1] each, in the dtype of x.

    It is a x^2 + beta x above 0, with a = softplus(alpha_p), and b (expm1(min(x, eps)) - x) +
    beta x elsewhere, with b = beta + softplus(alpha_n).
    """
    x, above, below = widened(x_Nf), _positive(alpha_p), widened(beta) + _positive(alpha_n)
    bent = torch.where(x > 0, above * x * x, below * (torch.expm1(torch.minimum(x, eps)) - x))
    return (bent + beta * x).to(x_Nf.dtype)


def gradients(
    x_Nf: Tensor, grad_Nf: Tensor, alpha_p: Tensor, alpha_n: Tensor, beta: Tensor, eps: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of x, of `alpha_p` and of `alpha_n`, each in its dtype."""
    x, grad, nothing = widened(x_Nf), widened(grad_Nf), torch.zeros_like(widened(eps))
    above, below, is_above = _positive(alpha_p), widened(beta) + _positive(alpha_n), x > 0
    bent = torch.where(x < eps, torch.exp(x), nothing) - 1
    slope = torch.where(is_above, 2 * above * x, below * bent) + beta
    depth = torch.expm1(torch.minimum(x, eps)) - x
    of_above = torch.where(is_above, grad * x * x, nothing).sum() * widened(alpha_p).sigmoid()
    of_below = torch.where(is_above, nothing, grad * depth).sum() * widened(alpha_n).sigmoid()
    return (grad * slope).to(x_Nf.dtype), of_above.to(alpha_p.dtype), of_below.to(alpha_n.dtype)


def _positive(number: Tensor) -> Tensor:
    return F.softplus(widened(number))


class _Xielu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, fused: Fused, *tensors: Tensor) -> Tensor:
        ctx.fused = fused
        ctx.save_for_backward(*tensors)
        out: Tensor = fused(xielu, *tensors)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x_Nf, *numbers = ctx.saved_tensors
        return (None, *ctx.fused(gradients, x_Nf, grads[0], *numbers), None, None)


class Xielu(ShapedLayer[XieluShape]):
    """The xIELU of one MLP: [N, f] -> [N, f]."""

    def forward(self, x_Nf: Tensor) -> Tensor:
        """Return the xIELU of x."""
        numbers = self.alpha_p, self.alpha_n, self.beta, self.eps
        out: Tensor = _Xielu.apply(self.context.fused, x_Nf, *numbers)  # type: ignore[no-untyped-call]
        return out
