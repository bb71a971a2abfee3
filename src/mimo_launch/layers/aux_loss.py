"""Auxiliary losses of layers in the middle of a model.

Decides: that such a loss starts its own backward at its layer, on every pipeline stage.
Relies on: every reduction of gradients being a sum.
Leaves: computing the losses to the layers that add them.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


class AuxLoss:
    """The sum of the auxiliary losses of a step, on the device."""

    def __init__(self, device: torch.device) -> None:
        self.total = torch.zeros((), dtype=torch.float64, device=device)

    def clear(self) -> None:
        """Begin a step."""
        self.total.zero_()

    def add(self, loss: Tensor) -> None:
        """Add a loss whose backward has started."""
        self.total += loss


@dataclass(frozen=True, slots=True)
class RoutingContext:
    """What experts need of a microbatch to balance their load.

    `shares` [batch, S] are 1/T for each of the T tokens of a sequence, 0 for its padding; `loss`
    adds up the balance losses.
    """

    shares: Tensor
    loss: AuxLoss


class _AddAuxLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, loss: Tensor, total: AuxLoss) -> Tensor:
        ctx.total = total
        ctx.save_for_backward(loss)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        (loss,) = ctx.saved_tensors
        # Not in the forward, which runs twice where activations are recomputed.
        ctx.total.add(loss)
        return grad, torch.ones_like(loss), None


def add_aux_loss(x: Tensor, loss: Tensor, total: AuxLoss) -> Tensor:
    """Return x; its backward also starts that of a scalar loss, and adds the loss to `total`.

    So the loss need not travel to the last stage: every reduction is a sum.
    """
    out: Tensor = _AddAuxLoss.apply(x, loss, total)  # type: ignore[no-untyped-call]
    return out
