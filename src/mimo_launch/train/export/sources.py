"""Where the weights of a run came from: the folder, its configuration, the types of its tensors.

Decides: that the source of a module is what `init_from` names, through runs that started from runs.
Relies on: paths as the specs say them, from where the command is started.
Leaves: what is made of it to `export`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from mimo_launch.layout.hugging_face.folder import (
    Config,
    ConfigError,
    has_weights,
    is_hugging_face,
    read_config,
)
from mimo_launch.layout.hugging_face.headers import FilesError, Header, read_headers
from mimo_launch.spec.model import Spec
from mimo_launch.train.checkpoint.finding import NoCheckpoint, open_checkpoint

_TORCH = {
    "F64": torch.float64,
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
}


@dataclass(frozen=True, slots=True)
class Source:
    """A Hugging Face folder that a module started from."""

    folder: Path
    config: Config
    headers: Mapping[str, Header]

    def dtype(self, name: str) -> torch.dtype:
        """Return the type of a tensor there; of one that is not there, that of the first."""
        header = self.headers.get(name) or next(iter(self.headers.values()))
        return _TORCH.get(header.dtype, torch.float32)


def source_of(spec: Spec, name: str) -> Source | None:
    """Return the folder that a module's weights come from, if it is still there."""
    seen: set[Path] = set()
    while (start := spec.modules[name].init_from) is not None:
        folder = Path(start).resolve()
        if folder in seen:
            return None
        seen.add(folder)
        if is_hugging_face(folder):
            try:
                headers = read_headers(folder) if has_weights(folder) else {}
                return Source(folder, read_config(folder), headers) if headers else None
            except (ConfigError, FilesError):
                return None
        try:
            spec = open_checkpoint(folder, None).spec
        except NoCheckpoint:
            return None
        if name not in spec.modules:
            return None
    return None
