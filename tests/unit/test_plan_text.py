"""How `plan` writes ranks and draws the schedule."""

from itertools import product

import pytest

from mimo_launch.diag.quantities import as_ranges, ranks_text
from mimo_launch.drawing.rows import TimelineRow, Work
from mimo_launch.drawing.timeline import grid_lines, letters


def test_ranks_as_text() -> None:
    assert ranks_text(()) == ""
    assert ranks_text((4,)) == "4"
    assert ranks_text((0, 1, 2, 3, 6)) == "0-3,6"
    assert ranks_text(range(0, 2048, 8)) == "0,8,..2040 (256 ranks)"
    assert as_ranges((0, 1, 2, 5, 7, 8)) == ((0, 2), (5, 5), (7, 8))


def test_letters_are_unique_beginnings() -> None:
    assert letters(("vision", "audio")) == {"vision": "v", "audio": "a"}
    assert letters(("vision", "video")) == {"vision": "vis", "video": "vid"}
    # One name that begins another has no shorter form of its own.
    assert letters(("vis", "vision")) == {"vis": "vis", "vision": "visi"}


@pytest.mark.parametrize("width", [20, 60, 200])
def test_grid_fits_the_width(width: int) -> None:
    work = tuple(
        Work(action=f"language.0{kind}{i}", start=2 * i + j, stop=2 * i + j + 1)
        for i, (j, kind) in product(range(12), enumerate("FB"))
    )
    row = TimelineRow(role=("language.0",), ranks=(0,), bubble=0.0, work=work)
    lines = grid_lines((row,), (), 24.0, width)
    cells = [cell for line in lines if line.startswith("0 ") for cell in line.split()[2:]]
    drawn = [line for line in lines if line.startswith("0 ")]
    assert all(len(line) <= width for line in drawn)
    if width >= 60:
        assert cells == [f"{kind}{i}" for i, kind in product(range(12), "FB")]
