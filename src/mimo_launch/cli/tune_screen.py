"""What `tune` prints: a table of layouts, why one is faster, and the speed on fewer GPUs.

Decides: the columns, the words of each line, and the keys of `--json`.
Relies on: `search.layout_rows` for the facts, `drawing.table` for tables.
Leaves: the search to `search.tune`, specs to `tune_files`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from textwrap import wrap
from typing import Any, Self

from rich.console import RenderableType
from rich.text import Text

from mimo_launch.cli.shared.bars import CountScreen
from mimo_launch.cli.shared.console import Console
from mimo_launch.cli.shared.plain_table import PlainTable
from mimo_launch.diag.quantities import bytes_text, counted, percent, scaled, seconds_text
from mimo_launch.drawing.table import Column, Table
from mimo_launch.estimate.accuracy import Accuracy
from mimo_launch.layout.space import Point
from mimo_launch.search.fewer_gpus import Speed, smallest
from mimo_launch.search.layout_rows import LayoutRow, Term, terms_between, words_of


class TuneScreen(CountScreen):
    """A bar of the plans that a search has made; it starts late, after processes are forked."""

    def __init__(self, console: Console, plain: bool, gpus: int) -> None:
        super().__init__(console, plain, what=f"layouts on {counted(gpus, 'GPU')}", total=100)
        self._waits = True

    def __enter__(self) -> Self:
        return self

    def say(self, part: float, seconds: float) -> None:
        """Show the part of the plans that are made, and the seconds of the best step."""
        if self._waits:
            self._waits = False
            super().__enter__()
        best = f", best step {seconds_text(seconds)}" if seconds < float("inf") else ""
        self._bar.update(self._task, completed=round(100 * part), description=best or "")


_COLUMNS: tuple[Column, ...] = (
    Column("", "number"),
    Column("step", "step_seconds", seconds_text),
    Column("tokens/s", "tokens_per_second", lambda value: f"{value:,.0f}"),
    Column("MFU", "mfu", lambda share: f"{100 * share:.1f}%"),
    Column("bubble", "bubble", percent),
    Column("memory", lambda row: max(row.memory.values()), bytes_text),
    Column("free", "headroom", bytes_text),
    Column("in hosts", "traffic.inside", lambda size: scaled(size, "B")),
    Column("between", "traffic.between", lambda size: scaled(size, "B")),
    Column("slower", "slower", percent),
)


_MEASURED = (
    Column("measured", "measured_seconds", seconds_text),
    Column("corrected", "corrected_seconds", seconds_text),
)


def table_of(rows: Sequence[LayoutRow], accuracy: Accuracy, width: int) -> Iterator[RenderableType]:
    """Yield the table, then what each layout is, what limits it, and what it gives up."""
    columns = _COLUMNS
    if any(row.corrected_seconds for row in rows):
        columns = (_COLUMNS[0], *_MEASURED, *_COLUMNS[1:])
    yield PlainTable(Table(columns, rows, none="-"))
    for row in rows:
        yield ""
        yield from _lines(f"{row.number}. {row.words}", width, indent=3)
        memory = ", ".join(f"{names} {bytes_text(size)}" for names, size in row.memory.items())
        yield from _lines(f"   memory: {memory}", width, indent=3)
        yield from _lines(f"   limit: {row.limited_by}", width, indent=3)
        if row.gives_up:
            yield from _lines(f"   {row.gives_up}", width, indent=3)
    yield ""
    alike = sum(row.slower <= accuracy.mean for row in rows)
    band = f"Error: {accuracy.text}."
    if alike > 1:
        band += f" The first {alike} layouts differ by less than the mean error."
    yield from _lines(band, width)


def explained(one: LayoutRow, other: LayoutRow, width: int) -> Iterator[RenderableType]:
    """Yield why one layout is faster than another, term by term."""
    names = str(one.number), str(other.number)
    faster = min((one, other), key=lambda row: row.step_seconds)
    slower = other if faster is one else one
    saved = slower.step_seconds - faster.step_seconds
    yield Text(
        f"Layout {faster.number} takes {seconds_text(saved)} less than {slower.number}: "
        f"{seconds_text(faster.step_seconds)}, not {seconds_text(slower.step_seconds)}",
        style="bold",
    )
    for row in (one, other):
        yield from _lines(f"{row.number}. {row.words}", width, indent=3)
    yield ""
    terms = terms_between(one.time, other.time)
    rows = [(term.name, *map(seconds_text, term.seconds), _signed(term.gain)) for term in terms]
    total = one.step_seconds, other.step_seconds
    rows.append(("the step", *map(seconds_text, total), _signed(total[1] - total[0])))
    yield PlainTable(Table.of_cells(("seconds of a mean GPU", *names, f"{names[0]} saves"), rows))


def _signed(seconds: float) -> str:
    shown = seconds_text(abs(seconds))
    return f"-{shown}" if seconds < 0 and shown != seconds_text(0.0) else shown


_CURVE = 40


def _gpus(speed: Speed) -> str:
    return f"{speed.gpus:>6,} {'GPU' if speed.gpus == 1 else 'GPUs':4}"


def curve_of(found: Sequence[Speed]) -> Iterator[RenderableType]:
    """Yield the speed on each number of GPUs as bars, and the smallest number worth taking."""
    fastest = min((each.best[0].seconds for each in found if each.best), default=0.0)
    for each in found:
        if each.best is None:
            yield f"{_gpus(each)}  none fits"
            continue
        step = each.best[0].seconds
        bar = "#" * round(_CURVE * fastest / step)
        speed = percent(fastest / step)
        yield f"{_gpus(each)} {seconds_text(step):>9} {speed:>5}  {bar}"
    if (least := smallest(found)) is not None and least.best is not None:
        loss = percent(1 - fastest / least.best[0].seconds)
        yield ""
        yield f"The fewest that lose less than 5% are {least.gpus:,}, which lose {loss}:"
        yield words_of(least.best[1].spec)


def curve_record(found: Sequence[Speed]) -> dict[str, Any]:
    """Return the speeds as JSON has them."""
    least = smallest(found)
    return {
        "version": 1,
        "fewest": None if least is None else least.gpus,
        "speeds": [
            {
                "gpus": each.gpus,
                "step_seconds": each.best[0].seconds if each.best else None,
                "settings": Point.of(each.best[1].spec).settings() if each.best else None,
            }
            for each in found
        ],
    }


def record_of(rows: Sequence[LayoutRow], accuracy: Accuracy, **more: Any) -> dict[str, Any]:
    """Return the answer as JSON has it."""
    return {
        "version": 1,
        **more,
        "error": {"mean": accuracy.mean, "worst": accuracy.worst, "steps": accuracy.steps},
        "layouts": [asdict(row) for row in rows],
    }


def terms_record(terms: Sequence[Term]) -> list[dict[str, Any]]:
    """Return the terms of two layouts as JSON has them."""
    return [{**asdict(term), "saves": term.gain} for term in terms]


def _lines(text: str, width: int, indent: int = 0) -> Iterator[str]:
    yield from wrap(
        text, width, subsequent_indent=" " * indent, break_on_hyphens=False, break_long_words=False
    )
