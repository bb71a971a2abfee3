"""Flags for numbers that are not finite, kept on the device and read only after a bad step.

Decides: how a rank records its own numbers before a sum mixes them with other ranks' numbers.
Relies on: NaN and infinity surviving every sum.
Leaves: gradients that FSDP2 reduces to `gradient_reduction`, naming the rank at fault to
`train.non_finite`.

A plain sum reads a tensor once, without a copy and without waiting for the device. Sums of finite
numbers can overflow, but the flags are read only when a step is already bad.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from mimo_launch.comm import torch_internals


def not_finite(named: Sequence[tuple[str, Tensor]]) -> list[str]:
    """Return the names of tensors that hold a NaN or an infinity. Waits for the device."""
    # A sum is the fastest look, on processors; that of finite numbers may overflow, too.
    suspects = _where_not(named, [tensor.sum() for _, tensor in named])
    if not suspects:
        return []
    largest = torch_internals.norms([tensor for _, tensor in suspects], math.inf)
    return [name for name, _ in _where_not(suspects, largest)]


def _where_not(
    named: Sequence[tuple[str, Tensor]], signs: Sequence[Tensor]
) -> list[tuple[str, Tensor]]:
    """Return the tensors whose sign is not finite."""
    if not named:
        return []
    fine = torch.stack([each.double() for each in signs]).isfinite().tolist()
    return [each for each, is_fine in zip(named, fine, strict=True) if not is_fine]


class FiniteFlag:
    """Whether everything shown since the last `clear` was finite."""

    def __init__(self, device: torch.device) -> None:
        self._sum = torch.zeros((), dtype=torch.float64, device=device)

    def clear(self) -> None:
        """Forget what was shown."""
        self._sum.zero_()

    def show(self, x: Tensor) -> None:
        """Look at a tensor."""
        self._sum.add_(x.detach().sum())

    def show_all(self, tensors: list[Tensor]) -> None:
        """Look at several tensors of one dtype."""
        if tensors:
            self._sum.add_(torch.stack(torch_internals.norms(tensors, 1)).sum())

    @property
    def value(self) -> Tensor:
        """A float64 scalar on the device, finite if all values shown are; later calls change it."""
        return self._sum
