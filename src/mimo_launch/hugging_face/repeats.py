"""Tensors of a folder that repeat another one, and whether their values are the same.

Decides: that a tied model is untied if its output layer and its embedding have different values,
whatever `config.json` says, as in `transformers` 5; which values are compared.
Relies on: `family` for the copies of multi-token prediction; headers for places in files.
Leaves: comparing all values to `checkpoint`, which reads them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mimo_launch.hugging_face.folder import TensorHeader
from mimo_launch.hugging_face.part import Part
from mimo_launch.hugging_face.tensors import EMBEDDING, HEAD
from mimo_launch.kinds.registry import kind_of

# The number of compared blocks, and their bytes: few, so that any folder takes milliseconds.
_BLOCKS, _BLOCK = 64, 1 << 16

Headers = Mapping[str, TensorHeader]


def repeats(part: Part, model: Any) -> dict[str, str]:
    """Return the family's names of tensors that repeat another one, with the latter's name."""
    copies = part.copies(model).items()
    found = {name: place.name for name, ours in copies if (place := part.place(ours, model))}
    return found | ({HEAD: EMBEDDING} if kind_of(model).text.tied else {})


def unlike(
    folder: Path, part: Part, headers: Headers, pairs: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Yield, by names in files, the `pairs` that both exist and hold different values.

    For large tensors only blocks are compared, including the first and the last.
    """
    there = {inner: name for name in headers if (inner := part.inner_name(name)) is not None}
    for pair in pairs.items():
        if all(inner in there for inner in pair):
            one, other = (there[inner] for inner in pair)
            if _differ(folder, headers[one], headers[other]):
                yield one, other


def as_stored(part: Part, folder: Path, headers: Headers) -> Part:
    """Return a part, `untied` if it is tied but its files hold a different output layer.

    Raises: ConfigError.
    """
    if part.not_computed() or not part.keys().get("tied"):
        return part
    return replace(part, untied=any(unlike(folder, part, headers, {HEAD: EMBEDDING})))


def _differ(folder: Path, one: TensorHeader, other: TensorHeader) -> bool:
    """Return whether two tensors differ in type, shape or one of the compared blocks."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return True
    last = max(0, len(one.at) - _BLOCK)
    starts = (*range(0, last, max(_BLOCK, last // (_BLOCKS - 1))), last)
    try:
        with (folder / one.file).open("rb") as first, (folder / other.file).open("rb") as second:
            for start in starts:
                first.seek(one.at.start + start)
                second.seek(other.at.start + start)
                size = min(_BLOCK, len(one.at))
                if first.read(size) != second.read(size):
                    return True
    except OSError:  # Loading reads the same bytes and reports the error.
        return False
    return False
