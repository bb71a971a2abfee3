"""How FSDP2 reduces the gradients of a unit: who looks at them before, and which memory they get.

Decides: that a rank's own gradients are shown to a flag before other ranks' are added; that sums
which are kept get memory of the stream that computes, or are the input if there is nothing to add.
Relies on: FSDP2, which asks twice for each reduction: in the stream that computes for the input,
and in its own stream for the output; gradients that are reduced in the type of their weights.
Leaves: when gradients are reduced to `models.fsdp`, the sums of whole numbers to `collectives`.

CUDA's allocator keeps what a stream has freed for this stream. FSDP2 allocates sums in a stream of
its own. So the memory of all gradients was of no use to the activations of the next step: GPUs
held 15 % more than their tensors had at any time.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributed import ProcessGroup, ReduceOp, Work

from mimo_launch.comm.collectives import reduce_scatter_into
from mimo_launch.comm.finite_flags import FiniteFlag


class GradientReduction:
    """A reduce-scatter for `FSDPModule.set_custom_reduce_scatter`.

    Args:
        flag: gets this rank's gradients before they are summed; None if they are not summed.
        alone: whether it reduces over one rank, where FSDP2 copies the input into the output. It
            may sum the output over copies then.
        kept: whether the output is the gradient until the next step. Otherwise it may be added to
            earlier sums and freed, in FSDP2's own stream.

    FSDP2's other hook, after its all-reduce, cannot be used: with it, FSDP2 continues in a
    different stream from the one that owns the memory of the gradients, so the memory is reused too
    early. With full sharding on one rank, gradients of later units overwrote them.
    """

    def __init__(self, flag: FiniteFlag | None, *, alone: bool, kept: bool) -> None:
        self._flag, self._alone, self._kept = flag, alone, kept
        self._input: Tensor | None = None
        self._computes: torch.Stream | None = None

    def allocate(
        self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        """Return a buffer for the input or, once that is filled, the output."""
        streams = torch.get_device_module(device)
        if self._input is None:
            self._input = torch.empty(*size, dtype=dtype, device=device)
            self._computes = streams.current_stream()
            return self._input
        filled, self._input = self._input, None
        if self._alone and self._flag is not None:
            self._flag.show(filled)
        if not self._kept:
            return torch.empty(*size, dtype=dtype, device=device)
        if self._alone:
            output = filled
        else:
            with streams.stream(self._computes):
                output = torch.empty(*size, dtype=dtype, device=device)
            # Other allocators than PyTorch's own may make it ready in the stream that computes.
            streams.current_stream().wait_stream(self._computes)
        if output.is_cuda:
            # If a unit is reduced twice, the second sum is freed while FSDP2's stream adds it.
            output.record_stream(streams.current_stream())
        return output

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: ProcessGroup,
        op: ReduceOp.RedOpType,
        async_op: bool = False,
    ) -> Work | None:
        """Reduce `input_tensor` into this rank's share."""
        if self._flag is not None:
            self._flag.show(input_tensor)
        return reduce_scatter_into(output_tensor, input_tensor, group, op, async_op=async_op)
