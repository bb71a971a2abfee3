"""Asynchronous copies and maxima: to the device, back to the host, over the ranks.

Decides: that everything that a step copies to a GPU goes through pinned memory, and how a rank
starts to fetch a number and waits for it later.
Relies on: torch's caching allocator for pinned memory, which keeps a block until copies of it have
ended; events on CUDA; asynchronous collectives of gloo.
Leaves: the choice of what to copy to the callers, and when to wait to `train`.
"""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def to_device(values: Any, device: torch.device) -> Tensor:
    """Return a tensor, an array or a list of numbers as a tensor on `device`.

    A copy from pageable memory would make the host wait until the GPU has caught up.
    """
    tensor = torch.as_tensor(values)
    if device.type != "cuda":
        return tensor.to(device)
    if not tensor.is_pinned():
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


class HostCopy:
    """A copy of a small tensor from the device to the host; only `read` waits for it."""

    def __init__(self, numbers: Tensor, *, sleeps: bool = True) -> None:
        """Start to copy `numbers`, one-dimensional, as they are at this point of the stream.

        If it `sleeps`, the reader leaves the processor to the thread that reads the next step;
        otherwise it spins, and notices the end of the copy some microseconds earlier.
        """
        self._event: torch.cuda.Event | None = None
        if not numbers.is_cuda:
            self._numbers = numbers.clone()
            return
        self._numbers = torch.empty_like(numbers, device="cpu", pin_memory=True)
        self._numbers.copy_(numbers, non_blocking=True)
        self._event = torch.cuda.Event(blocking=sleeps)  # type: ignore[no-untyped-call]
        self._event.record()

    def read(self) -> list[float]:
        """Return the numbers. Waits for the device."""
        if self._event is not None:
            self._event.synchronize()
        return [float(number) for number in self._numbers.tolist()]


class Moment:
    """The time at which the device gets to this point of its work; on a CPU that is now."""

    def __init__(self, device: torch.device) -> None:
        self._host, self._event = time.perf_counter(), None
        if device.type == "cuda":
            self._event = torch.cuda.Event(  # type: ignore[no-untyped-call]
                enable_timing=True, blocking=True
            )
            self._event.record(torch.cuda.current_stream(device))

    def since(self, earlier: "Moment") -> float:
        """Return the seconds from an earlier moment of the same device. Waits for the device."""
        if self._event is None or earlier._event is None:
            return self._host - earlier._host
        self._event.synchronize()
        return float(earlier._event.elapsed_time(self._event)) / 1e3


class MaxOverRanks:
    """Elementwise maxima of a few numbers over the ranks of a gloo group, by default all ranks."""

    def __init__(self, numbers: Sequence[int], group: ProcessGroup | None = None) -> None:
        """Start to compare. Ranks: collective over `group`, in the same order on all of them."""
        self._numbers = np.array(numbers, dtype=np.int64)
        self._work = dist.all_reduce(
            torch.from_numpy(self._numbers), op=dist.ReduceOp.MAX, group=group, async_op=True
        )

    def wait(self) -> list[int]:
        """Return the maxima. Raises: RuntimeError if a rank was lost or late."""
        if self._work is not None:
            self._work.wait()
        return [int(number) for number in self._numbers]
