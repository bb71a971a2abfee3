"""What the safetensors files of a folder hold, by their headers.

Decides: which files are looked at, and when one is no safetensors file.
Relies on: the format: eight bytes with the length of a JSON object, the object, then the tensors
(https://huggingface.co/docs/safetensors/index#format). No package is needed to read that much.
Leaves: the tensors to `train.checkpoint`.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mimo_launch.layout.hugging_face.folder import INDEX, WEIGHTS

# The format allows no longer header.
MAX_HEADER = 100_000_000
# Types as the format calls them, and as specs do.
TYPES = {"F64": "fp64", "F32": "fp32", "BF16": "bf16", "F16": "fp16"}
_METADATA = "__metadata__"


class FilesError(ValueError):
    """The files of weights cannot be read; the message is one line."""


@dataclass(frozen=True, slots=True)
class Header:
    """One tensor: the name of its file, its type as the format calls it (`BF16`), its shape."""

    file: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


def read_headers(folder: Path) -> dict[str, Header]:
    """Return every tensor of the files that transformers would load. Raises: FilesError."""
    return {
        name: header for file in weight_files(folder) for name, header in _headers(folder / file)
    }


def weight_files(folder: Path) -> list[str]:
    """Return the names of the files of weights, in order. Raises: FilesError."""
    if (folder / WEIGHTS).is_file():
        return [WEIGHTS]
    try:
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FilesError(f"{INDEX} cannot be read: {error}") from error
    places = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(places, dict) or not all(isinstance(x, str) for x in places.values()):
        raise FilesError(f"{INDEX} has no `weight_map` of file names")
    # The name alone: a path of a stranger must not lead out of the folder.
    return sorted({Path(place).name for place in places.values()})


def _headers(path: Path) -> Iterator[tuple[str, Header]]:
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > min(MAX_HEADER, path.stat().st_size):
                raise FilesError(f"{path.name} is no safetensors file")
            content = json.loads(file.read(length))
        for name, entry in content.items():
            if name != _METADATA:
                yield name, Header(path.name, entry["dtype"], _shape(entry["shape"]))
    except FilesError:
        raise
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise FilesError(f"{path.name} cannot be read: {error!r}") from error


def _shape(entry: Any) -> tuple[int, ...]:
    if not all(isinstance(size, int) and size >= 0 for size in entry):
        raise ValueError(f"shape {entry}")
    return tuple(entry)
