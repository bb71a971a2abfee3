"""Writes the folders of an export, all of them or none.

Decides: the order of the work, and the note on the origin of an export; that a folder is written
under a temporary name and renamed at the end, that the next export to the same place removes the
remains of a killed one, and that only a folder of an earlier export is ever replaced; the names of
safetensors files and the tensors in each; the memory use: values are converted as they are read, a
few tensors at a time.
Relies on: `export_plan` for what to write; `checkpoint.storage`, which needs no process groups; the
atomic renaming of folders on common file systems; the format
(https://huggingface.co/docs/safetensors/index#format), because the package would need all tensors
of a file in memory, and copy them once more.
Leaves: showing progress to the command line.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor

from mimo_launch import __version__
from mimo_launch.checkpoint.folder import sync_folder
from mimo_launch.checkpoint.folder_tensors import FolderTensors
from mimo_launch.checkpoint.index import Checkpoint
from mimo_launch.checkpoint.whole import check_bases, read_whole
from mimo_launch.export.export_plan import FolderPlan
from mimo_launch.export.tensors import FileTensor
from mimo_launch.hugging_face.folder import CONFIG, INDEX, WEIGHTS

# Bytes that are read and written together; a single tensor may be larger.
BATCH = 1 << 28
DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
}
Read = Callable[[Sequence[FileTensor]], list[Tensor]]


def write_tensors(
    folder: Path,
    tensors: Sequence[FileTensor],
    max_bytes: int,
    read: Read,
    wrote: Callable[[int], None],
    *,
    name: str = WEIGHTS,
) -> None:
    """Write tensors into files of at most `max_bytes` each, and an index if there are several.

    A single file is called `name`. `read` returns values; `wrote` is called with the number of
    bytes after each write. Raises: OSError.
    """
    files = list(_cut(tensors, max_bytes))
    names = [name]
    if len(files) > 1:
        names = [f"model-{i:05d}-of-{len(files):05d}.safetensors" for i, _ in enumerate(files, 1)]
    for file, part in zip(names, files, strict=True):
        _write_file(folder / file, part, read, wrote)
    if len(files) > 1:
        index = {
            "metadata": {"total_size": sum(each.num_bytes for each in tensors)},
            "weight_map": {
                each.name: file for file, part in zip(names, files, strict=True) for each in part
            },
        }
        write_json(folder / INDEX, index)


def write_json(path: Path, content: object) -> None:
    """Write a JSON file. Raises: OSError."""
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _cut(tensors: Sequence[FileTensor], max_bytes: int) -> Iterator[list[FileTensor]]:
    """Yield runs of consecutive tensors of at most `max_bytes`; a single tensor may be larger."""
    taken: list[FileTensor] = []
    size = 0
    for each in tensors:
        if taken and size + each.num_bytes > max_bytes:
            yield taken
            taken, size = [], 0
        taken.append(each)
        size += each.num_bytes
    yield taken


def _write_file(
    path: Path, tensors: Sequence[FileTensor], read: Read, wrote: Callable[[int], None]
) -> None:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    start = 0
    for each in tensors:
        stop = start + each.num_bytes
        place = {"dtype": DTYPES[each.dtype], "shape": each.shape, "data_offsets": [start, stop]}
        header[each.name] = place
        start = stop
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # Tensors must begin at a multiple of eight bytes.
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for batch in _cut(tensors, BATCH):
            for tensor in read(batch):
                file.write(tensor.reshape(-1).view(torch.uint8).numpy().data)
                wrote(tensor.nbytes)


# A file with the origin of an export, which identifies its folder as an export.
NOTE = "export.json"
PROJECTOR_WEIGHTS, PROJECTOR_CONFIG = "projector.safetensors", "projector.json"


class InTheWay(Exception):
    """Something else is at the path of the folder; the message says what."""


def check_place(target: Path, *, force: bool) -> None:
    """Refuse a path that is taken. Raises: InTheWay."""
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return
    if not (target / NOTE).is_file():
        raise InTheWay(f"{target} exists and is not an earlier export; it is not replaced")
    if not force:
        raise InTheWay(f"{target} exists; --force replaces it")


@contextmanager
def new_folder(target: Path, *, force: bool) -> Iterator[Path]:
    """Yield a folder to write to, which is renamed to `target` if the block ends without an error.

    All that was written there is synced to disk before. The remains of a killed export to the same
    path are removed, or put back.

    Raises: InTheWay; OSError, after which nothing that was written is left.
    """
    target = target.absolute()
    unfinished = target.with_name(f".{target.name}.partial")
    old = target.with_name(f".{target.name}.old")
    with _alone_in(unfinished):
        if old.exists() and not target.exists():
            old.rename(target)
        try:
            check_place(target, force=force)
            yield unfinished
            written = [path for path in unfinished.rglob("*") if path.is_file()]
            for path in written:
                with path.open("rb") as file:
                    os.fsync(file.fileno())
            for folder in {path.parent for path in written} | {unfinished}:
                sync_folder(folder)
            shutil.rmtree(old, ignore_errors=True)
            if target.exists():
                check_place(target, force=force)
                target.rename(old)
            try:
                unfinished.rename(target)
            except OSError:
                if old.exists():
                    old.rename(target)
                raise
            sync_folder(target.parent)
            shutil.rmtree(old, ignore_errors=True)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Make an empty folder, and lock its note during the block. Raises: InTheWay."""
    folder.mkdir(parents=True, exist_ok=True)
    # Mode "a", because "w" would empty the note of the export that holds the lock.
    with (folder / NOTE).open("a") as note:
        try:
            fcntl.flock(note, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InTheWay(f"another export writes {folder}") from None
        except OSError:
            pass  # The file system has no locks.
        for path in folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != NOTE:
                path.unlink()
        yield


def read_tensors(checkpoint: Checkpoint, tensors: Sequence[FileTensor]) -> list[Tensor]:
    """Return the values of tensors to write. Raises: CheckpointError; OSError."""
    made: list[Tensor] = []
    for each in tensors:
        if each.copied is None:
            made.append(torch.full(each.shape, each.filled, dtype=each.dtype))
            continue
        folder, name, header = each.copied
        try:
            with FolderTensors(folder) as there:
                made.append(there.whole(name, header).to(each.dtype))
        except SafetensorError as error:
            raise OSError(f"{folder / header.file}: {error}") from error
    pairs = list(zip(tensors, made, strict=True))
    boxes = [box for each, tensor in pairs for box in each.boxes(tensor)]
    # Some families store one of our tensors twice.
    first = {box.name: box for box in reversed(boxes)}
    read_whole(checkpoint, list(first.values()))
    values = {name: box.tensor for name, box in first.items()}
    for each, tensor in pairs:
        each.fill(tensor, values)
    return made


@dataclass(frozen=True, slots=True)
class ExportProgress:
    """Callbacks with numbers of bytes: checked in the checkpoint, and written to files."""

    checked: Callable[[int], None]
    wrote: Callable[[int], None]


def write_export(
    checkpoint: Checkpoint,
    plans: Sequence[FolderPlan],
    target: Path,
    *,
    max_bytes: int,
    force: bool,
    progress: ExportProgress,
) -> None:
    """Write all folders under a new `target`.

    Raises: InTheWay if the path is taken; NoCheckpoint or CheckpointError if the checkpoint is
    damaged; OSError if the disk is full, or for other reasons. After an error, nothing is left.
    """
    read = partial(read_tensors, checkpoint)
    with new_folder(target, force=force) as unfinished:
        checkpoint.check(progress.checked)
        check_bases(checkpoint)
        for plan in plans:
            folder = unfinished / plan.where
            folder.mkdir(exist_ok=True)
            write_tensors(folder, plan.tensors, max_bytes, read, progress.wrote)
            if plan.projector:
                name, most = PROJECTOR_WEIGHTS, plan.num_bytes  # This is always one file.
                write_tensors(folder, plan.projector, most, read, progress.wrote, name=name)
                write_json(folder / PROJECTOR_CONFIG, plan.projector_config)
            for name, file in plan.beside.copied.items():
                shutil.copyfile(file, folder / name)
            for name, content in {**plan.beside.written, CONFIG: plan.config}.items():
                write_json(folder / name, content)
        note = {
            "mimo_launch": __version__,
            "checkpoint": str(checkpoint.path),
            "run": checkpoint.spec.name,
            "step": checkpoint.step,
            "folders": {plan.where or ".": list(plan.modules) for plan in plans},
        }
        write_json(unfinished / NOTE, note)
