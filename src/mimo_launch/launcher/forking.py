"""Prepares this process for forking others.

Decides: the list of slow imports, which workers inherit; none initialises CUDA, which does not
survive a fork. Every forked process gets new output streams: at the moment of the fork, another
thread may hold the locks of the parent's streams, or of a screen that it draws.
Relies on: fork; a spawned worker inherits none of this.
Leaves: workers to `start_workers`, ranks of proofs to `run_on_ranks`, questions to `ask_child`.
"""

import gc
import io
import os
import sys
from functools import cache
from typing import TextIO


class _FreshStream(io.TextIOWrapper):
    """A stream on a standard descriptor, with a lock that no thread holds."""

    def __init__(self, number: int, replaced: TextIO) -> None:
        raw = io.FileIO(number, "w", closefd=False)
        super().__init__(
            io.BufferedWriter(raw), "utf-8", errors="backslashreplace", line_buffering=True
        )
        # Keep a reference: finalising the stream would wait for its lock and close the descriptor.
        self.replaced = replaced


@cache
def prepare_forks() -> None:
    """Give new output streams to every process that this one forks from now on.

    The child's garbage collector skips the objects it inherits. A full collection would walk
    through all modules of the parent, pause a step for 0.2 s where eight workers share two cores,
    and copy the memory pages that they share.
    """

    def start_afresh() -> None:
        sys.stdout = sys.__stdout__ = _FreshStream(1, sys.stdout)  # type: ignore[misc]
        sys.stderr = sys.__stderr__ = _FreshStream(2, sys.stderr)  # type: ignore[misc]
        gc.freeze()

    os.register_at_fork(after_in_child=start_afresh)


def import_for_workers() -> None:
    """Import torch and its distributed parts with one thread per process.

    The first optimizer imports `torch._dynamo`, the first module FSDP and DeviceMesh. These imports
    take several seconds in each of eight workers on two cores, and one second in their parent.
    """
    prepare_forks()
    # Before torch's first parallel region: a forked child would hang in its parent's thread pool.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # Makes torch look for GPUs through NVML, not the driver; torch accepts only the value `1`.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    import torch
    import torch._dynamo
    import torch.distributed.fsdp
    import torch.distributed.tensor

    import mimo_launch.checkpoint.loading
    import mimo_launch.launcher.worker
    import mimo_launch.train.loop  # noqa: F401

    torch.set_num_threads(1)
