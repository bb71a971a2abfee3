"""The files of a Hugging Face folder: its `config.json` and the headers of its safetensors.

Decides: which files are read, how to read a number that may be missing or null, and when a file is
not a safetensors file.
Relies on: the names that transformers gives its files; the format of safetensors: eight bytes with
the length of a JSON object, the object, then the tensors
(https://huggingface.co/docs/safetensors/index#format). Reading the headers needs no package.
Leaves: what a configuration means to the families, reading tensors to `checkpoint`.
"""

import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path
from typing import Any

from mimo_launch.diag.frozen import frozen
from mimo_launch.spec.files import parse_json, read_json

CONFIG, ADAPTER = "config.json", "adapter_config.json"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"

Config = dict[str, Any]


class ConfigError(ValueError):
    """`config.json` cannot be read, or lacks a required key; the message is one line."""


def is_hugging_face(folder: Path) -> bool:
    """Return whether a folder is a Hugging Face model, whatever its `config.json` contains."""
    return os.path.lexists(folder / CONFIG)


def has_weights(folder: Path) -> bool:
    """Return whether anything has a name that transformers gives to safetensors.

    A FIFO or a broken link counts: its reader reports what it is.
    """
    return any(os.path.lexists(folder / name) for name in (WEIGHTS, INDEX))


def has_adapter(folder: Path) -> bool:
    """Return whether `transformers` would add an adapter (LoRA) to the weights; we read none."""
    return os.path.lexists(folder / ADAPTER)


def read_config(folder: Path) -> Config:
    """Return `config.json`. Raises: ConfigError."""
    try:
        config = read_json(folder / CONFIG)
    except (OSError, ValueError) as error:
        if not os.path.lexists(folder):
            raise ConfigError("there is no such folder") from error
        reason = error.strerror if isinstance(error, OSError) else None
        raise ConfigError(f"{CONFIG} cannot be read: {reason or error}") from error
    if not isinstance(config, dict):
        raise ConfigError(f"{CONFIG} is not a JSON object")
    return config


def number(config: Config, key: str, *defaults: float | None) -> int | float:
    """Return a number, or the first default that is one.

    A key that is null follows from other keys and gets the last default. Raises: ConfigError.
    """
    options = [None, *defaults[-1:]] if key in config else list(defaults)
    found = next((x for x in (config.get(key), *options) if x is not None), None)
    if found is None:
        raise ConfigError(f"{CONFIG} does not say `{key}`")
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise ConfigError(f"`{key}` in {CONFIG} is {short(found)}, not a number")
    return found


def section(config: Config, key: str) -> Config:
    """Return a configuration inside another, empty if it is missing. Raises: ConfigError."""
    found = config.get(key) or {}
    if not isinstance(found, dict):
        raise ConfigError(f"`{key}` in {CONFIG} is {short(found)}, not an object")
    return found


@contextmanager
def reading_config() -> Iterator[None]:
    """Raise ConfigError where a value has a type that no model uses.

    Configurations come from anywhere and have hundreds of keys, so errors are caught in one place.
    """
    try:
        yield
    except ConfigError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ConfigError(f"{CONFIG} is malformed: {error!r}") from error


def short(value: Any) -> str:
    """Return a value of the file, shortened for messages."""
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


# The format allows no longer header.
MAX_HEADER = 100_000_000
# Names of types in the format, and in specs.
TYPES = {
    "F64": "fp64",
    "F32": "fp32",
    "BF16": "bf16",
    "F16": "fp16",
    "FP8": "fp8",
    "MXFP4": "mxfp4",
    "GPTQ": "int4 (GPTQ)",
    "AWQ": "int4 (AWQ)",
    "CT4": "int4",
    "CT8": "int8",
}
_METADATA = "__metadata__"
_MAX_DIMENSIONS = 16
# Bytes of an element; types of less than a byte, and new ones, are not checked.
_BYTES = {
    **dict.fromkeys(("F64", "I64", "U64"), 8),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("BF16", "F16", "I16", "U16"), 2),
    **dict.fromkeys(("F8_E4M3", "F8_E5M2", "I8", "U8", "BOOL"), 1),
}


class FilesError(ValueError):
    """The weight files cannot be read; the message is one line."""


@frozen
class TensorHeader:
    """One tensor: the name of its file, its type in the format's terms (`BF16`), its shape.

    `at` is its range of bytes in the file.
    """

    file: str
    dtype: str
    shape: tuple[int, ...]
    at: range = field(default=range(0), kw_only=True)

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


def read_headers(folder: Path) -> dict[str, TensorHeader]:
    """Return every tensor of the files that transformers would load. Raises: FilesError."""
    return {
        name: header for file in weight_files(folder) for name, header in _headers(folder / file)
    }


def weight_files(folder: Path) -> list[str]:
    """Return the names of the weight files, in order. Raises: FilesError."""
    if os.path.lexists(folder / WEIGHTS):
        return [WEIGHTS]
    try:
        index = read_json(folder / INDEX)
    except (OSError, ValueError) as error:
        raise FilesError(f"{INDEX} cannot be read: {error}") from error
    places = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(places, dict) or not all(isinstance(x, str) for x in places.values()):
        raise FilesError(f"{INDEX} has no `weight_map` of file names")
    # Only the name: a path from an untrusted file must not lead out of the folder.
    return sorted({Path(place).name for place in places.values()})


def _headers(path: Path) -> Iterator[tuple[str, TensorHeader]]:
    try:
        if not path.is_file():
            raise FilesError(f"{path.name} is missing, or not a regular file")
        with path.open("rb") as file:
            size = path.stat().st_size
            length = int.from_bytes(file.read(8), "little")
            if length > min(MAX_HEADER, size):
                raise FilesError(f"{path.name} is not a safetensors file")
            content = parse_json(file.read(length).decode("utf-8"))
        found, spans = {}, []
        for name, entry in content.items():
            if name != _METADATA:
                place = _numbers(entry["data_offsets"])
                at = range(*(8 + length + each for each in place[:2]))
                shape = _numbers(entry["shape"])
                found[name] = TensorHeader(path.name, str(entry["dtype"]), shape, at=at)
                spans.append((name, found[name], place))
    except FilesError:
        raise
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise FilesError(f"{path.name} cannot be read: {error!r}") from error
    _check_places(path.name, spans, size - 8 - length)
    yield from found.items()


def _check_places(
    file: str, spans: list[tuple[str, TensorHeader, tuple[int, ...]]], size: int
) -> None:
    """Check the offsets of tensors against their shapes and the file size. Raises: FilesError.

    The format leaves no gaps: one tensor begins where another ends.
    """
    end = 0
    for name, header, place in sorted(spans, key=lambda span: span[2]):
        if len(place) != 2 or place[0] != end or place[1] < place[0]:
            raise FilesError(
                f"{file} is damaged: {name} does not begin where the tensor before it ends"
            )
        end = place[1]
        width = _BYTES.get(header.dtype)
        if width is not None and header.numel * width != end - place[0]:
            raise FilesError(
                f"{file} is damaged: {name} of shape {list(header.shape)} in {header.dtype} has "
                f"{header.numel * width:,} bytes, not {end - place[0]:,}"
            )
    if end != size:
        what = "cut off" if end > size else "damaged"
        raise FilesError(f"{file} is {what}: its header names {end:,} bytes, but it has {size:,}")


def _numbers(entry: Any) -> tuple[int, ...]:
    if not isinstance(entry, list) or not all(type(n) is int and 0 <= n < 2**62 for n in entry):
        raise ValueError(f"{short(entry)} is not a list of sizes")
    if len(entry) > _MAX_DIMENSIONS:
        raise ValueError(f"{len(entry)} dimensions")
    return tuple(entry)
