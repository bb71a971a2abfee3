"""What DCP is given of a checkpoint, and what its index must say."""

import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from mimo_launch.checkpoint import folder, index
from mimo_launch.checkpoint.boxes import Box
from mimo_launch.checkpoint.index import TENSORS
from mimo_launch.checkpoint.storage import (
    BoxSavePlanner,
    CheckpointError,
    read_boxes,
    write_boxes,
)


def test_each_box_that_is_saved_is_a_sign_of_life() -> None:
    boxes = [Box("w", (4, 2), (first, 0), torch.ones(2, 2), counted=True) for first in (0, 2)]
    beats: list[None] = []
    planner = BoxSavePlanner(boxes, lambda: beats.append(None))
    for number, item in enumerate(planner.create_local_plan().items):
        assert planner.resolve_data(item) is boxes[number].tensor
    assert len(beats) == 2


@pytest.fixture
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_each_part_that_is_read_is_a_sign_of_life(tmp_path: Path) -> None:
    group = dist.distributed_c10d._get_default_group()
    saved = [Box("w", (4, 2), (at, 0), torch.full((2, 2), at), counted=True) for at in (0, 2)]
    write_boxes(tmp_path, saved, group, lambda: None)
    whole, beats = torch.zeros(4, 2, dtype=torch.int64), list[None]()
    boxes = [Box("w", (4, 2), (0, 0), whole, counted=True)]
    read_boxes(tmp_path, boxes, group, lambda: beats.append(None))
    assert (whole.tolist(), len(beats)) == ([[0, 0], [0, 0], [2, 2], [2, 2]], 2)


def test_each_block_of_a_checksum_is_a_sign_of_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, beats = tmp_path / "file", list[None]()
    path.write_bytes(b"ten bytes.")
    monkeypatch.setattr(folder, "_BLOCK", 4)
    assert folder.crc_of(path, lambda: beats.append(None)) == zlib.crc32(b"ten bytes.")
    assert len(beats) == 3


@pytest.mark.usefixtures("alone")
def test_an_index_that_no_run_would_read_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint that is saved can be loaded."""
    group = dist.distributed_c10d._get_default_group()
    boxes = [Box(name, (4,), (0,), torch.ones(4), counted=True) for name in "ab"]
    write_boxes(tmp_path, boxes, group, lambda: None)
    size = (tmp_path / TENSORS).stat().st_size
    monkeypatch.setattr(index, "_MAX_BYTES", size - 1)
    with pytest.raises(CheckpointError, match="its index of 2 boxes has"):
        write_boxes(tmp_path, boxes, group, lambda: None)
