"""Checks what this host offers to a run: packages, GPUs, memory, limits, ports, disk.

Decides: what a run needs from a host, and what is only worth a remark.
Relies on: `host_resources`, which runs use, too; the metadata of packages; a forked child that
asks torch, so that this process never touches CUDA.
Leaves: further needs of a spec to `validate`, output to `cli`.
"""

import os
import platform
import resource
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from multiprocessing.sharedctypes import RawArray
from pathlib import Path
from typing import Literal

from mimo_launch.diag.installed import (
    MLFLOW,
    SHARD_PACKAGES,
    TENSORBOARD,
    TRANSFORMER_ENGINE,
    WANDB,
)
from mimo_launch.diag.quantities import bytes_text
from mimo_launch.launcher.forking import ChildDied, ChildSilent, ask_child
from mimo_launch.launcher.host_resources import allow_open_files, host_memory, too_few_files

Verdict = Literal["ok", "missing", "warning", "error"]
MIN_KERNEL = (5, 3)
# NCCL keeps tens of MB in shared memory for each pair of GPUs on a host.
MIN_SHARED = 1 << 30
MIN_DISK = 1 << 30
# NCCL registers buffers of hundreds of MB per GPU with the network adapters of a host.
MIN_LOCKED = 1 << 32
# Threads of a worker: autograd, loaders, NCCL, matrix products on a processor.
THREADS = 64
WORKERS = 8  # As in the quickstart.
_PACKAGES = {
    TENSORBOARD: "`log.tensorboard`",
    WANDB: "`log.wandb`",
    MLFLOW: "`log.mlflow`",
    "pillow>=11.3": "PNG files of `mimo-launch report`",
    **dict.fromkeys(SHARD_PACKAGES.values(), "data of shards"),
}
_GPU_PACKAGES = {
    TRANSFORMER_ENGINE: "`backend: transformer_engine`",
    "mamba-ssm": "fast Mamba layers",
    "fla-core": "fast Gated DeltaNet layers",
    "tilelang": "the same on Hopper, with Triton from 3.4 to before 3.7.1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The result of one check; only an error keeps runs from working. `help` is a remedy."""

    name: str
    verdict: Verdict
    found: str
    help: str = ""


@dataclass(frozen=True, slots=True)
class _Torch:
    """What torch reports: versions, and GPUs by name with their memory in bytes.

    `fault` is why torch cannot be used, `help` the remedy.
    """

    version: str = ""
    cuda: str | None = None
    nccl: str = ""
    gpus: tuple[tuple[str, int], ...] = ()
    fault: str = ""
    help: str = "install torch as https://pytorch.org/get-started/locally says"


def checks_of_host(runs: Path) -> Iterator[Check]:
    """Yield the checks of this host; `runs` is the folder that holds run folders."""
    torch = _ask_torch()
    yield _system()
    yield from _torch_checks(torch)
    wanted = {**_PACKAGES, **(_GPU_PACKAGES if torch.gpus else {})}
    for requirement, what in wanted.items():
        yield _package(requirement, what)
    yield Check(name="memory", verdict="ok", found=bytes_text(host_memory()))
    workers = len(torch.gpus) or WORKERS
    yield _open_files(workers)
    yield _processes(workers)
    yield _locked_memory(has_gpus=bool(torch.gpus))
    yield _shared_memory(has_gpus=bool(torch.gpus))
    yield _loopback()
    yield _disk(runs)


def _system() -> Check:
    release = platform.release()
    found = f"{platform.python_version()} on {os.uname().sysname} {release}"
    with suppress(ValueError):
        kernel = tuple(int(part) for part in release.split("-")[0].split(".")[:2])
        if os.uname().sysname != "Linux" or kernel < MIN_KERNEL:
            help_ = "use Linux 5.3 or newer: workers are watched through pidfds"
            return Check(name="python", verdict="error", found=found, help=help_)
    return Check(name="python", verdict="ok", found=found)


def _ask_torch() -> _Torch:
    try:
        return ask_child(_look)
    except ChildDied as error:
        return _Torch(fault=f"importing it {error}")
    except ChildSilent as error:
        fault = f"importing it and asking it for GPUs {error}"
        return _Torch(fault=fault, help="look at `nvidia-smi` and at the log of the kernel")


def _look() -> _Torch:
    try:
        import torch
        import torch.distributed as dist

        if not dist.is_available() or not dist.is_gloo_available():
            return _Torch(fault=f"{torch.__version__} is a build without gloo")
        nccl = ""
        gpus: list[tuple[str, int]] = []
        if torch.cuda.is_available():
            for number in range(torch.cuda.device_count()):
                each = torch.cuda.get_device_properties(number)
                gpus.append((str(each.name), int(each.total_memory)))
            if dist.is_nccl_available():
                nccl = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
        return _Torch(str(torch.__version__), torch.version.cuda, nccl, tuple(gpus))
    except Exception as error:
        return _Torch(fault=f"{type(error).__name__}: {error}")


def _torch_checks(torch: _Torch) -> Iterator[Check]:
    if torch.fault:
        yield Check(name="torch", verdict="error", found=torch.fault, help=torch.help)
        return
    yield Check(name="torch", verdict="ok", found=torch.version)
    yield Check(name="cuda", verdict="ok", found=torch.cuda or "a build of torch without it")
    if torch.gpus:
        kinds = dict.fromkeys(torch.gpus)
        counted = (f"{torch.gpus.count(x)} x {x[0]} ({bytes_text(x[1])})" for x in kinds)
        yield Check(name="GPUs", verdict="ok", found=", ".join(counted))
        help_ = "" if torch.nccl else "install a build of torch with NCCL, or use --device cpu"
        verdict: Verdict = "ok" if torch.nccl else "error"
        yield Check(name="nccl", verdict=verdict, found=torch.nccl or "none", help=help_)
    elif Path("/proc/driver/nvidia/version").exists():
        help_ = "look at `nvidia-smi`, at CUDA_VISIBLE_DEVICES, and for what CUDA torch is built"
        found = "there is a driver, but torch sees none"
        yield Check(name="GPUs", verdict="warning", found=found, help=help_)
    else:
        yield Check(name="GPUs", verdict="missing", found="none; workers run on processors")


def _package(requirement: str, what: str) -> Check:
    name = requirement.partition(">")[0].partition("[")[0]
    try:
        return Check(name=name, verdict="ok", found=version(name))
    except PackageNotFoundError:
        help_ = f"pip install '{requirement}', for {what}"
        return Check(name=name, verdict="missing", found="not installed", help=help_)


def _open_files(workers: int) -> Check:
    allow_open_files()
    lacking = too_few_files(workers)
    if lacking is not None:
        return Check(name="open files", verdict="error", found=lacking[0], help=lacking[1])
    return _limit("open files", resource.RLIMIT_NOFILE, "{:,}".format)


def _processes(workers: int) -> Check:
    """Check the limit on this user's processes; threads count as processes."""
    needed = workers * THREADS
    help_ = f"raise it with `ulimit -u` to {needed:,} or more: threads of workers count, too"
    return _limit("processes", resource.RLIMIT_NPROC, "{:,}".format, needed, help_)


def _locked_memory(*, has_gpus: bool) -> Check:
    """Check the limit on locked memory, where InfiniBand adapters register buffers."""
    help_ = "raise it with `ulimit -l unlimited` where hosts exchange data over InfiniBand"
    needed = MIN_LOCKED if has_gpus else 0
    return _limit("locked memory", resource.RLIMIT_MEMLOCK, bytes_text, needed, help_)


def _limit(
    name: str, number: int, text: Callable[[int], str], needed: int = 0, help_: str = ""
) -> Check:
    """Check a limit of this process, which `number` names."""
    allowed = resource.getrlimit(number)[0]
    if allowed == resource.RLIM_INFINITY:
        return Check(name=name, verdict="ok", found="unlimited")
    if allowed < needed:
        return Check(name=name, verdict="warning", found=text(allowed), help=help_)
    return Check(name=name, verdict="ok", found=text(allowed))


def _shared_memory(*, has_gpus: bool) -> Check:
    name, help_ = "shared memory", "enlarge /dev/shm (`docker run --shm-size 8g`)"
    try:
        RawArray("q", 1)
        size = shutil.disk_usage("/dev/shm").total if Path("/dev/shm").is_dir() else 0
    except OSError as error:
        return Check(name=name, verdict="error", found=str(error), help=help_)
    if has_gpus and size < MIN_SHARED:
        return Check(name=name, verdict="warning", found=bytes_text(size), help=help_)
    return Check(name=name, verdict="ok", found=bytes_text(size))


def _loopback() -> Check:
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=5).close()
    except OSError as error:
        help_ = "bring it up with `ip link set lo up`"
        return Check(name="loopback", verdict="error", found=str(error), help=help_)
    return Check(name="loopback", verdict="ok", found="a port can be opened and reached")


def _disk(runs: Path) -> Check:
    whole = runs.absolute()
    there = next(each for each in (whole, *whole.parents) if each.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        fault = "cannot be written" if there.is_dir() else "is not a folder"
        help_ = "give `--runs` a folder that you may write to"
        return Check(name="disk", verdict="error", found=f"{there} {fault}", help=help_)
    free = shutil.disk_usage(there).free
    found = f"{bytes_text(free)} free in {there}"
    if free < MIN_DISK:
        help_ = "give `--runs` a folder on a larger file system, for checkpoints"
        return Check(name="disk", verdict="warning", found=found, help=help_)
    return Check(name="disk", verdict="ok", found=found)
