"""Reads tensors of a checkpoint of any layout in one process, without process groups.

Decides: that values are converted as they are read, into the tensors that will be written.
Relies on: `checkpoint.storage`.
Leaves: what becomes of them to `export`.
"""

from collections.abc import Sequence

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from mimo_launch.checkpoint.finding import Checkpoint
from mimo_launch.checkpoint.storage import read_chunks
from mimo_launch.export.tensors import FileTensor


def read_tensors(checkpoint: Checkpoint, tensors: Sequence[FileTensor]) -> list[Tensor]:
    """Return tensors of the files to be written. Raises: CheckpointError; OSError."""
    made = [_begun(each) for each in tensors]
    pairs = zip(tensors, made, strict=True)
    chunks = [chunk for each, tensor in pairs for chunk in each.chunks(tensor)]
    read_chunks(checkpoint.path, chunks, None, lambda: None)
    return made


def _begun(tensor: FileTensor) -> Tensor:
    """Return a tensor that its parts, if it has any, are yet to fill. Raises: OSError."""
    if tensor.copied is None:
        return torch.full(tensor.shape, tensor.filled, dtype=tensor.dtype)
    file, name = tensor.copied
    try:
        with safe_open(file, framework="pt") as opened:
            found: Tensor = opened.get_tensor(name)
    except SafetensorError as error:
        raise OSError(f"{file}: {error}") from error
    return found.to(tensor.dtype)
