"""Loads the weights that a module starts from: of a Hugging Face folder, or of a run.

Decides: what a checkpoint may leave out, and that it is read from an unchanged folder; that a
tensor that does not fit is an error, except if the spec allows it.
Relies on: `usable` for checkpoints, `storage` for their tensors, `hugging_face` for folders.
Leaves: resuming to `loading`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist

from mimo_launch.checkpoint.adapter_folder import load_adapter
from mimo_launch.checkpoint.boxes import (
    WEIGHTS,
    WeightsDoNotFit,
    differences,
    fit,
    frozen_boxes,
    note_filled,
    weight_boxes,
)
from mimo_launch.checkpoint.folder import Base, Sums, with_bases
from mimo_launch.checkpoint.hugging_face import load_hugging_face
from mimo_launch.checkpoint.storage import CheckpointError, read_boxes
from mimo_launch.checkpoint.usable import Usable, newest_usable, sums_of
from mimo_launch.comm.objects import from_first, gather_objects
from mimo_launch.hugging_face.folder import FilesError, is_hugging_face, weight_files
from mimo_launch.kinds.adapters import UP, is_adapter
from mimo_launch.kinds.language import is_of_loss
from mimo_launch.spec.adapters import adapter_in
from mimo_launch.train.events import Listener, WeightsLoaded
from mimo_launch.train.rank_session import RankSession


@dataclass(frozen=True, slots=True)
class Start:
    """What a module starts from: a folder, and the names of this rank's weights from there."""

    folder: Path
    names: frozenset[str]


@dataclass(frozen=True, slots=True)
class Starts:
    """Loads the starts of modules; `sums` has the files of each folder that was compared.

    Ranks: every method is collective over the world. All raise: WeightsDoNotFit; CheckpointError.
    """

    session: RankSession
    group: dist.ProcessGroup
    emit: Listener
    sums: dict[Path, Sums]

    def load(self, name: str, folder: Path, base: Base | None = None) -> Start:
        """Fill the weights of a module; `base`: only what a checkpoint leaves out, unchanged."""
        partial = base is not None or self.session.spec.modules[name].init_partial
        # The same rule as in `checks`: our checkpoints have no config.json.
        if from_first(is_hugging_face(folder), self.group):
            if base is not None:
                self._compare(name, base, self._sums_of(folder))
            found, names = load_hugging_face(
                self.session, name, folder, self.group, partial=partial
            )
            self.emit(found)
            return Start(folder, names)
        beat = self.session.progress.beat
        usable = newest_usable(folder, self.group, self.emit, beat, own=False)
        if usable is None:
            raise CheckpointError(f"`init_from` of `{name}`: {folder} has no usable checkpoint")
        self.sums[folder] = with_bases(usable.marker.files, usable.marker.bases)
        if base is not None:
            self._compare(name, base, self.sums[folder])
        return Start(folder, self.load_from_run(name, usable, partial=partial))

    def load_from_run(self, name: str, usable: Usable, *, partial: bool) -> frozenset[str]:
        """Fill the weights of a module from a checkpoint, and return the names of this rank's."""
        base = usable.marker.bases.get(name)
        left = frozenset[str]()
        if base is not None:
            left = self.load(name, Path(base.folder), base).names & base.shapes.keys()
        found, names = _load_weights(self.session, name, usable, self.group, left, partial=partial)
        self.emit(found)
        return names | left

    def load_adapter(self, name: str, folder: Path, base: Path) -> None:
        """Fill the adapter of a module from a folder of peft for a Hugging Face folder."""
        self.emit(load_adapter(self.session, name, folder, base, self.group))

    def bases(self, starts: Mapping[str, Start], *, packed: bool) -> dict[str, Base]:
        """Return the weights that a checkpoint may leave out, by module: they do not train.

        `packed`: only those that it must leave out, since they are kept in few bits.
        """
        found = {}
        for name, start in starts.items():
            module = self.session.modules.get(name)
            boxes = [] if module is None else frozen_boxes(module, packed=packed)
            mine = {box.name: box.shape for box in boxes if box.name in start.names}
            shapes = {k: v for each in gather_objects(mine, self.group) for k, v in each.items()}
            if shapes:
                files = self.sums.get(start.folder) or self._sums_of(start.folder)
                found[name] = Base(str(start.folder), files, shapes)
        return found

    def _sums_of(self, folder: Path) -> Sums:
        """Return the files of a Hugging Face folder; modules share one."""
        if folder not in self.sums:
            names, problem = list[str](), ""
            try:
                names = weight_files(folder)
            except FilesError as error:
                problem = str(error)
            names, problem = from_first((names, problem), self.group)
            beat = self.session.progress.beat
            self.sums[folder], unread = sums_of(folder, names, self.group, beat)
            if problem or unread:
                raise CheckpointError(f"{folder}: {problem or unread}")
        return self.sums[folder]

    def _compare(self, name: str, base: Base, files: Sums) -> None:
        if changed := base.changed(files):
            raise WeightsDoNotFit(
                f"the checkpoint leaves out weights of `{name}`, and their folder is another: "
                f"{changed}; give `init_from` the folder as it was"
            )


def _load_weights(
    session: RankSession,
    name: str,
    usable: Usable,
    group: dist.ProcessGroup,
    left: frozenset[str],
    *,
    partial: bool,
) -> tuple[WeightsLoaded, frozenset[str]]:
    """Fill the weights of one module with the saved weights that fit; return this rank's names.

    An adapter stays the same update under another factor: its `B` is multiplied. The checkpoint
    leaves out the weights `left`, which are there.
    """
    module, saved = session.modules.get(name), usable.shapes()
    boxes = [] if module is None else list(weight_boxes(module))
    boxes = [box for box in boxes if box.name in saved or box.name not in left]
    fitting = fit(saved, boxes, group, f"{WEIGHTS}/{name}.")
    missing = tuple(
        each for each in fitting.missing if not is_adapter(each) and not is_of_loss(each)
    )
    misfits, lost = fitting.misfits, tuple(filter(is_adapter, fitting.unused))
    nothing = fitting.num_loaded == 0 and name not in usable.marker.bases
    if nothing or ((missing or misfits or lost) and not partial):
        raise WeightsDoNotFit(
            f"`init_from` of `{name}`: {usable.path} does not fit: "
            + differences(
                missing_there=missing, of_another_shape=misfits, adapters_without_a_place=lost
            )
            + ("" if nothing else "; `init_partial: true` loads what fits")
        )
    read_boxes(usable.path, fitting.boxes, group, session.progress.beat)
    note_filled(session.modules, fitting.boxes)
    there, here = adapter_in(usable.marker.spec, name), session.spec.modules[name].adapter
    if there is not None and here is not None and there.scale != here.scale:
        for box in fitting.boxes:
            if box.name.endswith(UP):
                box.tensor.mul_(there.scale / here.scale)
    event = WeightsLoaded(
        module=name,
        checkpoint=str(usable.path),
        num_loaded=fitting.num_loaded,
        missing=missing,
        misfits=misfits,
        unused=fitting.unused,
    )
    return event, frozenset(box.name for box in fitting.boxes)
