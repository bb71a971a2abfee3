"""Finds the checkpoint that a run reads: the newest with all files present and unchanged.

Decides: which checkpoint is usable; that a damaged one of the run itself is set aside.
Relies on: `folder` for completeness, `index` for tensors.
Leaves: the tensors to `loading`.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist

from mimo_launch.checkpoint.folder import (
    DAMAGED,
    DamagedCheckpoint,
    Marker,
    Sums,
    all_checkpoints,
    crc_of,
    is_complete,
    read_marker,
    set_aside,
)
from mimo_launch.checkpoint.index import read_index
from mimo_launch.checkpoint.storage import CheckpointError
from mimo_launch.comm.objects import from_first, gather_objects
from mimo_launch.train.events import CheckpointPassedOver, Listener


@dataclass(frozen=True, slots=True)
class Usable:
    """A checkpoint with all files present and unchanged."""

    path: Path
    marker: Marker

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the full shape of every tensor. Raises: CheckpointError."""
        try:
            return {name: entry.shape for name, entry in read_index(self.path).items()}
        except DamagedCheckpoint as error:  # It has changed since it was found usable.
            raise CheckpointError(f"{self.path}: {error}") from error


def newest_usable(
    start: Path, group: dist.ProcessGroup, emit: Listener, beat: Callable[[], None], *, own: bool
) -> Usable | None:
    """Return the newest usable checkpoint of a run folder (or `start`, if it is one itself).

    A run resumes from it. This function compares contents with their checksums.
    `launcher.run_folder.newest_checkpoint`, which shows the user where a run would resume, and
    `checkpoint.index.open_checkpoint`, for commands that read weights, check only sizes.

    Emits an event for each checkpoint that is passed over, and sets it aside if the folder is the
    run's `own`. Each file is read once, by one of the ranks, which calls `beat` meanwhile. Returns
    None if there never was a complete checkpoint.

    Ranks: collective over `group`. Raises: CheckpointError if all complete checkpoints are damaged.
    """
    folders = all_checkpoints(start)
    if not folders and not own and start.is_dir():
        candidates, lost = [start], True
    else:
        candidates = [path for path in folders if path.suffix != DAMAGED]
        lost = any(path.suffix == DAMAGED or is_complete(path) for path in folders)
    candidates, lost = from_first((candidates, lost), group)
    is_first = dist.get_rank(group) == 0
    for path in candidates:
        found: tuple[Marker | None, str] | None = None
        if is_first:
            try:
                found = read_marker(path), ""
                read_index(path)
            except DamagedCheckpoint as error:
                found = None, str(error)
        marker, reason = from_first(found, group)
        if marker is not None:
            reason = _first_damage(path, marker, group, beat)
        if marker is not None and not reason:
            return Usable(path, marker)
        emit(CheckpointPassedOver(checkpoint=str(path), reason=reason))
        if own and is_first:
            with suppress(OSError):  # The checkpoint is passed over in any case.
                set_aside(path)
    if lost:
        raise CheckpointError(f"every checkpoint of {start} is damaged; `--no-resume` starts anew")
    return None


def sums_of(
    folder: Path, names: Iterable[str], group: dist.ProcessGroup, beat: Callable[[], None]
) -> tuple[Sums, str]:
    """Return sizes and checksums of files, divided among the ranks, and why one cannot be read.

    Ranks: collective over `group`.
    """
    rank, found, failed = dist.get_rank(group), Sums(), ""
    for name in sorted(names)[rank :: dist.get_world_size(group)]:
        path = folder / Path(name).name
        try:
            found[name] = path.stat().st_size, crc_of(path, beat)
        except OSError as error:
            failed = f"{name} cannot be read: {error}"
            break
    answers = gather_objects((found, failed), group)
    sums = {name: each for part, _ in answers for name, each in part.items()}
    return sums, next((reason for _, reason in answers if reason), "")


def _first_damage(
    path: Path, marker: Marker, group: dist.ProcessGroup, beat: Callable[[], None]
) -> str:
    """Describe the first damaged file, or return ""."""
    sums, failed = sums_of(path, marker.files, group, beat)
    differ = [n for n in sorted(sums) if sums[n] != marker.files[n]]
    return failed or next((f"{n} is damaged: its checksum is another" for n in differ), "")
