"""Losses that arise in the middle of a model and enter the gradient beside the main one.

Decides: that such a loss starts its own backward where it arose, on every pipeline stage.
Relies on: every reduction of gradients being a sum.
Leaves: the losses themselves to those who add them.
"""

from typing import Any

import torch
from torch import Tensor


class LossMeter:
    """Sum of the losses that enter the gradient beside the main one, on the device."""

    def __init__(self, device: torch.device) -> None:
        self.total = torch.zeros((), dtype=torch.float64, device=device)

    def clear(self) -> None:
        """Begin a step."""
        self.total.zero_()


class _AddLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, loss: Tensor, meter: LossMeter | None) -> Tensor:
        ctx.meter = meter
        ctx.save_for_backward(loss)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        (loss,) = ctx.saved_tensors
        # Here and not in the forward, which runs twice where activations are recomputed.
        if ctx.meter is not None:
            ctx.meter.total += loss
        return grad, torch.ones_like(loss), None


def add_loss(x: Tensor, loss: Tensor, meter: LossMeter | None) -> Tensor:
    """Return x; its backward also starts that of a scalar loss, and adds it to the meter.

    So a loss in the middle of a model needs no way to the last stage: every reduction is a sum.
    """
    out: Tensor = _AddLoss.apply(x, loss, meter)  # type: ignore[no-untyped-call]
    return out
