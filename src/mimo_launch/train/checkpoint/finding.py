"""A checkpoint as one process finds it, without ranks: which one, of what run, with what tensors.

Decides: which checkpoint of a run is meant.
Relies on: `folder` for what is complete. Imports no torch, so that the command line can look.
Leaves: the tensors to `storage`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mimo_launch.layout.earlier_runs import MARKER
from mimo_launch.spec.load import spec_from_data
from mimo_launch.spec.model import Spec
from mimo_launch.train.checkpoint.folder import (
    DamagedCheckpoint,
    all_checkpoints,
    crc_of,
    is_complete,
    read_marker,
)
from mimo_launch.train.checkpoint.index import read_index


class NoCheckpoint(Exception):
    """There is no checkpoint to read; the message says what was found instead."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint: where it is, of which step, the spec of the run, sums of its files."""

    path: Path
    step: int
    spec: Spec
    sums: dict[str, tuple[int, int]]

    def segments(self, module: str) -> dict[str, tuple[int, ...]]:
        """Return the full shapes of a module's segments, by their names less the module.

        Raises: NoCheckpoint if the index cannot be read.
        """
        prefix = prefix_of(module)
        try:
            index = read_index(self.path)
        except DamagedCheckpoint as error:
            raise NoCheckpoint(f"{self.path} cannot be read: {error}") from error
        return {
            name.removeprefix(prefix): entry.shape
            for name, entry in index.items()
            if name.startswith(prefix)
        }

    @property
    def num_bytes(self) -> int:
        """Size of its files."""
        return sum(size for size, _ in self.sums.values())

    def check(self, read: Callable[[int], None]) -> None:
        """Read every file once and compare its checksum; `read` is told of bytes.

        Raises: NoCheckpoint if one differs or cannot be read.
        """
        for name, (size, crc) in self.sums.items():
            try:
                found = crc_of(self.path / Path(name).name, lambda: None)
            except OSError as error:
                raise NoCheckpoint(f"{self.path} cannot be read: {error}") from error
            if found != crc:
                raise NoCheckpoint(f"{self.path} is damaged: the checksum of {name} is another")
            read(size)


def prefix_of(module: str) -> str:
    """Return what `chunks` puts in front of the names of a module's weights."""
    return f"weights/{module}."


def open_checkpoint(path: Path, step: int | None) -> Checkpoint:
    """Return the checkpoint of a step of a run, or its newest; `path` may be a checkpoint itself.

    Raises: NoCheckpoint.
    """
    if (path / MARKER).is_file():
        found = [path]
    else:
        found = [folder for folder in all_checkpoints(path) if is_complete(folder)]
    opened, damaged = [], []
    for folder in found:
        try:
            marker = read_marker(folder)
        except DamagedCheckpoint as error:
            damaged.append(f"{folder.name}: {error}")
            continue
        if step in (None, marker.counts["step"]):
            spec = spec_from_data(marker.spec)
            return Checkpoint(folder, marker.counts["step"], spec, marker.files)
        opened.append(str(marker.counts["step"]))
    if not path.is_dir():
        raise NoCheckpoint(f"{path} is no folder")
    wanted = "complete checkpoint" if step is None else f"checkpoint of step {step}"
    others = f"; there are those of {', '.join(reversed(opened))}" if opened else ""
    broken = f"; damaged: {'; '.join(damaged)}" if damaged else ""
    raise NoCheckpoint(f"{path} has no {wanted}{others}{broken}")
