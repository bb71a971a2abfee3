"""Charts of numbers over steps: curves between axes with round numbers, and a legend.

Decides: sizes, ticks, and which values a reader sees on pointing at a step or tapping it. A chart
is placed once, as strokes, dots and words; text has the colour of the page around it.
Relies on: values that may be missing (not finite): a gap, as values up to 0 on a logarithmic axis,
and those too large or too small for the arithmetic of an axis.
Leaves: which curves there are to `cli.report_figure`; files to `chart_files`.
"""

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import groupby
from textwrap import wrap

from mimo_launch.diag.diagnostic import shortened
from mimo_launch.diag.frozen import frozen

Point = tuple[float, float]
# The lengths of strokes and of the gaps between them, in pixels; empty for a solid line.
Dash = tuple[float, ...]

# The colour of the text around a drawing.
INK, GREY = "currentColor", "#888888"
WIDTH, HEIGHT = 440.0, 300.0
FONT, CHAR = 12.0, 0.56
_START = 14.0
_TITLE_Y, _LEGEND_Y, _LINE, _BELOW, _RIGHT, _SWATCH = 16.0, 35.0, 16.0, 42.0, 18.0, 24.0
# The least distance of two ticks.
_TICK_X, _TICK_Y = 60.0, 34.0
# At most this many steps, and values of one, are shown to a reader who points at them, with names
# of at most so many characters.
_MOST_STOPS, _MOST_VALUES, _MOST_OF_NAME = 60, 9, 40
# The lines of a chart's legend: more would leave no room for its plot.
_MOST_LINES = 7
# Beyond this, and below its inverse on a logarithmic axis, the ends of an axis could overflow.
_LARGEST = 1e250


@frozen(kw_only=True)
class Look:
    """The look of a curve: a line of a colour; or `dots`, or a `faint` line in the background."""

    color: str = GREY
    dash: Dash = ()
    dots: bool = False
    faint: bool = False


@frozen
class Line:
    """A curve by its name, with a value for each step, in order."""

    name: str
    steps: Sequence[float]
    values: Sequence[float]
    look: Look


@frozen(kw_only=True)
class Chart:
    """Curves with a legend; `marks` are steps to mark, with colours, and `below` names the x axis.

    The y axis is logarithmic if `is_log`, and begins at 0 if `from_zero`.
    """

    title: str
    below: str
    lines: tuple[Line, ...]
    legend: dict[str, Look]
    marks: tuple[tuple[float, str], ...] = ()
    is_log: bool = False
    from_zero: bool = False


@frozen(kw_only=True)
class Stroke:
    """A line through points."""

    points: tuple[Point, ...]
    color: str = INK
    width: float = 1.0
    dash: Dash = ()
    opacity: float = 1.0


@frozen
class Dot:
    """A filled circle."""

    at: Point
    radius: float
    color: str


@frozen
class Words:
    """Text in the colour of the page; `anchor` is start, middle or end, as in SVG."""

    at: Point
    text: str
    size: float = FONT
    anchor: str = "start"


Shape = Stroke | Dot | Words


@frozen
class Stop:
    """The text that a reader sees at one step, beside a line at `x` in a band of the plot."""

    x: float
    left: float
    right: float
    text: tuple[str, ...]


class PlacedChart:
    """A chart placed in a rectangle of `WIDTH` and `HEIGHT` pixels."""

    def __init__(self, chart: Chart) -> None:
        self._chart = chart
        # Values up to 0 have no place on a logarithmic axis.
        usable = [v for line in chart.lines for v in line.values if self._fits(v)]
        low, high = min(usable, default=1.0), max(usable, default=1.0)
        self._scale = math.log10 if chart.is_log else float
        least = 0.02 if chart.is_log else 1e-12
        self.low, self.high = _widened(self._scale(low), self._scale(high), 0.05, least)
        if chart.from_zero and low >= 0:
            self.low = 0.0
        steps = [float(each[0]) for each in chart.marks]
        steps += [end for line in chart.lines for end in (*line.steps[:1], *line.steps[-1:])]
        self.first, self.last = _widened(min(steps, default=0), max(steps, default=1), 0.02)
        self.legend, bottom = legend_of(chart.legend, _LEGEND_Y, WIDTH - _RIGHT, _MOST_LINES)
        self.top, self.bottom = bottom + 8, HEIGHT - _BELOW
        self.ticks = tuple(self._ticks())
        self.left = _START + max((len(words) for _, words in self.ticks), default=1) * FONT * CHAR
        self.right = WIDTH - _RIGHT

    def _fits(self, value: float) -> bool:
        return abs(value) <= _LARGEST and (value >= 1 / _LARGEST or not self._chart.is_log)

    def _ticks(self) -> Iterator[tuple[float, str]]:
        """Yield values of the y axis with their words."""
        room = max(2, int((self.bottom - self.top) / _TICK_Y))
        if not self._chart.is_log:
            values = round_numbers(self.low, self.high, room)
        else:
            values = round_powers(self.low, self.high, room)
        for value in values:
            yield value, f"{value:.10g}"

    def x(self, step: float) -> float:
        """Return the x of a step."""
        return self.left + (step - self.first) / (self.last - self.first) * (self.right - self.left)

    def y(self, value: float) -> float:
        """Return the y of a value."""
        share = (self._scale(value) - self.low) / (self.high - self.low)
        return self.bottom - share * (self.bottom - self.top)

    def shapes(self) -> Iterator[Shape]:
        """Yield title, legend, axes and curves, those in the background first."""
        chart, left, right = self._chart, self.left, self.right
        yield Words((_START, _TITLE_Y), chart.title, 14)
        yield from self.legend
        for value, words in self.ticks:
            y = self.y(value)
            yield Stroke(points=((left, y), (right, y)), width=0.6, opacity=0.2)
            yield Words((left - 6, y + FONT * 0.36), words, anchor="end")
        for step in round_numbers(self.first, self.last, int((right - left) / _TICK_X), least=1):
            x = self.x(step)
            yield Stroke(points=((x, self.top), (x, self.bottom)), width=0.6, opacity=0.2)
            yield Words((x, self.bottom + 16), f"{step:.10g}", anchor="middle")
        yield Stroke(points=((left, self.top), (left, self.bottom), (right, self.bottom)))
        yield Words(((left + right) / 2, HEIGHT - 6), chart.below, anchor="middle")
        for step, color in chart.marks:
            x = self.x(step)
            yield Stroke(points=((x, self.top), (x, self.bottom)), color=color, dash=(1.5, 2.5))
        for line in chart.lines:
            yield from self._curve(line)

    def _curve(self, line: Line) -> Iterator[Shape]:
        """Yield the parts of a curve between its gaps; a single point is a dot, not a line."""
        look, pairs = line.look, zip(line.steps, line.values, strict=True)
        for fits, part in groupby(pairs, key=lambda pair: self._fits(pair[1])):
            points = tuple((self.x(step), self.y(value)) for step, value in part if fits)
            if look.dots or len(points) == 1:
                yield from (Dot(point, 3.0 if look.dots else 2.0, look.color) for point in points)
            elif points:
                width, opacity = (0.8, 0.3) if look.faint else (1.5, 1.0)
                yield Stroke(
                    points=points, color=look.color, width=width, dash=look.dash, opacity=opacity
                )

    def stops(self) -> Iterator[Stop]:
        """Yield what readers see when they point at steps: all values, by the names of curves."""
        named = [line for line in self._chart.lines if line.name and line.steps]
        steps = sorted({step for line in named for step in line.steps})
        number = min(len(steps), _MOST_STOPS)
        chosen = [steps[n * (len(steps) - 1) // max(1, number - 1)] for n in range(number)]
        for place, step in enumerate(chosen):
            before, after = chosen[max(0, place - 1)], chosen[min(number - 1, place + 1)]
            ends = (self.x((before + step) / 2), self.x((step + after) / 2))
            said = [
                f"{shortened(line.name, _MOST_OF_NAME)} {value:.5g}"
                for line in named
                for value in _near(line, step, (before + step) / 2, (step + after) / 2)
            ]
            more = len(said) - _MOST_VALUES
            rest = [f"and {more} more"] if more > 0 else []
            yield Stop(
                self.x(step),
                self.left if place == 0 else ends[0],
                self.right if place == number - 1 else ends[1],
                (f"step {step:,g}", *said[:_MOST_VALUES], *rest),
            )


def _near(line: Line, step: float, low: float, high: float) -> Iterator[float]:
    """Yield the finite value of a curve at a step, or at the next one between two limits."""
    place = min(bisect_left(line.steps, step), len(line.steps) - 1)
    if low <= line.steps[place] <= high and math.isfinite(line.values[place]):
        yield line.values[place]


def legend_of(
    looks: dict[str, Look], y: float, width: float, most: int | None = None
) -> tuple[tuple[Shape, ...], float]:
    """Return a legend from the height `y`, wrapped to a width, and the height where it ends.

    It has at most `most` lines, of which the last one counts the names that found no place.
    """
    shapes: list[Shape] = []
    x, end = _START, math.inf if most is None else y + (most - 1) * _LINE
    room = int((width - _START - _SWATCH) / (FONT * CHAR))
    for number, (name, look) in enumerate(looks.items()):
        lines = wrap(name, room) or [""]
        size = _SWATCH + (max(map(len, lines)) + 2) * FONT * CHAR
        if x > _START and x + size > width:
            x, y = _START, y + _LINE
        if y >= end:
            shapes.append(Words((_START, y), f"and {len(looks) - number} more"))
            break
        ends = ((x, y - 4), (x + _SWATCH - 6, y - 4))
        shapes.append(Stroke(points=ends, color=look.color, width=1.8, dash=look.dash))
        for place, line in enumerate(lines):
            y += _LINE * (place > 0)
            is_cut = place + 1 < len(lines) and y + _LINE >= end
            shapes.append(Words((x + _SWATCH, y), "..." if is_cut else line))
            if is_cut:
                break
        x += size
    return tuple(shapes), y if looks else y - _LINE


def round_numbers(low: float, high: float, most: int, least: float = 0.0) -> list[float]:
    """Return about `most` multiples of 1, 2 or 5 times a power of ten between two numbers.

    They are `least` apart or more.
    """
    apart = max((high - low) / max(1, most), least)
    power = 10.0 ** math.floor(math.log10(apart))
    step = next(power * n for n in (1, 2, 5, 10) if power * n >= apart * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [n * step for n in range(first, last + 1)]


def round_powers(low: float, high: float, most: int) -> list[float]:
    """Return powers of ten between two exponents; where these are few, numbers between them."""
    apart = max(1, math.ceil((high - low) / most))
    whole = range(math.ceil(low), math.floor(high) + 1)
    if len(whole) > 2:
        return [10.0**n for n in whole if n % apart == 0]
    found = [m * 10.0**n for n in range(math.floor(low), math.floor(high) + 1) for m in (1, 2, 5)]
    shown = [value for value in found if low <= math.log10(value) <= high]
    return shown if len(shown) > 1 else round_numbers(10.0**low, 10.0**high, most)


def _widened(low: float, high: float, share: float, least: float = 1e-12) -> tuple[float, float]:
    """Return an interval with some room on both sides, `least` or more if it was empty."""
    room = (high - low) * share or max(abs(low) * share, least)
    return low - room, high + room
