"""What DCP asks about the tensors of a checkpoint: which boxes to write, which to fill.

Decides: that a chunk is a box of a full tensor on both sides, so that any layout reads any other's.
Relies on: DCP's planner protocol and its search for overlapping boxes.
Leaves: files to `storage`.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import create_default_global_save_plan
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

from mimo_launch.checkpoint.chunks import Chunk
from mimo_launch.checkpoint.index import uncovered


def tensors_of(metadata: Metadata) -> Iterator[tuple[str, TensorStorageMetadata]]:
    """Yield the tensors of an index; there is nothing else in ours."""
    for name, entry in metadata.state_dict_metadata.items():
        if isinstance(entry, TensorStorageMetadata):
            yield name, entry


class ChunkSavePlanner(SavePlanner):
    """Saves chunks as they are; the state dict that DCP passes along is empty.

    `beat` is called for each chunk.
    """

    def __init__(self, chunks: Sequence[Chunk], beat: Callable[[], None]) -> None:
        self._chunks = {MetadataIndex(c.name, c.offsets): c for c in chunks}
        self._beat = beat

    def set_up_planner(
        self, state_dict: Any, storage_meta: Any = None, is_coordinator: bool = False
    ) -> None:
        """Do nothing: the chunks are known."""

    def create_local_plan(self) -> SavePlan:
        """Return one item per chunk."""
        return SavePlan([_write_item(index, chunk) for index, chunk in self._chunks.items()])

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        """Join the plans of all ranks, on the first rank; every element must be there once."""
        plans, metadata = create_default_global_save_plan(all_plans)
        for name, entry in tensors_of(metadata):
            boxes = [(tuple(chunk.offsets), tuple(chunk.sizes)) for chunk in entry.chunks]
            if reason := uncovered(tuple(entry.size), boxes):
                raise ValueError(f"of {name}, as ranks would save it, {reason}")
        return plans, metadata

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        """Accept the plan."""
        return new_plan

    def resolve_data(self, write_item: WriteItem) -> Tensor:
        """Return the tensor of an item."""
        self._beat()
        return self._chunks[write_item.index].tensor


def _write_item(index: MetadataIndex, chunk: Chunk) -> WriteItem:
    box = ChunkStorageMetadata(torch.Size(chunk.offsets), chunk.tensor.shape)
    properties = TensorProperties(dtype=chunk.tensor.dtype)
    data = TensorWriteData(box, properties, torch.Size(chunk.shape))
    return WriteItem(index, WriteItemType.SHARD, tensor_data=data)


class ChunkLoadPlanner(LoadPlanner):
    """Fills chunks from whatever boxes the tensors were saved in; `beat` is called for each."""

    def __init__(self, chunks: Sequence[Chunk], beat: Callable[[], None]) -> None:
        self._chunks, self._beat = chunks, beat
        self._targets = {MetadataIndex(c.name, c.offsets): c.tensor for c in chunks}

    def set_up_planner(
        self, state_dict: Any, metadata: Metadata | None = None, is_coordinator: bool = False
    ) -> None:
        """Take the index of the checkpoint."""
        if metadata is None:
            raise ValueError("there is no index")
        self._saved = dict(tensors_of(metadata))

    def create_local_plan(self) -> LoadPlan:
        """Return what to read for each chunk."""
        items: list[ReadItem] = []
        for chunk in self._chunks:
            box = ChunkStorageMetadata(torch.Size(chunk.offsets), chunk.tensor.shape)
            items += create_read_items_for_chunk_list(chunk.name, self._saved[chunk.name], [box])
        return LoadPlan(items)

    def create_global_plan(self, global_plan: list[LoadPlan]) -> list[LoadPlan]:
        """Change nothing: each rank reads what it needs."""
        return global_plan

    def finish_plan(self, central_plan: LoadPlan) -> LoadPlan:
        """Accept the plan."""
        return central_plan

    def load_bytes(self, read_item: ReadItem, value: Any) -> None:
        """Refuse: nothing but tensors is ever saved."""
        raise ValueError(f"{read_item.dest_index.fqn} is no tensor")

    def resolve_tensor(self, read_item: ReadItem) -> Tensor:
        """Return the part of a chunk that an item fills."""
        self._beat()
        target = self._targets[read_item.dest_index]
        for dim, (start, size) in enumerate(
            zip(read_item.dest_offsets, read_item.lengths, strict=True)
        ):
            target = target.narrow(dim, start, size)
        return target

    def commit_tensor(self, read_item: ReadItem, tensor: Tensor) -> None:
        """Do nothing: the part was filled in place."""
