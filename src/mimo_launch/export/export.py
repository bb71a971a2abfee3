"""Writes the folders of an export, all of them or none.

Decides: the order of the work, and what is kept of where an export comes from.
Relies on: `export_plan` for what to write, `folder` for the rename at the end.
Leaves: showing progress to the command line.
"""

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from mimo_launch import __version__
from mimo_launch.checkpoint.finding import Checkpoint
from mimo_launch.export.checkpoint_tensors import read_tensors
from mimo_launch.export.export_plan import FolderPlan
from mimo_launch.export.folder import NOTE, new_folder
from mimo_launch.export.safetensors_files import write_json, write_tensors
from mimo_launch.hugging_face.folder import CONFIG

PROJECTOR_WEIGHTS, PROJECTOR_CONFIG = "projector.safetensors", "projector.json"


@dataclass(frozen=True, slots=True)
class Progress:
    """Who is told of bytes: of the checkpoint as they are checked, of files as they are written."""

    checked: Callable[[int], None]
    wrote: Callable[[int], None]


def write_export(
    checkpoint: Checkpoint,
    plans: Sequence[FolderPlan],
    target: Path,
    *,
    max_bytes: int,
    force: bool,
    progress: Progress,
) -> None:
    """Write all folders under a new `target`.

    Raises: InTheWay if the place is taken; NoCheckpoint or CheckpointError if the checkpoint is
    damaged; OSError if the disk is full, or for another reason. Then nothing is left behind.
    """
    with new_folder(target, force=force) as unfinished:
        checkpoint.check(progress.checked)
        for plan in plans:
            _write_folder(checkpoint, plan, unfinished / plan.where, max_bytes, progress)
        note = {
            "mimo_launch": __version__,
            "checkpoint": str(checkpoint.path),
            "run": checkpoint.spec.name,
            "step": checkpoint.step,
            "folders": {plan.where or ".": list(plan.modules) for plan in plans},
        }
        write_json(unfinished / NOTE, note)


def _write_folder(
    checkpoint: Checkpoint, plan: FolderPlan, folder: Path, max_bytes: int, progress: Progress
) -> None:
    folder.mkdir(exist_ok=True)
    read = partial(read_tensors, checkpoint)
    write_tensors(folder, plan.tensors, max_bytes, read, progress.wrote)
    if plan.projector:
        write_tensors(
            folder,
            plan.projector,
            plan.num_bytes,
            read,
            progress.wrote,
            name=PROJECTOR_WEIGHTS,
        )
        write_json(folder / PROJECTOR_CONFIG, plan.projector_config)
    for name, file in plan.beside.copied.items():
        copy = folder / name
        shutil.copyfile(file, copy)
        with copy.open("rb") as opened:
            os.fsync(opened.fileno())
    for name, content in {**plan.beside.written, CONFIG: plan.config}.items():
        write_json(folder / name, content)
