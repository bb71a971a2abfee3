"""Writes and reads tensors through torch's distributed checkpoint (DCP), without pickle.

Decides: that saving and loading use boxes of full tensors, so that any layout can read any other's
checkpoint; that the index of tensors is JSON (`tensors.json`): DCP's own index is a pickle, which
would run code from an untrusted checkpoint. Tensors are read with `weights_only`.
Relies on: DCP's planners and storage, its documented extension points
(https://docs.pytorch.org/docs/stable/distributed.checkpoint.html).
Leaves: the choice of what to save to `boxes`, completeness of folders to `folder`.
"""

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import create_default_global_save_plan
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import WriteResult

from mimo_launch.checkpoint.boxes import Box
from mimo_launch.checkpoint.folder import DamagedCheckpoint
from mimo_launch.checkpoint.index import TENSORS, index_text, read_index, uncovered
from mimo_launch.runtime.progress import EndOfRun


def tensors_of(metadata: Metadata) -> Iterator[tuple[str, TensorStorageMetadata]]:
    """Yield the tensors of an index; our index has no other entries."""
    for name, entry in metadata.state_dict_metadata.items():
        if isinstance(entry, TensorStorageMetadata):
            yield name, entry


class BoxSavePlanner(SavePlanner):
    """Saves boxes unchanged; the state dict that DCP passes is empty.

    `beat` is called for each box.
    """

    def __init__(self, boxes: Sequence[Box], beat: Callable[[], None]) -> None:
        self._boxes = {MetadataIndex(c.name, c.offsets): c for c in boxes}
        self._beat = beat

    def set_up_planner(
        self, state_dict: Any, storage_meta: Any = None, is_coordinator: bool = False
    ) -> None:
        """Do nothing: the boxes are known."""

    def create_local_plan(self) -> SavePlan:
        """Return one item per box."""
        items = []
        for index, box in self._boxes.items():
            where = ChunkStorageMetadata(torch.Size(box.offsets), box.tensor.shape)
            properties = TensorProperties(dtype=box.tensor.dtype)
            data = TensorWriteData(where, properties, torch.Size(box.shape))
            items.append(WriteItem(index, WriteItemType.SHARD, tensor_data=data))
        return SavePlan(items)

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        """Join the plans of all ranks, on the first rank, and check that they cover each tensor."""
        plans, metadata = create_default_global_save_plan(all_plans)
        for name, entry in tensors_of(metadata):
            boxes = [(tuple(box.offsets), tuple(box.sizes)) for box in entry.chunks]
            if reason := uncovered(tuple(entry.size), boxes):
                raise ValueError(f"of {name}, as ranks would save it, {reason}")
        return plans, metadata

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        """Accept the plan."""
        return new_plan

    def resolve_data(self, write_item: WriteItem) -> Tensor:
        """Return the tensor of an item."""
        self._beat()
        return self._boxes[write_item.index].tensor


class BoxLoadPlanner(LoadPlanner):
    """Fills boxes from boxes that any layout saved, and calls `beat` for each."""

    def __init__(self, boxes: Sequence[Box], beat: Callable[[], None]) -> None:
        self._boxes, self._beat = boxes, beat
        self._targets = {MetadataIndex(c.name, c.offsets): c.tensor for c in boxes}

    def set_up_planner(
        self, state_dict: Any, metadata: Metadata | None = None, is_coordinator: bool = False
    ) -> None:
        """Store the index of the checkpoint."""
        if metadata is None:
            raise ValueError("there is no index")
        self._saved = dict(tensors_of(metadata))

    def create_local_plan(self) -> LoadPlan:
        """Return the items to read for each box."""
        items: list[ReadItem] = []
        for box in self._boxes:
            where = ChunkStorageMetadata(torch.Size(box.offsets), box.tensor.shape)
            items += create_read_items_for_chunk_list(box.name, self._saved[box.name], [where])
        return LoadPlan(items)

    def create_global_plan(self, global_plan: list[LoadPlan]) -> list[LoadPlan]:
        """Change nothing: each rank reads what it needs."""
        return global_plan

    def finish_plan(self, central_plan: LoadPlan) -> LoadPlan:
        """Accept the plan."""
        return central_plan

    def load_bytes(self, read_item: ReadItem, value: Any) -> None:
        """Refuse: only tensors are ever saved."""
        raise ValueError(f"{read_item.dest_index.fqn} is not a tensor")

    def resolve_tensor(self, read_item: ReadItem) -> Tensor:
        """Return the part of a box that an item fills."""
        self._beat()
        target = self._targets[read_item.dest_index]
        for dim, (start, size) in enumerate(
            zip(read_item.dest_offsets, read_item.lengths, strict=True)
        ):
            target = target.narrow(dim, start, size)
        return target

    def commit_tensor(self, read_item: ReadItem, tensor: Tensor) -> None:
        """Do nothing: the part was filled in place."""


class CheckpointError(EndOfRun):
    """A checkpoint cannot be written or read; the message says why, without torch's tracebacks."""


def write_boxes(
    folder: Path, boxes: Iterable[Box], group: dist.ProcessGroup, beat: Callable[[], None]
) -> None:
    """Write the counted boxes of all ranks and their index to a folder, synced to disk.

    `beat` is called as boxes are written.

    Ranks: collective over `group`. Raises: CheckpointError, on all ranks if it fails on one.
    """
    planner = BoxSavePlanner([box for box in boxes if box.counted], beat)
    try:
        save({}, storage_writer=_Writer(folder), planner=planner, process_group=group)
    except CheckpointException as error:  # It derives from BaseException.
        raise CheckpointError(_first_words(error)) from None


def read_boxes(
    folder: Path,
    boxes: Sequence[Box],
    group: dist.ProcessGroup | None,
    beat: Callable[[], None],
) -> None:
    """Fill the tensors of `boxes`; the folder must have all of them, with the same shapes.

    `beat` is called as boxes are read. Without a group, this process reads alone.

    Ranks: collective over `group`. Raises: CheckpointError, on all ranks if it fails on one.
    """
    with warnings.catch_warnings():
        # DCP warns that the state dict has no keys; the planner has them.
        warnings.simplefilter("ignore")
        try:
            load(
                {},
                storage_reader=_IndexedReader(folder),
                planner=BoxLoadPlanner(boxes, beat),
                process_group=group,
                no_dist=group is None,
            )
        except CheckpointException as error:
            raise CheckpointError(_first_words(error)) from None


def _first_words(error: CheckpointException) -> str:
    """Return the error of the first rank that failed, in one line."""
    rank, (cause, _) = min(error.failures.items())
    return f"rank {rank}: {type(cause).__name__}: {cause}"


@dataclass(frozen=True, slots=True)
class _Stored:
    """The place of a box, with the attributes that DCP's reader needs."""

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
        """Delete the remains of an interrupted save, on the first rank before any rank writes."""
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
        text = index_text(index)
        with (self._folder / TENSORS).open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())


class _IndexedReader(FileSystemReader):
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
