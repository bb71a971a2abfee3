"""A checkpoint as one process finds it, without ranks: which one, of what run, with what tensors.

Decides: which checkpoint of a run is meant.
Relies on: `folder` for what is complete. Imports no torch, so that the command line can look.
Leaves: the tensors to `storage`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mimo_launch.checkpoint.folder import (
    DamagedCheckpoint,
    all_checkpoints,
    crc_of,
    is_complete,
    read_marker,
)
from mimo_launch.checkpoint.index import read_index
from mimo_launch.spec.earlier_runs import MARKER
from mimo_launch.spec.load import spec_from_data
from mimo_launch.spec.model import Spec


class NoCheckpoint(Exception):
    """There is no checkpoint to read; the message says what was found instead."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint: its place, step, spec of the run, sums of files, full shapes."""

    path: Path
    step: int
    spec: Spec
    sums: dict[str, tuple[int, int]]
    shapes: dict[str, tuple[int, ...]]

    def segments(self, module: str) -> dict[str, tuple[int, ...]]:
        """Return the full shapes of a module's segments, by their names less the module."""
        prefix = prefix_of(module)
        return {
            name.removeprefix(prefix): shape
            for name, shape in self.shapes.items()
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

    A run that is going on may complete one and delete another meanwhile: then it looks again.

    Raises: NoCheckpoint.
    """
    while True:
        before = _state(path)
        try:
            return _open(path, step)
        except NoCheckpoint:
            if _state(path) == before:
                raise


def _state(path: Path) -> list[tuple[str, int]]:
    """Return what changes when a run completes or deletes a checkpoint."""
    return [(folder.name, _made(folder)) for folder in all_checkpoints(path)]


def _made(folder: Path) -> int:
    try:
        return (folder / MARKER).stat().st_mtime_ns
    except OSError:
        return 0


def _open(path: Path, step: int | None) -> Checkpoint:
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
            try:
                shapes = {name: entry.shape for name, entry in read_index(folder).items()}
            except DamagedCheckpoint as error:
                raise NoCheckpoint(f"{folder} cannot be read: {error}") from error
            return Checkpoint(folder, marker.counts["step"], spec, marker.files, shapes)
        opened.append(str(marker.counts["step"]))
    if not path.is_dir():
        raise NoCheckpoint(f"{path} is no folder")
    wanted = "complete checkpoint" if step is None else f"checkpoint of step {step}"
    others = f"; there are those of {', '.join(reversed(opened))}" if opened else ""
    broken = f"; damaged: {'; '.join(damaged)}" if damaged else ""
    raise NoCheckpoint(f"{path} has no {wanted}{others}{broken}")
