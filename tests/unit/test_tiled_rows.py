"""What rows of tiles are made of, beside what torch interpolates."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from mimo_launch.kinds.tiles import Frame, IndicatorRule, Shown, TileRule, Tiling
from mimo_launch.models.tiled_rows import NEWLINE, row_patches


@pytest.mark.parametrize("size", [(4, 4), (3, 5), (27, 27), (1, 2)])
def test_rows_of_a_frame_are_those_of_torch(size: tuple[int, int]) -> None:
    """Half of the lines and columns, rounded up; the learned row is behind the last frame."""
    rule = TileRule(*size, None, False, 2, ((1, 2),))
    patches = np.random.default_rng(0).normal(size=(size[0] * size[1], 3))
    half = -(-size[0] // 2), -(-size[1] // 2)
    grid = torch.from_numpy(patches).T.view(1, 3, *size)
    wanted = F.interpolate(grid, half, mode="bilinear")[0].flatten(1).T.numpy()
    places, shares = row_patches(rule, Frame(is_last=False))
    found = (patches[places] * shares[..., None]).sum(axis=1)
    assert np.abs(found - wanted).max() < 1e-12
    assert len(places) == rule.num_rows(Frame(is_last=False)) == half[0] * half[1]
    last, one = row_patches(rule, Frame(is_last=True))
    assert (last[:-1] == places).all()
    assert last[-1, 0] == NEWLINE
    assert one[-1].tolist() == [1, 0, 0, 0]
    assert len(last) == rule.num_rows(Frame(is_last=True))


@pytest.mark.parametrize(
    ("shown", "wanted"),
    [
        (None, "<START> 0 1 <GRID> <END>"),
        (Tiling(1, 2, 1, 4), "<START> 0 1 <GRID> 2 3 <COL> 4 5 <END>"),
        (Tiling(2, 1, 2, 2), "<START> 0 1 <GRID> 2 3 <ROW> 4 5 <END>"),
        (
            Tiling(2, 2, 2, 4),
            "<START> 0 1 <GRID> 2 3 <COL> 4 5 <ROW> 6 7 <COL> 8 9 <END>",
        ),
    ],
)
def test_learned_rows_of_an_ovis2_stand_around_and_between_tiles(shown: Shown, wanted: str) -> None:
    rule = IndicatorRule(1, 2, None, True, 2, ((2, 2),))
    learned = ("<START>", "<GRID>", "<COL>", "<ROW>", "<END>")
    places, shares = row_patches(rule, shown)
    found = [learned[-1 - each] if each < 0 else str(each) for each in places[:, 0]]
    assert " ".join(found) == wanted
    assert len(found) == rule.num_rows(shown)
    assert shares.tolist() == [[1, 0, 0, 0]] * len(found)
