"""Takes the state of a run, or the weights of a module, from a checkpoint of any layout.

Decides: which checkpoint is usable, and what a tensor that does not fit means: an error when a run
goes on; in `init_from` an error, too, unless the spec allows it.
Relies on: `folder` for completeness, `storage` for tensors.
Leaves: when to load to `checkpoint.start_of_run`.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist

from mimo_launch.checkpoint.chunks import (
    FP8,
    MOMENTS,
    WEIGHTS,
    WeightsDoNotFit,
    differences,
    fit,
    set_update_counts,
    state_chunks,
    weight_chunks,
)
from mimo_launch.checkpoint.folder import (
    DAMAGED,
    DamagedCheckpoint,
    Marker,
    all_checkpoints,
    crc_of,
    is_complete,
    read_marker,
    set_aside,
)
from mimo_launch.checkpoint.index import read_index
from mimo_launch.checkpoint.storage import CheckpointError, read_chunks
from mimo_launch.comm.host_objects import from_first, gather_objects
from mimo_launch.train.events import CheckpointPassedOver, Listener, WeightsLoaded
from mimo_launch.train.run_state import RunState
from mimo_launch.train.session import RankSession


@dataclass(frozen=True, slots=True)
class Usable:
    """A checkpoint whose files are all there and as they were written."""

    path: Path
    marker: Marker

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the full shape of every tensor. Raises: CheckpointError."""
        try:
            return {name: entry.shape for name, entry in read_index(self.path).items()}
        except DamagedCheckpoint as error:  # Since it was found usable.
            raise CheckpointError(f"{self.path}: {error}") from error


def newest_usable(
    start: Path, group: dist.ProcessGroup, emit: Listener, beat: Callable[[], None], *, own: bool
) -> Usable | None:
    """Return the newest usable checkpoint of a run folder (or `start`, if it is one itself).

    Each one that is passed over is told to `emit`, and renamed if the folder is the run's `own`.
    Every file is read once, by one of the ranks, which calls `beat` as it reads. Returns None if
    there never was a complete one.

    Ranks: collective over `group`. Raises: CheckpointError if complete ones exist, all damaged.
    """
    candidates, lost = from_first(_candidates(start, own=own), group)
    for path in candidates:
        is_first = dist.get_rank(group) == 0
        marker, reason = from_first(_read(path) if is_first else None, group)
        if marker is not None:
            reason = _first_damage(path, marker, group, beat)
        if marker is not None and not reason:
            return Usable(path, marker)
        emit(CheckpointPassedOver(checkpoint=str(path), reason=reason))
        if own and is_first and is_complete(path):
            with suppress(OSError):  # It is passed over all the same.
                set_aside(path)
    if lost:
        raise CheckpointError(f"every checkpoint of {start} is damaged; `--no-resume` starts anew")
    return None


def _candidates(start: Path, *, own: bool) -> tuple[list[Path], bool]:
    """Return what to look at, the newest first, and whether anything in it was ever complete."""
    found = all_checkpoints(start)
    if not found and not own and start.is_dir():
        return [start], True
    lost = any(path.suffix == DAMAGED or is_complete(path) for path in found)
    return [path for path in found if path.suffix != DAMAGED], lost


def _read(path: Path) -> tuple[Marker | None, str]:
    try:
        marker = read_marker(path)
        read_index(path)
        return marker, ""
    except DamagedCheckpoint as error:
        return None, str(error)


def load_state(
    session: RankSession, usable: Usable, group: dist.ProcessGroup
) -> tuple[RunState, tuple[str, ...]]:
    """Fill weights and optimizers; return where the run stood, and modules without saved moments.

    A module that was frozen when it was saved, or had another optimizer, starts with moments of 0.

    Ranks: collective over the world. Raises: WeightsDoNotFit if a weight is missing or has another
    shape; CheckpointError if a file cannot be read.
    """
    saved = usable.shapes()
    # Of another backend or history: scales find their values within a few steps.
    chunks = [
        chunk
        for chunk in state_chunks(session.modules, session.updates)
        if not chunk.name.startswith(FP8) or saved.get(chunk.name) == chunk.shape
    ]
    found = fit(saved, chunks, group)
    moments = tuple(
        name for name in found.missing if name.startswith(tuple(f"{m}/" for m in MOMENTS))
    )
    weights = [name for name in found.missing if name not in moments]
    if weights or found.misfits:
        raise WeightsDoNotFit(
            f"{usable.path} is of another model, so the run cannot go on from it: "
            + differences(missing_there=weights, of_another_shape=found.misfits)
            + "; train under another `name`, with `init_from` for weights that do fit"
        )
    read_chunks(usable.path, found.chunks, group, session.progress.beat)
    set_update_counts(session.modules, session.updates, usable.marker.updates)
    fresh = {name.partition("/")[2].partition(".")[0] for name in moments}
    return RunState(**usable.marker.counts), tuple(sorted(fresh))


def load_weights(
    session: RankSession, name: str, usable: Usable, group: dist.ProcessGroup
) -> WeightsLoaded:
    """Fill the weights of one module with those that fit.

    Ranks: collective over the world. Raises: WeightsDoNotFit if any does not fit and the spec does
    not say `init_partial`, or if none fits; CheckpointError if a file cannot be read.
    """
    module = session.modules.get(name)
    chunks = [] if module is None else list(weight_chunks(module))
    found = fit(usable.shapes(), chunks, group, f"{WEIGHTS}/{name}.")
    missing, misfits = tuple(found.missing), found.misfits
    if found.num_loaded == 0 or (
        (missing or misfits) and not session.spec.modules[name].init_partial
    ):
        raise WeightsDoNotFit(
            f"`init_from` of `{name}`: {usable.path} does not fit: "
            + differences(missing_there=missing, of_another_shape=misfits)
            + ("" if found.num_loaded == 0 else "; `init_partial: true` loads what fits")
        )
    read_chunks(usable.path, found.chunks, group, session.progress.beat)
    return WeightsLoaded(
        module=name,
        checkpoint=str(usable.path),
        num_loaded=found.num_loaded,
        missing=missing,
        misfits=misfits,
        unused=found.unused,
    )


def _first_damage(
    path: Path, marker: Marker, group: dist.ProcessGroup, beat: Callable[[], None]
) -> str:
    """Return what is wrong with a file, if anything; the ranks share the files."""
    rank, found = dist.get_rank(group), ""
    for name in sorted(marker.files)[rank :: dist.get_world_size(group)]:
        try:
            if crc_of(path / Path(name).name, beat) != marker.files[name][1]:
                found = f"{name} is damaged: its checksum is another"
        except OSError as error:
            found = f"{name} cannot be read: {error}"
    return next((reason for reason in gather_objects(found, group) if reason), "")
