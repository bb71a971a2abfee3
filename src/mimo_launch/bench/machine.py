"""What a rank runs on and with: device, packages, memory.

Decides: how each is named.
Relies on: torch; the metadata of installed packages, so that none is imported to be asked.
Leaves: comparing machines to whoever reads a result.
"""

import platform
import resource
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from mimo_launch import __version__


def device_name(device: torch.device) -> str:
    """Return the name of a GPU, or of the processor."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    for line in _lines(Path("/proc/cpuinfo")):
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def versions(device: torch.device) -> dict[str, str | None]:
    """Return the versions of what decides speed; None for a package that is not installed."""
    nccl = _nccl_version() if device.type == "cuda" else None
    return {
        "mimo-launch": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "nccl": nccl,
        "transformer-engine": _installed("transformer-engine"),
    }


def reset_peak(device: torch.device) -> None:
    """Let the peaks of the allocator begin now; that of a processor begins with the process."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_allocated(device: torch.device) -> tuple[int, int] | None:
    """Return the most bytes that the GPU's allocator gave out and held; None on a processor."""
    if device.type != "cuda":
        return None
    return torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)


def used_of_device(device: torch.device) -> int | None:
    """Return the bytes of a GPU that are in use, by this process and others; None on a processor.

    The allocator gives nothing back by itself, so this is a peak as well.
    """
    if device.type != "cuda":
        return None
    free, total = torch.cuda.mem_get_info(device)
    return int(total - free)


def peak_resident() -> int:
    """Return the most bytes of this process that were in memory at once, code included."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB.


def _nccl_version() -> str:
    return ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
