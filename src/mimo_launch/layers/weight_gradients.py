"""Matrix products whose weight gradients add up inside the product, in the type of the reduction.

Decides: where a step's weight gradients wait for their reduction.
Relies on: FSDP2 keeping an unsharded gradient per parameter between the backwards of a step, in the
type of its reduction (`FSDPParam.unsharded_accumulated_grad`).
Leaves: the reduction to FSDP2, the layers to `linear`.

Autograd would write each microbatch's gradient in the type of the activations, and FSDP2 would then
add it to the sum in another pass: 14 bytes of traffic for each weight and microbatch, where adding
in the product's last step needs 8. The sum is rounded to bf16 nowhere. Source: Megatron-LM's
gradient accumulation fusion (arXiv:2205.05198 describes its code base).
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule


class GradAccumulator:
    """The unsharded gradient of one parameter of FSDP2, between the backwards of a step."""

    def __init__(self, parameter: Any, group: Any) -> None:
        """`parameter` is FSDP2's own record of it, `group` of what is reduced with it."""
        self._parameter, self._group = parameter, group

    def add(self, grad_NF: Tensor, x_ND: Tensor) -> Tensor | None:
        """Add the gradient [F, D] of a weight that made [N, F] of x [N, D].

        Where this is the only backward of a step the gradient is returned instead, for autograd:
        FSDP2 reduces gradients of one type, and those of other layers have not been added up.
        """
        total = self._parameter.unsharded_accumulated_grad
        wide: torch.dtype = self._parameter.reduce_dtype
        if total is None and self._group.reduce_grads:
            return grad_NF.t() @ x_ND
        if total is None:
            self._parameter.unsharded_accumulated_grad = _product(grad_NF.t(), x_ND, wide)
        elif x_ND.is_cuda:
            torch.ops.aten.addmm.dtype_out(total, grad_NF.t(), x_ND, wide, out=total)
        else:
            total.addmm_(grad_NF.t().to(wide), x_ND.to(wide))
        return None


def _product(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a product in a wider type than that of its factors."""
    if a.is_cuda:
        return torch.mm(a, b, out_dtype=dtype)
    return a.to(dtype) @ b.to(dtype)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, gradients: GradAccumulator
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.gradients = gradients
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias, _ = ctx.needs_input_grad
        return (
            grad @ weight if of_x else None,
            ctx.gradients.add(grad, x) if of_weight else None,
            grad.sum(dim=0) if of_bias else None,
            None,
        )


def linear(
    x_ND: Tensor, weight_FD: Tensor, bias: Tensor | None, gradients: GradAccumulator | None
) -> Tensor:
    """Return x times the weight, [N, F]; the weight's gradient goes to `gradients`, if given.

    A weight that is not trained needs no x for the backward, so none is kept.
    """
    if gradients is None or not weight_FD.requires_grad:
        return F.linear(x_ND, weight_FD, bias)
    out: Tensor = _Linear.apply(x_ND, weight_FD, bias, gradients)  # type: ignore[no-untyped-call]
    return out


def accumulate_in_products(unit: FSDPModule) -> None:
    """Let the matrix products of an FSDP unit add up their weights' gradients themselves.

    For units that reduce in a wider type than they compute in, once per step.
    """
    group: Any = unit._get_fsdp_state()._fsdp_param_group
    for parameter in group.fsdp_params if group is not None else ():
        info = parameter._module_info
        owner: nn.Module = info.module
        if info.param_name == "weight" and hasattr(owner, "weight_gradients"):
            owner.weight_gradients = GradAccumulator(parameter, group)  # type: ignore[assignment]
