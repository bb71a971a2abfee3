"""What DCP is given of a checkpoint."""

import torch

from mimo_launch.checkpoint.boxes import Box
from mimo_launch.checkpoint.storage import BoxSavePlanner


def test_each_box_that_is_saved_is_a_sign_of_life() -> None:
    boxes = [Box("w", (4, 2), (first, 0), torch.ones(2, 2), counted=True) for first in (0, 2)]
    beats: list[None] = []
    planner = BoxSavePlanner(boxes, lambda: beats.append(None))
    for number, item in enumerate(planner.create_local_plan().items):
        assert planner.resolve_data(item) is boxes[number].tensor
    assert len(beats) == 2
