"""Reads a checkpoint in one process, with the weights that it leaves out.

Decides: that those come from an unchanged folder, which may be of a run that leaves out weights.
Relies on: `storage` for what is saved; `hugging_face` for folders of models.
Leaves: loading on ranks to `starts`.
"""

from collections.abc import Sequence
from pathlib import Path

from mimo_launch.checkpoint.boxes import Box
from mimo_launch.checkpoint.folder import Sums, crc_of, with_bases
from mimo_launch.checkpoint.hugging_face import fill_from_folder
from mimo_launch.checkpoint.index import (
    Checkpoint,
    NoBase,
    NoCheckpoint,
    open_checkpoint,
    prefix_of,
)
from mimo_launch.checkpoint.storage import read_boxes
from mimo_launch.hugging_face.folder import FilesError, is_hugging_face, weight_files


def read_whole(checkpoint: Checkpoint, boxes: Sequence[Box]) -> None:
    """Fill boxes. Raises: CheckpointError; NoCheckpoint if a run that holds some is gone."""
    left = {name for base in checkpoint.bases.values() for name in base.shapes}
    read_boxes(checkpoint.path, [b for b in boxes if b.name not in left], None, lambda: None)
    for module, base in checkpoint.bases.items():
        mine = [b for b in boxes if b.name in left and b.name.startswith(prefix_of(module))]
        if not mine:
            continue
        if is_hugging_face(folder := Path(base.folder)):
            fill_from_folder(folder, checkpoint.spec, module, mine)
        else:
            read_whole(open_checkpoint(folder, None), mine)


def check_bases(checkpoint: Checkpoint) -> None:
    """Compare the folders of what a checkpoint leaves out. Raises: NoBase."""
    read: dict[str, Sums] = {}
    for base in checkpoint.bases.values():
        try:
            if base.folder not in read:
                read[base.folder] = _contents(Path(base.folder))
            changed = base.changed(read[base.folder])
        except NoCheckpoint as error:
            changed = str(error)
        if changed:
            raise NoBase(f"{checkpoint.path} leaves out weights, and {changed}")


def _contents(folder: Path) -> Sums:
    """Return the files of a folder of a model or of a run, which are read once."""
    if not is_hugging_face(folder):
        found = open_checkpoint(folder, None)
        found.check(lambda _: None)
        check_bases(found)
        return with_bases(found.sums, found.bases)
    try:
        paths = [folder / name for name in weight_files(folder)]
        return {path.name: (path.stat().st_size, crc_of(path, lambda: None)) for path in paths}
    except (OSError, FilesError) as error:
        raise NoCheckpoint(f"{folder} cannot be read: {error}") from error
