"""Describes the device of a rank: its name, and the most memory that the rank has used of it.

Decides: what counts as memory: on a GPU that of its allocator, on a CPU the resident set.
Relies on: torch; /proc.
Leaves: comparing it with estimates to `bench`.
"""

import platform
import resource
from contextlib import suppress
from pathlib import Path

import torch


def device_name(device: torch.device) -> str:
    """Return the name of a GPU, or of the CPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    with suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        for line in text.splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def peak_allocated(device: torch.device) -> tuple[int, int] | None:
    """Return the most bytes that the GPU's allocator gave out and held; None on a CPU."""
    if device.type != "cuda":
        return None
    return torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)


def peak_resident() -> int:
    """Return the most bytes of this process that were in memory at once, code included."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB.


def peak_memory(device: torch.device) -> int:
    """Return the most bytes that this rank had in tensors on a GPU, or in memory on a CPU."""
    allocated = peak_allocated(device)
    return peak_resident() if allocated is None else allocated[0]
