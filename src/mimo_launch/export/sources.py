"""Where the weights of a run came from: the folder, its configuration, the types of its tensors.

Decides: that the source of a module is what `init_from` names, through runs that started from runs.
Relies on: paths as the specs say them, from where the command is started.
Leaves: what is made of it to `export_plan`.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mimo_launch.checkpoint.finding import NoCheckpoint, open_checkpoint
from mimo_launch.hugging_face.folder import (
    Config,
    ConfigError,
    has_weights,
    is_hugging_face,
    read_config,
)
from mimo_launch.hugging_face.headers import FilesError, Header, read_headers
from mimo_launch.hugging_face.part import Part
from mimo_launch.hugging_face.registry import part_of
from mimo_launch.spec.model import Model, Spec

TORCH = {
    "F64": torch.float64,
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
}
# What is left out by rule because it follows from the rest, whatever the model.
_DERIVED = re.compile(r"(inv_freq|position_ids|^lm_head\.weight)$")


@dataclass(frozen=True, slots=True)
class Source:
    """The part of a Hugging Face folder that a module started from.

    `config` is that of the whole folder; `tensors` are by the names of the part's family, with the
    names in the files.
    """

    folder: Path
    config: Config
    part: Part[Any]
    tensors: Mapping[str, tuple[str, Header]]

    def dtype(self, inner: str | None) -> torch.dtype:
        """Return the type of a tensor there; of one that is not there, the most usual."""
        if inner is not None and inner in self.tensors:
            return TORCH[self.tensors[inner][1].dtype]
        usual = Counter(header.dtype for _, header in self.tensors.values()).most_common(1)
        return TORCH[usual[0][0]]

    def unused(self, model: Model) -> Iterator[tuple[str, str, Header]]:
        """Yield what a model of ours does not compute with: name in the family, in the files.

        The tower of a LLaVA has layers behind those whose states become rows.
        """
        for inner, (name, header) in self.tensors.items():
            if self.part.is_ignored(name, model) and not _DERIVED.search(inner):
                yield inner, name, header


def source_of(spec: Spec, name: str) -> Source | None:
    """Return the folder that a module's weights come from, if it is still there."""
    seen: set[Path] = set()
    while (start := spec.modules[name].init_from) is not None:
        folder = Path(start).resolve()
        if folder in seen:
            return None
        seen.add(folder)
        if is_hugging_face(folder):
            return _opened(folder, spec.modules[name].model.kind)
        try:
            spec = open_checkpoint(folder, None).spec
        except NoCheckpoint:
            return None
        if name not in spec.modules:
            return None
    return None


def _opened(folder: Path, kind: str) -> Source | None:
    try:
        if not has_weights(folder):
            return None
        config = read_config(folder)
        part, headers = part_of(config, kind), read_headers(folder)
    except (ConfigError, FilesError):
        return None
    tensors = {
        inner: (name, header)
        for name, header in headers.items()
        if (inner := part.inner_name(name)) is not None and header.dtype in TORCH
    }
    return Source(folder, config, part, tensors) if tensors else None
