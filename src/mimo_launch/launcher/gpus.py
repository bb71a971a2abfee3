"""How many GPUs this host has, learned without touching the driver in this process.

Decides: that a forked child looks.
Relies on: nothing but fork; torch is imported only if it has to look.
Leaves: what to do about too few to `cli`.

A process that has initialised CUDA cannot fork workers that use it, and even the question "is there
a GPU" may initialise it: `torch.cuda.is_available` asks the CUDA runtime unless
PYTORCH_NVML_BASED_CUDA_CHECK is set and NVML answers.
"""

import multiprocessing
import sys
from functools import lru_cache
from multiprocessing.connection import Connection


@lru_cache(maxsize=1)
def num_gpus() -> int:
    """Return the number of GPUs that workers of this host would see."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():  # It is too late to be careful.
        return int(torch.cuda.device_count())
    context = multiprocessing.get_context("fork")
    reader, writer = context.Pipe(duplex=False)
    child = context.Process(target=_look, args=(writer,), daemon=True)
    child.start()
    writer.close()
    try:
        found: int = reader.recv()
    except EOFError:  # A driver that ends the process that asks has no GPU to offer.
        found = 0
    child.join()
    reader.close()
    return found


def _look(writer: Connection) -> None:
    import torch

    writer.send(torch.cuda.device_count() if torch.cuda.is_available() else 0)
