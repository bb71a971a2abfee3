"""The first screen of `plan`: whether a job fits, how fast it is, and what would make it faster.

Decides: the form of the screen: about 40 lines at most, readable at 60 columns.
Relies on: `drawing.rows` for the facts, `drawing.answer_text` for the words.
Leaves: all tables, which `--full` and `--rank` show, to `plan_tables`; the output stream and its
width to the command.
"""

from collections.abc import Iterator
from textwrap import wrap
from typing import TYPE_CHECKING

from mimo_launch.cli.shared.styled import Styled
from mimo_launch.diag.quantities import percent, seconds_text
from mimo_launch.drawing.answer_text import (
    FITS_TITLE,
    LOSSES_TITLE,
    PARTS,
    RANKS_TITLE,
    TIME_TITLE,
    LossText,
    basis_of,
    details_of,
    facts_of,
    fitting_of,
    holders_of,
    how_to_fit,
    how_to_use,
    losses_of,
    times_of,
    title_of,
)
from mimo_launch.drawing.rows import RankReport, Report

if TYPE_CHECKING:
    from rich.console import RenderableType

Line = str | Styled
_WIDEST = 80
_BAR = 50
# Characters of a bar.
_MARKS = {"computing": "#", "communicating": "+", "waiting": ".", "updating": "="}


def parts_of(
    report: Report | RankReport, width: int, *, full: bool, fits: bool
) -> "Iterator[RenderableType]":
    """Return the output about a job, with `full` as all tables if it fits, or about one rank."""
    if isinstance(report, Report) and not (full and fits):
        return first_screen(report, width) if fits else fitting_screen(report, width)
    from mimo_launch.cli.plan_tables import job_parts, rank_parts

    return job_parts(report, width) if isinstance(report, Report) else rank_parts(report, width)


def first_screen(report: Report, width: int) -> Iterator[Line]:
    """Yield the answer and the picture."""
    width = min(width, _WIDEST)
    yield from _facts(report, width)
    yield from _titled(TIME_TITLE)
    details = details_of(report.answer)
    for part, seconds in times_of(report.answer).items():
        share = seconds / report.answer.step_seconds
        bar = _MARKS[part] * round(share * min(_BAR, width - 32))
        yield f"{PARTS[part]:14}{seconds_text(seconds):>9} {percent(share):>5}  {bar}".rstrip()
        if part in details:
            yield from _lines(f"  {details[part]}", width, indent=2)
    if report.answer.losses:
        yield from _titled(LOSSES_TITLE)
        for loss in losses_of(report.answer):
            yield from _loss(loss, width)
        for sentence in how_to_use(report.answer):
            yield from _lines(sentence, width)
    yield from _titled(RANKS_TITLE)
    for holder in holders_of(report):
        yield from _lines(holder.text, width, indent=2)
        size, bar, total = min(width - 2, 72), "", 0.0
        for part, share in holder.shares.items():
            total += share
            bar += _MARKS[part] * max(0, round(total * size) - len(bar))
        yield f"  {bar}"
    yield ""
    yield from _lines(
        "--full: groups, stages, bridges, schedule, memory and work of all ranks. --rank N: of one",
        width,
    )


def fitting_screen(report: Report, width: int) -> Iterator[Line]:
    """Yield the answer for a spec that does not fit, and changes that make it fit, if sought."""
    width = min(width, _WIDEST)
    yield ""
    yield from _facts(report, width)
    yield from _titled(RANKS_TITLE)
    for holder in holders_of(report):
        yield from _lines(holder.text, width, indent=2)
    if (found := report.fitting) is None:
        return
    yield from _titled(FITS_TITLE)
    for change in fitting_of(report, found):
        yield from _loss(change, width)
    for sentence in how_to_fit(found):
        yield from _lines(sentence, width)


def _facts(report: Report, width: int) -> Iterator[Line]:
    """Yield the job, what the estimates are for, and whether it fits and how fast it is."""
    yield title_of(report)
    yield from _lines(basis_of(report), width)
    yield ""
    for name, text in facts_of(report).items():
        yield from _lines(f"{name:8}{text}", width, indent=8)


def _lines(text: str, width: int, indent: int = 0) -> Iterator[str]:
    yield from wrap(
        text, width, subsequent_indent=" " * indent, break_on_hyphens=False, break_long_words=False
    )


def _loss(loss: LossText, width: int) -> Iterator[Line]:
    for line in _lines(loss.head, width, indent=3):
        yield Styled(line, style="yellow")
    if loss.helps is not None:
        yield from _lines(f"   {loss.helps}", width, indent=3)
    for line in loss.settings:
        yield Styled(f"     {line}", style="green")


def _titled(title: str) -> Iterator[Line]:
    yield from ("", Styled(title, style="bold"))
