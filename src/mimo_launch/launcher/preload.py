"""Imports what every worker needs, once, before workers are forked.

Decides: the list of slow imports; none initialises CUDA, which does not survive a fork.
Relies on: fork; a spawned worker gains nothing. `output_streams` for what workers print through.
Leaves: forking to `one_host` and `run_on_ranks`.
"""

import os

from mimo_launch.launcher.output_streams import own_streams_after_fork


def import_for_workers() -> None:
    """Import torch and its distributed parts with one thread per process.

    `torch._dynamo` is imported by the first optimizer, FSDP and DeviceMesh by the first module: in
    each of eight workers on two cores that takes seconds, in their parent it takes one.
    """
    own_streams_after_fork()
    # Before torch's first parallel region: a forked child would hang in its parent's thread pool.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # Whoever asks for GPUs asks NVML, not the driver. `1` is the only value that torch knows.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    import torch
    import torch._dynamo
    import torch.distributed.fsdp
    import torch.distributed.tensor

    import mimo_launch.checkpoint.start_of_run
    import mimo_launch.launcher.worker
    import mimo_launch.train.loop  # noqa: F401

    torch.set_num_threads(1)
