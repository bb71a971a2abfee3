"""Describes what a bench runs on: packages, and all memory of a GPU.

Decides: the name of each.
Relies on: torch; the metadata of installed packages, so that none is imported.
Leaves: the device to `comm.device`, comparing machines to the reader of a result.
"""

import platform
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

import torch

from mimo_launch import __version__


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
