"""Images become patches in the order in which rows are made of them, on any number of ranks."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from mimo_launch.models.patches import Patches, cut_image, pack, reader
from mimo_launch.spec.spec import VitModel

MODEL = VitModel(kind="vit", layers=1, hidden=8, heads=1, patch=2, channels=3, shuffle=2)
PIXELS = 3 * 2 * 2


def image(height: int, width: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((3, height, width)).astype(np.float32)


def one_by_one(pixels: np.ndarray, s: int) -> list[tuple[np.ndarray, tuple[int, int]]]:
    """Return the patches and their places, square after square."""
    rows, columns = pixels.shape[1] // 2, pixels.shape[2] // 2
    places = [
        (y + dy, x + dx)
        for y in range(0, rows, s)
        for x in range(0, columns, s)
        for dy in range(s)
        for dx in range(s)
    ]
    return [(pixels[:, 2 * y : 2 * y + 2, 2 * x : 2 * x + 2].flatten(), (y, x)) for y, x in places]


@pytest.mark.parametrize("writeable", [True, False])
@pytest.mark.parametrize("s", [1, 2])
def test_patches_of_a_square_stand_together(s: int, *, writeable: bool) -> None:
    pixels = image(8, 12, 0)
    pixels.flags.writeable = writeable
    model = MODEL.model_copy(update={"shuffle": s})
    cut = cut_image(pixels, images=model, dtype=torch.float64, pinned=False)
    expected = one_by_one(pixels, s)
    np.testing.assert_array_equal(cut.values.numpy(), np.stack([patch for patch, _ in expected]))
    assert cut.positions.tolist() == [list(place) for _, place in expected]


@pytest.mark.parametrize("held", [range(40), range(10, 20), range(20, 40), range(36, 48), range(0)])
@pytest.mark.parametrize("ready", [True, False])
def test_a_rank_gets_its_part_of_the_list_and_zeros_behind_it(held: range, *, ready: bool) -> None:
    """Two images of 24 and 16 patches; a rank may hold parts of both, or more than there is."""
    images = [image(8, 12, 1), image(8, 8, 2)]
    context: Any = SimpleNamespace(device=torch.device("cpu"), compute_dtype=torch.bfloat16)
    cut = [cut_image(each, images=MODEL, dtype=torch.bfloat16, pinned=False) for each in images]
    packed = pack(cut if ready else images, reader(MODEL), context, held)
    padding = Patches(torch.zeros(8, PIXELS), torch.zeros(8, 2, dtype=torch.int64))
    pixels = torch.cat([*(each.values for each in cut), padding.values.bfloat16()])
    positions = torch.cat([*(each.positions for each in cut), padding.positions])
    assert torch.equal(packed.values, pixels[held.start : held.stop])
    assert torch.equal(packed.positions, positions[held.start : held.stop])
