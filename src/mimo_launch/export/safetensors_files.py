"""Safetensors files, written a few tensors at a time, and the index that lists several of them.

Decides: how tensors are shared out to files, what these are called, and how much is in memory.
Relies on: the format (https://huggingface.co/docs/safetensors/index#format): the package itself
writes a file from tensors that are all in memory, and copies them once more.
Leaves: values to `read`.
"""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from mimo_launch.export.tensors import FileTensor
from mimo_launch.hugging_face.folder import INDEX, WEIGHTS

# What is read and written at once; a single tensor may be larger.
BATCH = 1 << 28
DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
}
Read = Callable[[Sequence[FileTensor]], list[Tensor]]


def write_tensors(
    folder: Path,
    tensors: Sequence[FileTensor],
    max_bytes: int,
    read: Read,
    wrote: Callable[[int], None],
    *,
    name: str = WEIGHTS,
) -> None:
    """Write tensors into files of at most `max_bytes` each, and an index if they are several.

    A single file is called `name`. `read` returns values, `wrote` is told of bytes as they are
    written. Raises: OSError.
    """
    files = list(_cut(tensors, max_bytes))
    names = [name]
    if len(files) > 1:
        names = [f"model-{i:05d}-of-{len(files):05d}.safetensors" for i, _ in enumerate(files, 1)]
    for file, part in zip(names, files, strict=True):
        _write_file(folder / file, part, read, wrote)
    if len(files) > 1:
        index = {
            "metadata": {"total_size": sum(each.num_bytes for each in tensors)},
            "weight_map": {
                each.name: file for file, part in zip(names, files, strict=True) for each in part
            },
        }
        write_json(folder / INDEX, index)


def write_json(path: Path, content: object) -> None:
    """Write a file of JSON, synced to disk. Raises: OSError."""
    with path.open("w", encoding="utf-8") as file:
        file.write(json.dumps(content, indent=2) + "\n")
        file.flush()
        os.fsync(file.fileno())


def _cut(tensors: Sequence[FileTensor], max_bytes: int) -> Iterator[list[FileTensor]]:
    """Yield consecutive tensors of at most so many bytes; one alone may have more."""
    taken: list[FileTensor] = []
    size = 0
    for each in tensors:
        if taken and size + each.num_bytes > max_bytes:
            yield taken
            taken, size = [], 0
        taken.append(each)
        size += each.num_bytes
    yield taken


def _write_file(
    path: Path, tensors: Sequence[FileTensor], read: Read, wrote: Callable[[int], None]
) -> None:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    start = 0
    for each in tensors:
        stop = start + each.num_bytes
        place = {"dtype": DTYPES[each.dtype], "shape": each.shape, "data_offsets": [start, stop]}
        header[each.name] = place
        start = stop
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # So that tensors begin at a multiple of eight bytes.
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for batch in _cut(tensors, BATCH):
            for tensor in read(batch):
                file.write(tensor.reshape(-1).view(torch.uint8).numpy().data)
                wrote(tensor.nbytes)
        file.flush()
        os.fsync(file.fileno())
