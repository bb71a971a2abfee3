"""The first screen of `plan`: the answer, then the ranks by what they hold.

Decides: the form on a terminal: at most some 40 lines, readable at 60 columns.
Relies on: `drawing.answer_text` for the words.
Leaves: tables of everything to `tables`.
"""

from collections.abc import Iterator
from textwrap import wrap

from rich.console import RenderableType
from rich.text import Text

from mimo_launch.diag.quantities import percent, seconds_text
from mimo_launch.drawing.answer_text import (
    FITS_TITLE,
    KEYS_STAY,
    LOSSES_TITLE,
    PARTS,
    RANKS_TITLE,
    TIME_TITLE,
    HolderText,
    LossText,
    basis_of,
    details_of,
    facts_of,
    fitting_of,
    holders_of,
    how_to_use,
    losses_of,
    times_of,
    title_of,
)
from mimo_launch.drawing.rows import Report
from mimo_launch.search.fitting import WhatFits

_WIDEST = 80
_BAR = 50
# Characters of a bar.
_MARKS = {"computing": "#", "communicating": "+", "waiting": ".", "updating": "="}


def first_screen(report: Report, width: int) -> Iterator[RenderableType]:
    """Yield the answer and the picture."""
    width = min(width, _WIDEST)
    yield from _facts(report, width)
    yield from _title(TIME_TITLE)
    details = details_of(report.answer)
    for part, seconds in times_of(report.answer).items():
        share = seconds / report.answer.step_seconds
        bar = _MARKS[part] * round(share * min(_BAR, width - 32))
        yield f"{PARTS[part]:14}{seconds_text(seconds):>9} {percent(share):>5}  {bar}".rstrip()
        if part in details:
            yield from _lines(f"  {details[part]}", width, indent=2)
    if report.answer.losses:
        yield from _title(LOSSES_TITLE)
        for loss in losses_of(report.answer):
            yield from _loss(loss, width)
        if sentence := how_to_use(report.answer):
            yield from _lines(sentence, width)
    yield from _title(RANKS_TITLE)
    for holder in holders_of(report):
        yield from _holder(holder, width)
    yield ""
    yield from _lines(
        "--full: groups, stages, bridges, schedule, memory and work of all ranks. --rank N: of one",
        width,
    )


def fitting_screen(report: Report, found: WhatFits, width: int) -> Iterator[RenderableType]:
    """Yield the answer for a spec that does not fit, and changes by which it does."""
    width = min(width, _WIDEST)
    yield ""
    yield from _facts(report, width)
    yield from _title(RANKS_TITLE)
    for holder in holders_of(report):
        yield from _lines(holder.text, width, indent=2)
    yield from _title(FITS_TITLE)
    for change in fitting_of(report, found):
        yield from _loss(change, width)
    if found.changes:
        yield from _lines(KEYS_STAY, width)


def _facts(report: Report, width: int) -> Iterator[RenderableType]:
    """Yield the job, what the estimates are for, and whether it fits and how fast it is."""
    yield title_of(report)
    yield from _lines(basis_of(report), width)
    yield ""
    for name, text in facts_of(report).items():
        yield from _lines(f"{name:8}{text}", width, indent=8)


def _title(text: str) -> Iterator[RenderableType]:
    yield ""
    yield Text(text, style="bold")


def _lines(text: str, width: int, indent: int = 0) -> Iterator[str]:
    yield from wrap(
        text, width, subsequent_indent=" " * indent, break_on_hyphens=False, break_long_words=False
    )


def _loss(loss: LossText, width: int) -> Iterator[RenderableType]:
    for line in _lines(loss.head, width, indent=3):
        yield Text(line, style="yellow")
    if loss.helps is not None:
        yield from _lines(f"   {loss.helps}", width, indent=3)
    for line in loss.settings:
        yield Text(f"     {line}", style="green")


def _holder(holder: HolderText, width: int) -> Iterator[str]:
    yield from _lines(holder.text, width, indent=2)
    size, bar, total = min(width - 2, 72), "", 0.0
    for part, share in holder.shares.items():
        total += share
        bar += _MARKS[part] * max(0, round(total * size) - len(bar))
    yield f"  {bar}"
