"""Whether something else started this process as a rank.

Decides: that RANK and WORLD_SIZE together mean so, as torchrun sets them.
Relies on: the environment only; no torch.
Leaves: the rendezvous to `worker`.
"""

import os


def joined_rank() -> int | None:
    """Return this process's rank if torchrun started it, else None."""
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return int(os.environ["RANK"])
    return None


def joined_world() -> int | None:
    """Return the number of ranks that torchrun started, if it did."""
    return int(os.environ["WORLD_SIZE"]) if joined_rank() is not None else None
