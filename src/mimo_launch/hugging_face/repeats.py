"""Tensors of a folder that hold another one once more, and whether their values are the same.

Decides: that an output layer beside the embedding of a tied model is one of its own if its values
differ, whatever `config.json` says, as `transformers` 5 decides; which values are compared.
Relies on: `further_tokens` for the copies of multi-token prediction; headers for places in files.
Leaves: comparing every value to `checkpoint`, which reads them all.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mimo_launch.hugging_face.decoder import EMBEDDING, HEAD
from mimo_launch.hugging_face.family import Part
from mimo_launch.hugging_face.folder import TensorHeader
from mimo_launch.kinds.registry import kind_of

# As many blocks of as many bytes are compared, so that a folder of any size takes milliseconds.
_BLOCKS, _BLOCK = 64, 1 << 16

Headers = Mapping[str, TensorHeader]


def repeats(part: Part[Any], model: Any) -> dict[str, str]:
    """Return the family's names of tensors that hold one of ours once more, and of that one."""
    copies = part.copies(model).items()
    found = {name: place.name for name, ours in copies if (place := part.place(ours, model))}
    return found | ({HEAD: EMBEDDING} if kind_of(model).is_tied else {})


def unlike(
    folder: Path, part: Part[Any], headers: Headers, pairs: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Yield the names in files of those `pairs` that are both there and hold other values.

    Of large tensors blocks are compared, the first and the last among them.
    """
    there = {inner: name for name in headers if (inner := part.inner_name(name)) is not None}
    for pair in pairs.items():
        if all(inner in there for inner in pair):
            one, other = (there[inner] for inner in pair)
            if _differ(folder, headers[one], headers[other]):
                yield one, other


def as_stored(part: Part[Any], folder: Path, headers: Headers) -> Part[Any]:
    """Return a part, `untied` if the files of a tied one hold an output layer of its own.

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
    except OSError:  # Loading reads the same bytes, and says what is wrong.
        return False
    return False
