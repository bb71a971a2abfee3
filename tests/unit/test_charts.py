"""Charts: their axes, gaps and what a reader who points at a step sees."""

import itertools
import math
import re
from dataclasses import replace

import pytest

from mimo_launch.drawing.chart_files import chart_element
from mimo_launch.drawing.charts import (
    CHAR,
    HEIGHT,
    WIDTH,
    Chart,
    Dot,
    Line,
    Look,
    PlacedChart,
    Stroke,
    Words,
    round_numbers,
    round_powers,
)

BLUE = Look(color="#0000ff")


def chart(*values: float, is_log: bool = False, from_zero: bool = False) -> Chart:
    line = Line("loss", range(1, len(values) + 1), values, BLUE)
    return Chart(
        title="loss", below="step", lines=(line,), legend={}, is_log=is_log, from_zero=from_zero
    )


def strokes(drawn: Chart) -> list[Stroke]:
    shapes = PlacedChart(drawn).shapes()
    return [each for each in shapes if isinstance(each, Stroke) and each.color == BLUE.color]


@pytest.mark.parametrize(
    ("ends", "most", "numbers"),
    [
        ((0, 400), 7, [0, 100, 200, 300, 400]),
        ((-0.1, 1.1), 6, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        ((36_000, 41_000), 5, [36_000, 37_000, 38_000, 39_000, 40_000, 41_000]),
        ((1e-5, 3e-5), 2, [1e-5, 2e-5, 3e-5]),
    ],
)
def test_ticks_are_1_2_or_5_times_a_power_of_ten(
    ends: tuple[float, float], most: int, numbers: list[float]
) -> None:
    assert round_numbers(*ends, most) == pytest.approx(numbers)


@pytest.mark.parametrize(
    ("values", "most", "numbers"),
    [
        ((0.004, 3), 6, [0.01, 0.1, 1]),
        ((0.3, 30), 6, [0.5, 1, 2, 5, 10, 20]),
        ((2.1, 2.9), 4, [2.2, 2.4, 2.6, 2.8]),
        ((1e-9, 1e9), 6, [1e-9, 1e-6, 1e-3, 1, 1e3, 1e6, 1e9]),
    ],
)
def test_ticks_of_a_logarithmic_axis_are_powers_or_numbers_between_them(
    values: tuple[float, float], most: int, numbers: list[float]
) -> None:
    ends = math.log10(values[0]), math.log10(values[1])
    assert round_powers(*ends, most) == pytest.approx(numbers)


def test_a_value_that_is_not_finite_is_a_gap_and_a_lone_value_a_dot() -> None:
    drawn = chart(3, 2, math.nan, 1)
    assert [len(each.points) for each in strokes(drawn)] == [2]
    assert sum(isinstance(each, Dot) for each in PlacedChart(drawn).shapes()) == 1


def test_equal_ratios_are_equally_far_on_a_logarithmic_axis() -> None:
    drawn = chart(100, 10, 1, 0, 10, 100, is_log=True)
    first, second = strokes(drawn)
    heights = [y for _, y in first.points]
    assert heights[1] - heights[0] == pytest.approx(heights[2] - heights[1])
    assert len(second.points) == 2  # Zero has no place.


def assert_inside(drawn: Chart) -> None:
    for shape in PlacedChart(drawn).shapes():
        points = shape.points if isinstance(shape, Stroke) else (shape.at,)
        assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in points)
        if isinstance(shape, Words) and shape.anchor == "start":
            assert shape.at[0] + len(shape.text) * shape.size * CHAR <= WIDTH


@pytest.mark.parametrize(
    "values",
    [
        (), (5.0,), (2.0, 2.0), (math.nan,), (1e-30, 1e30), (-1.0, -2.0),
        (1.0, 1e300), (1e308, -1e308), (5e-324, 1.0), (-math.inf, 1e308, 1.0),
    ],
)  # fmt: skip
def test_everything_drawn_is_inside_of_the_chart(values: tuple[float, ...]) -> None:
    for is_log, from_zero in ((False, False), (True, False), (False, True)):
        assert_inside(chart(*values, is_log=is_log, from_zero=from_zero))


def test_an_axis_may_begin_at_zero() -> None:
    drawing = PlacedChart(chart(40_000, 41_000, from_zero=True))
    assert drawing.ticks[0] == (0, "0")


def test_ticks_around_a_lone_value_differ() -> None:
    for value in (1.0, 3.0, 1e-3):
        words = [words for _, words in PlacedChart(chart(value, is_log=True)).ticks]
        assert len(set(words)) == len(words) > 1


@pytest.mark.parametrize(
    "names", [["long_" * 13], [", ".join(["vision"] * 20)], ["long_name_of_module"] * 64]
)
def test_a_legend_leaves_room_for_the_plot(names: list[str]) -> None:
    legend = {f"{name} {number}": BLUE for number, name in enumerate(names)}
    drawn = replace(chart(1, 2), legend=legend)
    assert_inside(drawn)
    drawing = PlacedChart(drawn)
    assert drawing.bottom - drawing.top > HEIGHT / 4
    said = [shape.text for shape in drawing.legend if isinstance(shape, Words)]
    more = re.fullmatch(r"and (\d+) more", said[-1])
    assert len(said) - bool(more) + (int(more[1]) if more else 0) >= len(names)


def test_what_a_reader_sees_of_a_long_name_is_inside_of_the_chart() -> None:
    line = Line("a_long_name_" * 10, [1, 2, 3], [1.0, 2.0, 3.0], BLUE)
    drawn = Chart(title="", below="", lines=(line,), legend={})
    boxes = re.findall(r'<rect x="([\d.-]+)" y="[\d.]+" width="([\d.]+)"', chart_element(drawn))
    assert len(boxes) == 6  # A band and a box for each step.
    assert all(float(x) >= 0 and float(x) + float(width) <= WIDTH for x, width in boxes)


def test_a_reader_sees_all_values_of_the_step_pointed_at() -> None:
    one = Line("one", [1, 2, 3], [3.0, 2.0, math.nan], BLUE)
    two = Line("two", [2], [0.5], Look(dots=True))
    faint = Line("", [1, 2, 3], [9.0, 9.0, 9.0], Look(faint=True))
    drawn = Chart(title="", below="", lines=(one, two, faint), legend={})
    texts = [stop.text for stop in PlacedChart(drawn).stops()]
    assert texts == [("step 1", "one 3"), ("step 2", "one 2", "two 0.5"), ("step 3",)]
    assert ">one 2</tspan>" in chart_element(drawn)
    assert "<script" not in chart_element(drawn)


def test_the_bands_of_a_long_run_cover_the_plot_without_overlap() -> None:
    drawing = PlacedChart(chart(*(1 / n for n in range(1, 2000))))
    stops = list(drawing.stops())
    assert len(stops) == 60
    assert (stops[0].left, stops[-1].right) == (drawing.left, drawing.right)
    assert all(a.right == pytest.approx(b.left) for a, b in itertools.pairwise(stops))
