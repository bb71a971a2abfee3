"""Tensors in files, through torch's distributed checkpoint (DCP), without pickle in between.

Decides: that the index of tensors is JSON (`tensors.json`): DCP's own is a pickle, which would run
code from a stranger's checkpoint. Tensors themselves are read with `weights_only`.
Relies on: DCP's planners and storage as its documented points of extension
(https://docs.pytorch.org/docs/stable/distributed.checkpoint.html).
Leaves: what is saved to `chunks`, when a folder counts as complete to `folder`.
"""

import json
import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import WriteResult

from mimo_launch.checkpoint.chunks import Chunk
from mimo_launch.checkpoint.folder import DamagedCheckpoint
from mimo_launch.checkpoint.index import TENSORS, read_index
from mimo_launch.checkpoint.planners import ChunkLoadPlanner, ChunkSavePlanner, tensors_of
from mimo_launch.train.run_state import EndOfRun


class CheckpointError(EndOfRun):
    """A checkpoint cannot be written or read; the message says why, without torch's tracebacks."""


def write_chunks(
    folder: Path, chunks: Iterable[Chunk], group: dist.ProcessGroup, beat: Callable[[], None]
) -> None:
    """Write the counted chunks of all ranks and their index into a folder, synced to disk.

    `beat` is called as chunks are written.

    Ranks: collective over `group`. Raises: CheckpointError, on all ranks if it fails on one.
    """
    planner = ChunkSavePlanner([chunk for chunk in chunks if chunk.counted], beat)
    try:
        save({}, storage_writer=_Writer(folder), planner=planner, process_group=group)
    except CheckpointException as error:  # It derives from BaseException.
        raise CheckpointError(_first_words(error)) from None


def read_chunks(
    folder: Path,
    chunks: Sequence[Chunk],
    group: dist.ProcessGroup | None,
    beat: Callable[[], None],
) -> None:
    """Fill the tensors of `chunks`, all of which must be in the folder in their shapes.

    `beat` is called as chunks are read. Without a group this process reads alone.

    Ranks: collective over `group`. Raises: CheckpointError, on all ranks if it fails on one.
    """
    with warnings.catch_warnings():
        # DCP announces that it found a key-less state dict; the planner has the keys.
        warnings.simplefilter("ignore")
        try:
            load(
                {},
                storage_reader=_Reader(folder),
                planner=ChunkLoadPlanner(chunks, beat),
                process_group=group,
                no_dist=group is None,
            )
        except CheckpointException as error:
            raise CheckpointError(_first_words(error)) from None


def _first_words(error: CheckpointException) -> str:
    """Return what went wrong on the first rank that failed, in one line."""
    rank, (cause, _) = min(error.failures.items())
    return f"rank {rank}: {type(cause).__name__}: {cause}"


@dataclass(frozen=True, slots=True)
class _Stored:
    """Where a box lies, with the attributes that DCP's reader asks for."""

    relative_path: str
    offset: int
    length: int
    transform_descriptors: None = None


class _Writer(FileSystemWriter):
    """DCP's writer of one file per rank, with a JSON index."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, sync_files=True)
        self._folder = folder

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Clear, on the first rank and before any writes, what an interrupted save left behind."""
        for file in self._folder.iterdir():
            file.unlink()
        prepared: list[SavePlan] = super().prepare_global_plan(plans)
        return prepared

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Write the index, on the first rank."""
        stored = {result.index: result.storage_data for part in results for result in part}
        index = {
            name: {
                "shape": list(entry.size),
                "dtype": str(entry.properties.dtype).removeprefix("torch."),
                "chunks": [
                    [list(box.offsets), list(box.sizes), at.relative_path, at.offset, at.length]
                    for box in entry.chunks
                    for at in [stored[MetadataIndex(name, box.offsets)]]
                ],
            }
            for name, entry in tensors_of(metadata)
        }
        with (self._folder / TENSORS).open("w", encoding="utf-8") as file:
            json.dump(index, file)
            file.flush()
            os.fsync(file.fileno())


class _Reader(FileSystemReader):
    """DCP's reader, with a JSON index."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._folder = folder

    def read_metadata(self) -> Metadata:
        """Read the index."""
        tensors: dict[str, Any] = {}
        stored: dict[MetadataIndex, _Stored] = {}
        for name, entry in read_index(self._folder).items():
            boxes = []
            for box in entry.boxes:
                boxes.append(ChunkStorageMetadata(torch.Size(box.offsets), torch.Size(box.sizes)))
                where = _Stored(box.file, box.offset, box.length)
                stored[MetadataIndex(name, box.offsets)] = where
            dtype = getattr(torch, entry.dtype, None)
            if not isinstance(dtype, torch.dtype):
                raise DamagedCheckpoint(f"{TENSORS} is damaged: {name} has type {entry.dtype}")
            properties = TensorProperties(dtype=dtype)
            tensors[name] = TensorStorageMetadata(properties, torch.Size(entry.shape), boxes)
        return Metadata(tensors, storage_data=stored)
