"""Masks of images in windows: every token on one rank, each window whole and alone."""

import numpy as np
import pytest
import torch

from mimo_launch.layers.image_contexts import window_context, window_numbers

CPU = torch.device("cpu")
PER_ROW = 4


def window_of(sizes: list[tuple[int, int]], side: int) -> list[tuple[int, int, int]]:
    """Return image, row and column of the window of each token, counted one by one."""
    return [
        (image, y // side, x // side)
        for image, (height, width) in enumerate(sizes)
        for y in range(height)
        for x in range(width)
        for _ in range(PER_ROW)
    ]


@pytest.mark.parametrize("sizes", [[(4, 4)], [(1, 7), (5, 3), (2, 2)], [(6, 6)] * 2, []])
@pytest.mark.parametrize("side", [1, 2, 4])
@pytest.mark.parametrize("cp", [1, 2, 3])
def test_each_token_attends_to_its_window(sizes: list[tuple[int, int]], side: int, cp: int) -> None:
    wanted = window_of(sizes, side)
    held_each, seen = -(-len(wanted) // cp) + 2, 0
    for rank in range(cp):
        held = range(rank * held_each, (rank + 1) * held_each)
        mask = window_context(sizes, side, PER_ROW, held, CPU, alone=cp == 1)
        assert mask.order is not None
        own, keys, back = mask.order.own, mask.order.keys, mask.order.back
        assert torch.equal(own[back], torch.arange(held_each))
        flat, longest = mask.queries.flatten(), mask.queries.shape[1]
        for place, query in enumerate(mask.tokens.tolist()):
            token = held.start + int(own[place])
            assert int(flat[query]) == place
            row = query // longest
            found = keys[mask.keys[row][mask.valid[:, 0][row]]].tolist()
            assert found == [i for i, each in enumerate(wanted) if each == wanted[token]]
            seen += 1
        assert sum(mask.own_lengths) == len(mask.tokens)
        assert mask.is_full == bool(mask.valid[:, 0].all())
    assert seen == len(wanted)


def test_windows_of_one_size_need_no_mask() -> None:
    held = range(2 * 16 * PER_ROW)
    mask = window_context([(4, 4)] * 2, 2, PER_ROW, held, CPU, alone=True)
    assert mask.same == (8, 4 * PER_ROW)
    assert window_context([(4, 5)], 2, PER_ROW, range(80), CPU, alone=True).same is None


def test_windows_are_numbered_through_all_images() -> None:
    assert window_numbers([(2, 3), (1, 1)], 2, 1).tolist() == [0, 0, 1, 0, 0, 1, 2]
    assert window_numbers([], 2, 1).dtype == np.int64
