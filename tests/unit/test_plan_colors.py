"""The palette of drawings, seen with several kinds of eyes."""

from functools import cache
from itertools import combinations

import pytest

from mimo_launch.drawing.html_page import colors
from mimo_launch.drawing.svg import IDLE

# Machado et al. 2009: how people without one kind of cone see linear RGB, full severity.
SIGHT = {
    "usual": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protan": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deutan": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
}


@cache
def lab(color: str, sight: str) -> tuple[float, float, float]:
    """Return CIE L*a*b* of a colour as seen with this sight."""
    rgb = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in rgb]
    r, g, b = (
        min(1, max(0, sum(m * c for m, c in zip(row, linear, strict=True)))) for row in SIGHT[sight]
    )
    x = (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.9505
    y = 0.2126 * r + 0.7152 * g + 0.0722 * b
    z = (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.089
    fx, fy, fz = (v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in (x, y, z))
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)


@pytest.mark.parametrize("sight", SIGHT)
def test_first_modules_are_told_apart_by_any_eye(sight: str) -> None:
    """A difference of 10 in L*a*b* is seen at a glance; idle time is a colour, too."""
    every = [IDLE, *(color for number in range(5) for color in colors(number))]
    for one, other in combinations(every, 2):
        distance = sum(
            (p - q) ** 2 for p, q in zip(lab(one, sight), lab(other, sight), strict=True)
        )
        assert distance**0.5 > 14, (one, other)


def test_colours_of_many_modules_differ() -> None:
    every = [color for number in range(24) for color in colors(number)]
    assert len(set(every)) == len(every)
    for number in range(24):
        light, dark = (lab(color, "usual")[0] for color in colors(number))
        # White numbers are read on the dark one, black numbers on the light one.
        assert light > 70
        assert dark < 50
