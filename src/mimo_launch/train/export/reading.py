"""Reads tensors of a checkpoint of any layout in one process, without process groups.

Decides: that values are converted as they are read, into the tensors that will be written.
Relies on: `checkpoint.storage`.
Leaves: what becomes of them to `export`.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from mimo_launch.train.checkpoint.finding import Checkpoint
from mimo_launch.train.checkpoint.storage import read_chunks
from mimo_launch.train.export.tensors import FileTensor


def read_tensors(checkpoint: Checkpoint, tensors: Sequence[FileTensor]) -> list[Tensor]:
    """Return tensors of the files to be written. Raises: CheckpointError."""
    made = [torch.empty(each.shape, dtype=each.dtype) for each in tensors]
    pairs = zip(tensors, made, strict=True)
    chunks = [chunk for each, tensor in pairs for chunk in each.chunks(tensor)]
    read_chunks(checkpoint.path, chunks, None, lambda: None)
    return made
