"""What a Hugging Face folder holds, by our words: modules, their sizes, tensors and types.

Decides: what is said of a folder, and which keys of a model need not be written.
Relies on: `config.json` and the headers of the files; no tensor is read.
Leaves: showing it to `cli.inspect`.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mimo_launch.layout.hugging_face.architectures import value_of
from mimo_launch.layout.hugging_face.family import Family
from mimo_launch.layout.hugging_face.folder import Config, has_weights, read_config
from mimo_launch.layout.hugging_face.headers import Header, read_headers
from mimo_launch.layout.hugging_face.registry import family_of
from mimo_launch.spec.load import model_from_data

NAMES = {"decoder": "language", "vit": "vision", "audio": "audio"}


@dataclass(frozen=True, slots=True)
class Part:
    """One module of a folder: its name and kind in a spec, keys of `model`, and its tensors.

    `not_computed` are settings, as `key: value`, that our model does not have; `placeholder` is the
    token that stands for its rows, if the folder says one.
    """

    name: str
    model_type: str
    kind: str
    keys: Mapping[str, Any]
    not_computed: tuple[str, ...]
    tensors: int
    parameters: int
    placeholder: int | None = None


@dataclass(frozen=True, slots=True)
class Contents:
    """A folder: its `model_type`, modules, files, and elements by type (`BF16`).

    `unread` is what of it belongs to no module of ours, in words.
    """

    folder: Path
    model_type: str
    parts: tuple[Part, ...]
    files: tuple[str, ...]
    dtypes: Mapping[str, int]
    unread: tuple[str, ...]

    @property
    def parameters(self) -> int:
        """Number of elements in all files."""
        return sum(self.dtypes.values())


def read_contents(folder: Path) -> Contents:
    """Look into a folder. Raises: ConfigError; FilesError."""
    config = read_config(folder)
    headers = read_headers(folder) if has_weights(folder) else {}
    dtypes = Counter[str]()
    for header in headers.values():
        dtypes[header.dtype] += header.numel
    family = family_of(config)
    model_type = str(config.get("model_type"))
    return Contents(
        folder,
        model_type,
        () if family is None else (_part(family, config, headers),),
        tuple(sorted({header.file for header in headers.values()})),
        dict(dtypes),
        (f"model_type: {model_type}",) if family is None else (),
    )


def _part(family: Family[Any], config: Config, headers: Mapping[str, Header]) -> Part:
    keys = family.keys(config)
    model = model_from_data({"kind": family.kind, **keys})
    mine = {name: header for name, header in headers.items() if not family.is_ignored(name, model)}
    return Part(
        NAMES[family.kind],
        family.model_type,
        family.kind,
        _needed(family.kind, keys),
        tuple(family.not_computed(config)),
        len(mine),
        sum(header.numel for header in mine.values()),
    )


def _needed(kind: str, keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys without those that say what is so by default."""
    kept = dict(keys)
    for key, value in keys.items():
        rest = {name: each for name, each in kept.items() if name != key}
        try:
            default = value_of(model_from_data({"kind": kind, **rest}), key)
        except ValueError:  # The key has no default.
            continue
        if default == value:
            kept = rest
    return kept
