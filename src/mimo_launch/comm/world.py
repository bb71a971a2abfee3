"""The default process group and the device of a worker: its name, memory and package versions.

Decides: which backends carry CPU and GPU tensors; what counts as memory: on a GPU the memory of its
allocator, on a CPU the resident set.
Relies on: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or `init_method`; /proc; the metadata of
installed packages, so that none is imported.
Leaves: groups of a layout to `process_groups`, comparing memory with estimates to `bench`.

On GPUs the world has two backends: NCCL for CUDA tensors, gloo for CPU tensors and objects, so that
agreements between hosts never wait for a device. Communicators are created at their first use (no
`device_id` is passed): one created at the start would carry all point-to-point transfers of its
group in one queue, where transfers of different channels wait for each other.
"""

import os
import platform
import resource
from contextlib import suppress
from datetime import timedelta
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist

from mimo_launch import __version__
from mimo_launch.comm import torch_internals

DeviceKind = Literal["auto", "cpu", "cuda"]
# Streams of transfers and of compute must not share a hardware queue: a transfer that waits for its
# peer would block the kernels queued after it.
MAX_CONNECTIONS = "32"


# On GPUs groups time out this much later than the launcher, which names the rank at fault and shows
# the stack of every rank; NCCL's watchdog ends processes without either.
GPU_GRACE_SECONDS = 30


class DeviceError(RuntimeError):
    """The device does not exist, or its settings would make a job hang."""


def device_for(kind: DeviceKind, local_rank: int) -> torch.device:
    """Return the device of a worker: `auto` means CUDA if available.

    Raises: DeviceError if there is no such device.
    """
    if kind == "cpu" or (kind == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    found = torch.cuda.device_count()
    if local_rank >= found:
        raise DeviceError(
            f"worker {local_rank} of this host has no GPU: {found} found; start at most {found} "
            "workers per host, or use --device cpu"
        )
    return torch.device("cuda", local_rank)


def group_timeout(seconds: float, device: torch.device) -> timedelta:
    """Return the timeout of process groups in a job that counts as hung after `seconds`."""
    return timedelta(seconds=seconds + (GPU_GRACE_SECONDS if device.type == "cuda" else 0))


def join_world(device: torch.device, *, timeout: timedelta, **init: Any) -> None:
    """Make `device` the current one and create the default process group.

    `init` is passed on to `init_process_group`. Ranks: collective over the world. Raises:
    DeviceError for `CUDA_DEVICE_MAX_CONNECTIONS=1`.
    """
    if device.type != "cuda":
        dist.init_process_group("gloo", timeout=timeout, **init)
        return
    if os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", MAX_CONNECTIONS) == "1":
        raise DeviceError(
            "CUDA_DEVICE_MAX_CONNECTIONS=1 makes transfers and compute wait for each other until "
            f"the job hangs; unset it, or set it to {MAX_CONNECTIONS}"
        )
    set_allocator()
    torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl", timeout=timeout, **init)


def set_allocator() -> None:
    """Apply the settings in this process's environment to the CUDA allocator.

    The allocator reads them when torch is imported; the parent of a forked worker imports torch
    before they are set.
    """
    if settings := os.environ.get("PYTORCH_ALLOC_CONF"):
        torch_internals.set_allocator(settings)


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
    """Return the most bytes that the GPU's allocator allocated and reserved; None on a CPU."""
    if device.type != "cuda":
        return None
    return torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)


def peak_resident() -> int:
    """Return the peak resident memory of this process in bytes, code included."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB.


def peak_memory(device: torch.device) -> int:
    """Return this rank's peak bytes: in tensors on a GPU, in resident memory on a CPU."""
    allocated = peak_allocated(device)
    return peak_resident() if allocated is None else allocated[0]


def versions(device: torch.device) -> dict[str, str | None]:
    """Return the versions of the packages that affect speed; None for one that is not installed."""
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


def memory_of(device: torch.device) -> int:
    """Return the bytes of a GPU."""
    return int(torch.cuda.get_device_properties(device).total_memory)


def reset_peak(device: torch.device) -> None:
    """Reset the peaks of the GPU's allocator; a CPU's peak counts from the start of the process."""
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
