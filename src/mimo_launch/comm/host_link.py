"""Copies of bytes between a device and its host, beside the work of the device.

Decides: that on CUDA they run in a stream of their own, in the order in which they start, through
pinned memory. On a CPU they are over when they start.
Relies on: torch's caching allocator for pinned memory, which keeps a block until copies of it have
ended.
Leaves: the choice of what to copy, and when to wait, to the callers.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

# A point in the order of copies; None on a CPU.
Mark = torch.cuda.Event | None


class HostLink:
    """Copies between one device and its host. Tensors are of bytes, with one dimension."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def send(self, here: Tensor) -> Tensor:
        """Start to copy to the host; `here` must stay as it is until a later mark is waited for."""
        there = torch.empty_like(here, device="cpu", pin_memory=here.is_cuda)
        with self._beside():
            there.copy_(here, non_blocking=True)
        return there

    def fetch(self, there: Tensor) -> Tensor:
        """Start to copy from the host; the result is complete once a later mark is waited for."""
        # Of the memory of the device's own stream, which may use it again as soon as it is freed.
        here = torch.empty_like(there, device=self.device)
        with self._beside():
            here.copy_(there, non_blocking=True)
        return here

    def mark(self) -> Mark:
        """Return the point at which all copies so far have ended."""
        return None if self._stream is None else self._stream.record_event()

    def wait(self, mark: Mark) -> None:
        """Let the work that the device gets from now on wait for a mark; the host does not wait."""
        if mark is not None:
            torch.cuda.current_stream(self.device).wait_event(mark)

    @contextmanager
    def _beside(self) -> Iterator[None]:
        """Let what runs inside follow the work that the device has got so far."""
        if self._stream is None:
            yield
            return
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._stream):
            yield
