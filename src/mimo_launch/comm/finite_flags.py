"""Flags for numbers that are not finite, kept on the device and read only after a bad step.

Decides: how a rank records its own numbers before a sum mixes them with other ranks' numbers.
Relies on: NaN and infinity surviving every sum.
Leaves: naming the rank at fault to `train.non_finite`.

A plain sum reads a tensor once, without a copy and without waiting for the device. Sums of finite
numbers can overflow, but the flags are read only when a step is already bad.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributed import ProcessGroup, ReduceOp, Work
from torch.distributed.fsdp import FSDPModule

from mimo_launch.comm import torch_internals
from mimo_launch.comm.collectives import reduce_scatter_into


def not_finite(named: Sequence[tuple[str, Tensor]]) -> list[str]:
    """Return the names of tensors that hold a NaN or an infinity. Waits for the device."""
    if not named:
        return []
    largest = torch_internals.norms([tensor for _, tensor in named], math.inf)
    fine = torch.stack([each.double() for each in largest]).isfinite().tolist()
    return [name for (name, _), is_fine in zip(named, fine, strict=True) if not is_fine]


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


class WatchedReduceScatter:
    """FSDP2's reduce-scatter, which shows this rank's input to a flag.

    `alone`: over one rank, whose input FSDP2 copies into the output before it sums over copies.
    """

    def __init__(self, flag: FiniteFlag, *, alone: bool) -> None:
        self._flag, self._alone = flag, alone
        self._input: Tensor | None = None

    def allocate(
        self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        """Return a buffer for the input or, once that is filled, the output."""
        filled, buffer = self._input, torch.empty(*size, dtype=dtype, device=device)
        if filled is not None:
            self._flag.show(filled)
        self._input = buffer if self._alone and filled is None else None
        return buffer

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: ProcessGroup,
        op: ReduceOp.RedOpType,
        async_op: bool = False,
    ) -> Work | None:
        """Reduce `input_tensor` into this rank's share."""
        self._flag.show(input_tensor)
        return reduce_scatter_into(output_tensor, input_tensor, group, op, async_op=async_op)


def watch(unit: FSDPModule, flag: FiniteFlag, *, alone: bool) -> None:
    """Show `flag` this rank's gradients of an FSDP unit before they are summed over its mesh.

    For meshes of several ranks: on one, FSDP2 reduces nothing. FSDP2's
    other hook, after its all-reduce, cannot be used: with it, FSDP2 continues in a different stream
    from the one that owns the memory of the gradients, so the memory is reused too early. With full
    sharding on one rank, gradients of later units overwrote them.
    """
    unit.set_custom_reduce_scatter(WatchedReduceScatter(flag, alone=alone))  # type: ignore[arg-type]
