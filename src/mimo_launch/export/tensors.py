"""Tensors of a file to be written, and the segments of a checkpoint that they are made of.

Decides: shapes in the files, that rows which pad the vocabulary stay behind, and that every segment
of a module has its place and every row of a file its segment.
Relies on: a family's `place`; shapes as saved.
Leaves: reading and writing to `checkpoint_tensors` and `safetensors_files`.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from mimo_launch.checkpoint.chunks import Chunk
from mimo_launch.hugging_face.family import Place

# Segments of a decoder whose rows are words.
VOCABULARY = ("embedding.weight", "head.weight")


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of a file's tensor from `first_row` on: the first rows of a saved tensor of `saved`.

    `shape` is that of the part as saved, without rows that stay behind.
    """

    name: str
    saved: tuple[int, ...]
    shape: tuple[int, ...]
    first_row: int


@dataclass(frozen=True, slots=True)
class FileTensor:
    """One tensor of a file: made of parts, or `copied` from another file, by its name there.

    Without either it is one number everywhere, `filled`.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    parts: tuple[Part, ...] = ()
    copied: tuple[Path, str] | None = None
    filled: float = 0.0

    @property
    def num_bytes(self) -> int:
        """Size in the file."""
        return math.prod(self.shape) * self.dtype.itemsize

    def chunks(self, tensor: Tensor) -> list[Chunk]:
        """Return what fills `tensor`, which has this shape and type, as views of it."""
        found = []
        for part in self.parts:
            num_rows = math.prod(part.shape) * self.shape[0] // math.prod(self.shape)
            rows = tensor.narrow(0, part.first_row, num_rows).view(part.shape)
            zero = (0,) * len(part.saved)
            found.append(Chunk(part.name, part.saved, zero, rows, counted=False))
        return found


def file_tensors(
    segments: Mapping[str, tuple[int, ...]],
    place: Callable[[str], Place],
    dtype_of: Callable[[str], torch.dtype],
    *,
    prefix: str,
    vocab: int | None = None,
) -> list[FileTensor]:
    """Return the tensors that hold all segments of a module, in the order of the segments.

    `segments` maps names less `prefix`, which is that of the module in the checkpoint, to shapes;
    `vocab` is the number of words without padding. Raises: KeyError for a segment without a place;
    ValueError if the segments of a tensor do not fill it.
    """
    made: dict[str, FileTensor] = {}
    for name, saved in segments.items():
        at = place(name)
        words = vocab if name in VOCABULARY else None
        shape = saved if words is None else (words, *saved[1:])
        part = Part(prefix + name, saved, shape, at.first_row)
        last = at.first_row + (shape[0] if at.num_rows is None else at.num_rows)
        whole = at.shape or (last, *shape[1:])
        known = made.get(at.name, FileTensor(at.name, whole, dtype_of(name)))
        if at.shape is None:
            whole = (max(last, known.shape[0]), *shape[1:])
        made[at.name] = replace(known, shape=whole, parts=(*known.parts, part))
    for tensor in made.values():
        if sum(math.prod(part.shape) for part in tensor.parts) != math.prod(tensor.shape):
            raise ValueError(f"{tensor.name} {tensor.shape} is not filled by {tensor.parts}")
    return list(made.values())
