"""The rows of a drawing, and all its sizes.

Decides: one row per rank up to 64 ranks, else one per role; how many pixels a unit of time gets.
Relies on: `spans`.
Leaves: the elements to `svg`, colours to `html_page`.
"""

from collections.abc import Iterator
from itertools import pairwise
from math import floor, log10
from statistics import median

from mimo_launch.diag.frozen import frozen
from mimo_launch.diag.quantities import ranks_text, role_text
from mimo_launch.drawing.spans import (
    MOST_RANKS,
    Span,
    Timeline,
    Unit,
    alike,
    bubble_of,
    role_of_spans,
)
from mimo_launch.schedule.actions import Action

# Above this many rows each row is lower, so that all fit on a screen or two.
ROOMY = 24
# Widths of characters in pixels per pixel of font size: the average of text; bold digits and dots
# of the widest font.
CHAR, DIGIT, DOT = 0.56, 0.7, 0.38
MIN_WIDTH, MAX_WIDTH, BOX_WIDTH, TICK_WIDTH = 560.0, 2400.0, 26.0, 56.0


@frozen
class Row:
    """One line of the drawing: the spans of one rank, which represents `num_ranks` ranks."""

    label: str
    role: tuple[str, ...]
    num_ranks: int
    bubble: float
    spans: tuple[Span, ...]

    def stages_of(self, module: str) -> list[int]:
        """Return the stages of a module that the row computes."""
        parts = (part.rpartition(".") for part in self.role)
        return [int(stage) for name, _, stage in parts if name == module]

    def labels_of(self, action: Action) -> tuple[str, ...]:
        """Return the possible labels of a box: with the stage, if the row has several; without."""
        short = str(action.index)
        several = len(self.stages_of(action.module)) > 1
        return (f"{short}.{action.stage}", short) if several else (short,)

    @property
    def has_chunks(self) -> bool:
        """Whether the row has several stages of one module."""
        return len({part.rpartition(".")[0] for part in self.role}) < len(self.role)


@frozen
class Sizes:
    """Pixels: `top` and `left` of the plot, `scale` per unit of time, `tops` of the rows."""

    left: float
    top: float
    width: float
    scale: float
    row: float
    font: float
    tops: tuple[float, ...]

    @property
    def bottom(self) -> float:
        """The lower end of the last row."""
        return (self.tops[-1] if self.tops else self.top) + self.row

    def x(self, time: float) -> float:
        """Return the x of a time."""
        return self.left + time * self.scale


def rows_of(timeline: Timeline, rank: int | None = None) -> tuple[tuple[Row, ...], str]:
    """Return the rows to draw, and a text about what they leave out, if anything."""
    spans, makespan = timeline.by_rank(), timeline.makespan

    def row(ranks: tuple[int, ...]) -> Row:
        mine = spans[ranks[0]]
        role = role_of_spans(mine)
        label = f"{ranks_text(ranks)} {role_text(role)}"
        return Row(label, role, len(ranks), bubble_of(mine, makespan), mine)

    if rank is not None:
        return (row((rank,)),), f"only rank {rank} of {timeline.num_ranks}"
    if timeline.num_ranks <= MOST_RANKS:
        return tuple(row((each,)) for each in range(timeline.num_ranks)), ""
    groups = alike(timeline)
    kept = groups[:MOST_RANKS]
    more = len(groups) - len(kept)
    note = "one row per role, drawn from its first rank" + (f"; {more} roles more" if more else "")
    return tuple(map(row, kept)), note


def mean_bubble(timeline: Timeline) -> float:
    """Return the mean bubble of the ranks that have work, as `plan` prints it."""
    makespan = timeline.makespan
    rows = [row for row in timeline.by_rank() if any(span.is_compute for span in row)]
    return sum(bubble_of(row, makespan) for row in rows) / max(1, len(rows))


def sizes_of(timeline: Timeline, rows: tuple[Row, ...], top: float) -> Sizes:
    """Return sizes at which a box of median duration has room for any number, within limits."""
    is_roomy = len(rows) <= ROOMY
    height, font = (24.0, 12.0) if is_roomy else (17.0, 11.0)
    longest = max((len(row.label) for row in rows), default=0)
    times = [s.stop - s.start for row in rows for s in row.spans if s.is_compute]
    usual = median(times) if times else 0.0
    makespan = timeline.makespan
    labels = {row.labels_of(s.action)[0] for row in rows for s in row.spans if s.is_compute}
    box = max((digits_width(label, font) + 4 for label in labels), default=0.0)
    box = max(box, BOX_WIDTH)
    wanted = box * makespan / usual if usual else MIN_WIDTH
    width = min(max(wanted, MIN_WIDTH), MAX_WIDTH)
    tops = [top]
    for above, below in pairwise(rows):
        gap = 6.0 if above.role != below.role else 2.0
        tops.append(tops[-1] + height + gap)
    return Sizes(
        left=max(90.0, 16 + longest * font * CHAR + 10),
        top=top,
        width=width,
        scale=width / makespan if makespan else 1.0,
        row=height,
        font=font,
        tops=tuple(tops[: len(rows)]),
    )


def text_width(text: str, font: float) -> float:
    """Estimate the width of a text; there is no font to measure."""
    return len(text) * font * CHAR


def digits_width(label: str, font: float) -> float:
    """Return the maximum width of a bold number with dots."""
    return font * sum(DOT if char == "." else DIGIT for char in label)


def ticks_of(timeline: Timeline, sizes: Sizes) -> Iterator[tuple[float, str]]:
    """Yield the ticks of the axis with their labels, 1, 2 or 5 times a power of ten apart."""
    least = TICK_WIDTH / sizes.scale
    power = 10.0 ** floor(log10(least))
    step = next(power * n for n in (1, 2, 5, 10) if power * n >= least)
    if timeline.unit is Unit.MODEL:
        step = max(1.0, step)
    factor = axis_unit(timeline)[1]
    for number in range(int(timeline.makespan / step + 1e-9) + 1):
        yield number * step, f"{number * step * factor:.6g}"


def axis_unit(timeline: Timeline) -> tuple[str, float]:
    """Return the name of the axis unit, and the number of axis units in one timeline unit."""
    if timeline.unit is Unit.MODEL:
        return "model units", 1.0
    return ("milliseconds", 1e3) if timeline.makespan < 1 else ("seconds", 1.0)
