"""Copies from the host to the device that nobody waits for.

Decides: that everything a step brings to a GPU goes through pinned memory.
Relies on: torch's caching allocator for pinned memory, which keeps a block until copies of it have
ended.
Leaves: what to copy to the callers.
"""

from typing import Any

import torch
from torch import Tensor


def to_device(values: Any, device: torch.device) -> Tensor:
    """Return a tensor, an array or a list of numbers as a tensor on `device`.

    A copy from ordinary memory would make the host wait until the GPU has caught up with it.
    """
    tensor = torch.as_tensor(values)
    if device.type != "cuda":
        return tensor.to(device)
    if not tensor.is_pinned():
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
