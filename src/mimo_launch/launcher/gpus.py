"""The GPUs of this host: how many there are, and the environment of workers on them.

Decides: the device of a job; settings of CUDA, the allocator and NCCL that the user left unset;
when to say that layers lack their kernels.
Relies on: a forked child that counts GPUs, so that this process never touches the driver.
Leaves: using a GPU to `worker`; usage errors to `cli`.

A process that has initialised CUDA cannot fork workers that use it, and even asking whether there
is a GPU may initialise it: `torch.cuda.is_available` asks the CUDA runtime unless
PYTORCH_NVML_BASED_CUDA_CHECK is set and NVML answers.
"""

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from mimo_launch.checks.packages import torchs_layers
from mimo_launch.diag.installed import ENGINE, missing_for_delta_rule, missing_for_mamba
from mimo_launch.launcher.forking import ChildDied, ChildSilent, ask_child
from mimo_launch.spec.fp8 import scaling_on
from mimo_launch.spec.hybrid import DELTANET, MAMBA, HybridModel

if TYPE_CHECKING:
    from mimo_launch.comm.world import DeviceKind
    from mimo_launch.spec.spec import Spec

# The last transfers and collectives of a rank, with shapes, states and the stack at each start.
RECORDED_TRANSFERS = "2000"
# https://docs.pytorch.org/docs/stable/torch_nccl_environment_variables.html; torch 2.9 renamed
# TORCH_NCCL_TRACE_* to TORCH_FR_*.
_SETTINGS = {
    "CUDA_DEVICE_MAX_CONNECTIONS": "32",
    # A late collective ends its process without the clean-up, which may hang too.
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",
    "TORCH_FR_BUFFER_SIZE": RECORDED_TRANSFERS,
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    # In milliseconds. A process with a late collective waits four times this long before it ends.
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "5000",
    # Microbatches of different sizes leave holes that fixed segments cannot reuse.
    "PYTORCH_ALLOC_CONF": "expandable_segments:True",
    # Warnings go to the standard output of the rank, a separate file.
    "NCCL_DEBUG": "WARN",
}
_OTHER_NAMES = {
    "TORCH_FR_BUFFER_SIZE": "TORCH_NCCL_TRACE_BUFFER_SIZE",
    "TORCH_FR_DUMP_TEMP_FILE": "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
    "PYTORCH_ALLOC_CONF": "PYTORCH_CUDA_ALLOC_CONF",
}


class NotEnoughGpus(ValueError):
    """A job cannot run on what this host has; the message says what to write instead."""


@dataclass(frozen=True, slots=True)
class Gpus:
    """The GPUs that workers of a host would see: their number and lowest compute capability."""

    count: int
    capability: tuple[int, int] = (0, 0)


def num_gpus() -> int:
    """Return the number of GPUs that workers of this host would see."""
    return gpus_here().count


@lru_cache(maxsize=1)
def gpus_here() -> Gpus:
    """Return the GPUs that workers of this host would see.

    Raises: NotEnoughGpus for a driver that does not answer.
    """
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():  # Too late for a child to help.
        return _read_gpus()
    try:
        return ask_child(_look)
    except ChildDied:  # A driver that kills its caller offers no GPU.
        return Gpus(0)
    except ChildSilent as error:
        raise NotEnoughGpus(
            f"asking for GPUs {error}; look at `nvidia-smi` and at the log of the kernel, or write "
            "--device cpu"
        ) from None


def _look() -> Gpus:
    import torch

    # `import_for_workers` sets it to keep the parent away from the driver. A child may ask the
    # driver, which shows whether the driver works.
    os.environ.pop("PYTORCH_NVML_BASED_CUDA_CHECK", None)
    return _read_gpus() if torch.cuda.is_available() else Gpus(0)


def _read_gpus() -> Gpus:
    import torch

    count = torch.cuda.device_count()
    return Gpus(
        count, min((torch.cuda.get_device_capability(i) for i in range(count)), default=(0, 0))
    )


def device_of(kind: "DeviceKind", num_workers: int) -> Literal["cpu", "cuda"]:
    """Return the device of `num_workers` workers of this host; `auto` means GPUs if it has any.

    Raises: NotEnoughGpus, also for settings under which a job on GPUs would hang.
    """
    if kind == "cpu":
        return "cpu"
    found = num_gpus()
    if kind == "auto" and not found:
        return "cpu"
    if found < num_workers:
        raise NotEnoughGpus(
            f"{num_workers} workers on this host need a GPU each, but it has {found}; "
            "write --device cpu, "
            + ("or fewer ranks per host" if found else "or start on a host with GPUs")
        )
    if os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS") == "1":
        raise NotEnoughGpus(
            "under CUDA_DEVICE_MAX_CONNECTIONS=1 transfers and compute wait for each other until "
            "the job hangs; unset it"
        )
    return "cuda"


def refuse_backends(spec: "Spec", device: Literal["cpu", "cuda"]) -> None:
    """Raise NotEnoughGpus if a module needs layers or a precision that the device lacks."""
    for name, module in spec.modules.items():
        if module.backend != ENGINE:
            continue
        if device == "cpu":
            raise NotEnoughGpus(
                f"`{name}` takes its layers from transformer_engine, which needs GPUs; write "
                + torchs_layers(spec, name)
            )
        here = gpus_here().capability
        if module.fp8 is not None and here < module.fp8.rule.capability:
            needs, other = module.fp8.rule, scaling_on(here)
            instead = "=null" if other is None else f".scaling={other}"
            first, own = (".".join(map(str, each)) for each in (needs.capability, here))
            raise NotEnoughGpus(
                f"`{name}` multiplies in 8 bits with `scaling: {module.fp8.scaling}`, which needs "
                f"GPUs of compute capability {first} or later ({needs.gpus}), but this host has "
                f"one of {own}; write --set modules.{name}.fp8{instead}"
            )


def refuse_initialised_cuda() -> None:
    """Raise RuntimeError if CUDA is initialised in this process: it does not survive a fork."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        raise RuntimeError(
            "workers on GPUs are forked, and CUDA does not survive a fork, but this process has "
            "initialised it; start them before the first use of CUDA, or from a process of its own"
        )


def gpu_settings(recorder: Path) -> dict[str, str]:
    """Return the environment of workers on GPUs, without the variables that the user has set.

    The flight recorder of rank R writes to `recorder/rank_R`.
    """
    wanted = {**_SETTINGS, "TORCH_FR_DUMP_TEMP_FILE": str(recorder / "rank_")}
    return {
        name: value
        for name, value in wanted.items()
        if name not in os.environ and _OTHER_NAMES.get(name, name) not in os.environ
    }


def missing_kernels(spec: "Spec", device: Literal["cpu", "cuda"]) -> Iterator[str]:
    """Yield a note for each kind of recurrent layer that torch computes here for want of a package.

    In fp32 torch computes Gated DeltaNet in any case.
    """
    models = [(name, module.model) for name, module in spec.modules.items()]
    patterns = {name: each.pattern for name, each in models if isinstance(each, HybridModel)}
    if device == "cpu" or not patterns or spec.train.precision == "fp64":
        return
    needs: dict[str, tuple[str, Callable[[], list[str]]]] = {MAMBA: ("Mamba-2", missing_for_mamba)}
    if spec.train.precision != "fp32":
        needs[DELTANET] = (
            "Gated DeltaNet", lambda: missing_for_delta_rule(gpus_here().capability)
        )  # fmt: skip
    for letter, (layers, missing_packages) in needs.items():
        names = " and ".join(f"`{name}`" for name, pattern in patterns.items() if letter in pattern)
        if names and (missing := missing_packages()):
            yield (
                f"note: torch computes the {layers} layers of {names}, which is slower than kernels"
                " and needs more memory; pip install " + " ".join(f"'{each}'" for each in missing)
            )
