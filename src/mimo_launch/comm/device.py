"""Describes what a rank runs on: its device, the memory that it has used, versions of packages.

Decides: what counts as memory: on a GPU that of its allocator, on a CPU the resident set.
Relies on: torch; /proc; the metadata of installed packages, so that none is imported.
Leaves: comparing memory with estimates to `bench`, machines to the reader of a result.
"""

import platform
import resource
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from mimo_launch import __version__


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


def versions(device: torch.device) -> dict[str, str | None]:
    """Return the versions of what decides speed; None for a package that is not installed."""
    nccl = engine = None
    if device.type == "cuda":
        nccl = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    with suppress(PackageNotFoundError):
        engine = version("transformer-engine")
    return {
        "mimo-launch": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "nccl": nccl,
        "transformer-engine": engine,
    }


def reset_peak(device: torch.device) -> None:
    """Reset the peaks of the GPU's allocator; the peak of a CPU begins with the process."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def used_of_device(device: torch.device) -> int | None:
    """Return the bytes of a GPU that are in use, by this process and others; None on a CPU.

    The allocator gives nothing back by itself, so this is also a peak.
    """
    if device.type != "cuda":
        return None
    free, total = torch.cuda.mem_get_info(device)
    return int(total - free)
