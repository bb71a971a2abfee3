"""Loads the state of a run, or the weights of a module, from a checkpoint of any layout.

Decides: that a run resumes from its newest usable checkpoint, and otherwise loads the weights that
`init_from` names; which checkpoint is usable; that a tensor that does not fit is an error, except
in `init_from` if the spec allows it.
Relies on: `folder` for completeness, `storage` for tensors, `hugging_face` for Hugging Face
folders.
Leaves: whether a run may resume at all to the command line, which empties or keeps its folder.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch.distributed as dist

from mimo_launch.checkpoint.adapter_folder import load_adapter
from mimo_launch.checkpoint.boxes import (
    FP8,
    WEIGHTS,
    WeightsDoNotFit,
    differences,
    fit,
    set_update_counts,
    state_boxes,
    weight_boxes,
)
from mimo_launch.checkpoint.folder import (
    CHECKPOINTS,
    DAMAGED,
    DamagedCheckpoint,
    Marker,
    all_checkpoints,
    changed_data,
    changed_settings,
    crc_of,
    is_complete,
    read_marker,
    set_aside,
)
from mimo_launch.checkpoint.hugging_face import load_hugging_face
from mimo_launch.checkpoint.index import read_index
from mimo_launch.checkpoint.saver import CheckpointSaver
from mimo_launch.checkpoint.storage import CheckpointError, read_boxes
from mimo_launch.comm.collectives import from_first, gather_objects
from mimo_launch.data.build import build_dataset
from mimo_launch.data.dataset import Contents, Dataset
from mimo_launch.data.random_draws import Split
from mimo_launch.hugging_face.folder import is_hugging_face
from mimo_launch.kinds.adapters import UP, is_adapter
from mimo_launch.runtime.progress import Phase, RunState
from mimo_launch.spec.adapters import adapter_in
from mimo_launch.spec.load import dump_spec, with_defaults
from mimo_launch.spec.optimizers import STATE
from mimo_launch.train.events import CheckpointPassedOver, Listener, RunResumed, WeightsLoaded
from mimo_launch.train.rank_session import RankSession


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


def load_state(
    session: RankSession, usable: Usable, group: dist.ProcessGroup
) -> tuple[RunState, tuple[str, ...]]:
    """Fill weights and optimizers; return the state of the run and modules without saved moments.

    A module that was frozen or had another optimizer when it was saved starts with zero moments.

    Ranks: collective over the world. Raises: WeightsDoNotFit if a weight is missing, has another
    shape or would be lost; CheckpointError if a file cannot be read.
    """
    saved = usable.shapes()
    # Scales of another backend or history length are not loaded: they adapt within a few steps.
    boxes = [
        box
        for box in state_boxes(session.modules, session.updates)
        if not box.name.startswith(FP8) or saved.get(box.name) == box.shape
    ]
    fitting = fit(saved, boxes, group, f"{WEIGHTS}/")
    missing_moments = tuple(
        name for name in fitting.missing if name.startswith(tuple(f"{each}/" for each in STATE))
    )
    missing_weights = [name for name in fitting.missing if name not in missing_moments]
    if missing_weights or fitting.misfits or fitting.unused:
        raise WeightsDoNotFit(
            f"{usable.path} is of another model, so the run cannot resume from it: "
            + differences(
                missing_there=missing_weights,
                there_only=fitting.unused,
                of_another_shape=fitting.misfits,
            )
            + "; train under another `name`, with `init_from` for weights that do fit"
        )
    read_boxes(usable.path, fitting.boxes, group, session.progress.beat)
    set_update_counts(session.modules, session.updates, usable.marker.updates)
    fresh = {name.partition("/")[2].partition(".")[0] for name in missing_moments}
    return RunState(**usable.marker.counts), tuple(sorted(fresh))


def load_weights(
    session: RankSession, name: str, usable: Usable, group: dist.ProcessGroup
) -> WeightsLoaded:
    """Fill the weights of one module with the saved weights that fit.

    An adapter stays the same update under another factor: its `B` is multiplied.

    Ranks: collective over the world. Raises: WeightsDoNotFit if one does not fit and the spec does
    not have `init_partial`, or if none fits; CheckpointError if a file cannot be read.
    """
    module = session.modules.get(name)
    boxes = [] if module is None else list(weight_boxes(module))
    fitting = fit(usable.shapes(), boxes, group, f"{WEIGHTS}/{name}.")
    missing = tuple(each for each in fitting.missing if not is_adapter(each))
    misfits, lost = fitting.misfits, tuple(filter(is_adapter, fitting.unused))
    if fitting.num_loaded == 0 or (
        (missing or misfits or lost) and not session.spec.modules[name].init_partial
    ):
        raise WeightsDoNotFit(
            f"`init_from` of `{name}`: {usable.path} does not fit: "
            + differences(
                missing_there=missing, of_another_shape=misfits, adapters_without_a_place=lost
            )
            + ("" if fitting.num_loaded == 0 else "; `init_partial: true` loads what fits")
        )
    read_boxes(usable.path, fitting.boxes, group, session.progress.beat)
    there, here = adapter_in(usable.marker.spec, name), session.spec.modules[name].adapter
    if there is not None and here is not None and there.scale != here.scale:
        for box in fitting.boxes:
            if box.name.endswith(UP):
                box.tensor.mul_(there.scale / here.scale)
    return WeightsLoaded(
        module=name,
        checkpoint=str(usable.path),
        num_loaded=fitting.num_loaded,
        missing=missing,
        misfits=misfits,
        unused=fitting.unused,
    )


def load_all_weights(session: RankSession, path: Path, emit: Listener) -> None:
    """Fill the weights of every module from a checkpoint or a run folder, saved on any layout.

    Ranks: collective over the world. Raises: CheckpointError, WeightsDoNotFit.
    """
    session.progress.enter(Phase.LOADING)
    timeout = timedelta(seconds=session.spec.train.timeout)
    group = dist.new_group(backend="gloo", timeout=timeout, group_desc="checkpoint")
    usable = newest_usable(path, group, emit, session.progress.beat, own=False)
    if usable is None:
        raise CheckpointError(f"{path} has no usable checkpoint")
    for module in session.layout.modules:
        load_weights(session, module.name, usable, group)


def _first_damage(
    path: Path, marker: Marker, group: dist.ProcessGroup, beat: Callable[[], None]
) -> str:
    """Describe the first damaged file, or return ""; the files are divided among the ranks."""
    rank, found = dist.get_rank(group), ""
    for name in sorted(marker.files)[rank :: dist.get_world_size(group)]:
        try:
            if crc_of(path / Path(name).name, beat) != marker.files[name][1]:
                found = f"{name} is damaged: its checksum is another"
        except OSError as error:
            found = f"{name} cannot be read: {error}"
    return next((reason for reason in gather_objects(found, group) if reason), "")


def start_run(
    session: RankSession, run: Path, emit: Listener, dataset: Dataset | None = None
) -> tuple[RunState, CheckpointSaver | None]:
    """Load from the run folder or `init_from`; return the state of the run, and its saver.

    `dataset` is the spec's data set; if None, it is built.

    Ranks: collective over the world. Raises: CheckpointError, WeightsDoNotFit, DataHasChanged.
    """
    spec = session.spec
    starts = {name: Path(m.init_from) for name, m in spec.modules.items() if m.init_from}
    session.progress.enter(Phase.LOOKING)
    # Use a separate group: saves run during training, and exchange objects on the host.
    timeout = timedelta(seconds=spec.train.timeout)
    group = dist.new_group(backend="gloo", timeout=timeout, group_desc="checkpoint")
    # Hosts may see a shared folder at different moments, so the first rank decides.
    has_checkpoints = from_first((run / CHECKPOINTS).is_dir(), group)
    data: dict[str, Contents] = {}
    if has_checkpoints or spec.saving is not None:
        dataset = dataset or build_dataset(spec)
        splits: tuple[Split, ...] = ("train",) if spec.eval is None else ("train", "heldout")
        data = {split: dataset.contents(split) for split in splits}
    saver = None if spec.saving is None else CheckpointSaver(session, run, group, data)
    usable = None
    if has_checkpoints:
        usable = newest_usable(run, group, emit, session.progress.beat, own=True)
    if usable is not None:
        session.progress.enter(Phase.LOADING)
        allowed, agree = spec.train.allow_changed_data, partial(from_first, group=group)
        changed = changed_data(usable.path, usable.marker.data, data, agree, allowed=allowed)
        state, fresh = load_state(session, usable, group)
        changes = (
            *changed_settings(with_defaults(usable.marker.spec), dump_spec(spec)),
            *changed,
            *(f"optimizer state of {name}: none saved -> zero" for name in fresh),
        )
        emit(RunResumed(step=state.step, resumed_from=str(usable.path), changes=changes))
        return state, saver
    for name, start in starts.items():
        session.progress.enter(Phase.LOADING)
        # The same rule as in `checks`: our checkpoints have no config.json.
        if from_first(is_hugging_face(start), group):
            emit(load_hugging_face(session, name, start, group))
            adapter = spec.modules[name].adapter
            if adapter is not None and adapter.init_from is not None:
                emit(load_adapter(session, name, Path(adapter.init_from), start, group))
            continue
        usable = newest_usable(start, group, emit, session.progress.beat, own=False)
        if usable is None:
            raise CheckpointError(f"`init_from` of `{name}`: {start} has no usable checkpoint")
        emit(load_weights(session, name, usable, group))
    return RunState(), saver
