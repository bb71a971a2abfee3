"""What this process does before it forks others.

Decides: the list of slow imports, which workers inherit; none initialises CUDA, which does not
survive a fork. Every forked process gets output streams of its own: another thread may hold the
locks of the parent's streams, or of a screen that it draws, at the moment of the fork.
Relies on: fork; a spawned worker gains nothing.
Leaves: workers to `start_workers`, ranks of proofs to `run_on_ranks`, questions to `ask_child`.
"""

import gc
import io
import os
import sys
from functools import cache
from typing import TextIO

# Python's defaults; `cli.app` collects garbage less often.
_USUAL_THRESHOLDS = (700, 10, 10)


class _FreshStream(io.TextIOWrapper):
    """A stream on a standard descriptor, with a lock that no thread holds."""

    def __init__(self, number: int, replaced: TextIO) -> None:
        raw = io.FileIO(number, "w", closefd=False)
        super().__init__(
            io.BufferedWriter(raw), "utf-8", errors="backslashreplace", line_buffering=True
        )
        # Kept: finalising it would wait for its lock, and close the descriptor.
        self.replaced = replaced


@cache
def prepare_forks() -> None:
    """Give every process that this one forks from now on output streams of its own.

    Its garbage collector leaves out what it inherits. A full collection would walk through all
    modules of the parent: a pause of 0.2 s in the middle of a step where eight workers share two
    cores, and copies of the pages that they share.
    """

    def start_afresh() -> None:
        sys.stdout = sys.__stdout__ = _FreshStream(1, sys.stdout)  # type: ignore[misc]
        sys.stderr = sys.__stderr__ = _FreshStream(2, sys.stderr)  # type: ignore[misc]
        gc.freeze()
        gc.set_threshold(*_USUAL_THRESHOLDS)

    os.register_at_fork(after_in_child=start_afresh)


def import_for_workers() -> None:
    """Import torch and its distributed parts with one thread per process.

    The first optimizer imports `torch._dynamo`, the first module FSDP and DeviceMesh. In each of
    eight workers on two cores these imports take seconds; in their parent they take one.
    """
    prepare_forks()
    # Before torch's first parallel region: a forked child would hang in its parent's thread pool.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # Makes torch look for GPUs through NVML, not the driver; it accepts no value but `1`.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    import torch
    import torch._dynamo
    import torch.distributed.fsdp
    import torch.distributed.tensor

    import mimo_launch.checkpoint.loading
    import mimo_launch.launcher.worker
    import mimo_launch.train.loop  # noqa: F401

    torch.set_num_threads(1)
