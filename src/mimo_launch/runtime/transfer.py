"""Copies from the host to the device that the host does not wait for.

Decides: that what goes to a CUDA device is pinned first.
Relies on: the caching allocator of pinned memory, which keeps a block until its copy has been made.
Leaves: what to copy to its callers.
"""

import numpy as np
import torch
from torch import Tensor


def to_device(values: np.ndarray | Tensor, device: torch.device) -> Tensor:
    """Return `values` on the device; on the processor without a copy."""
    tensor = torch.as_tensor(values)
    if device.type != "cuda" or tensor.is_cuda:
        return tensor.to(device)
    if not tensor.is_pinned():
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
