"""Values that ranks tell each other.

Decides: nothing.
Relies on: pickles between ranks of one job, which trust each other.
Leaves: tensors to `collectives`.
"""

from typing import Any

import torch.distributed as dist
from torch.distributed import ProcessGroup


def gather_objects(value: Any, group: ProcessGroup | None = None) -> list[Any]:
    """Return the values of all ranks of `group` (default: the world), by rank."""
    values: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(values, value, group=group)
    return values


def from_first(value: Any, group: ProcessGroup) -> Any:
    """Return the value of the first rank of `group`, rank 0."""
    values = [value]
    dist.broadcast_object_list(values, src=0, group=group)
    return values[0]
