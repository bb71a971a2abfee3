"""A plan as a self-contained HTML page: the answer, the ranks on their hosts, tables, the step.

Decides: the order of the parts of the page; which rows of a long step are drawn, and how.
Relies on: the `Report` that `plan` prints, and the `Plan` that `train` executes.
Leaves: ranks to `rank_map`, the picture of the step to `svg`, the file to `cli`.
"""

from collections.abc import Iterable, Iterator, Sequence

from mimo_launch.diag.frozen import frozen
from mimo_launch.diag.quantities import bytes_text, percent, ranks_text, role_text, seconds_text
from mimo_launch.drawing.answer_text import (
    FITS_TITLE,
    LOSSES_TITLE,
    PARTS,
    RANKS_TITLE,
    TIME_TITLE,
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
from mimo_launch.drawing.html_page import (
    colors,
    html_key,
    html_page,
    html_prose,
    html_table,
    html_text,
)
from mimo_launch.drawing.plan_tables import (
    BRIDGES_TITLE,
    LOSS_TERMS_TITLE,
    bridge_table,
    group_table,
    loss_table,
    module_table,
    schedule_title,
)
from mimo_launch.drawing.rank_cells import rank_cells
from mimo_launch.drawing.rank_map import class_table, map_legend, map_style, rank_map
from mimo_launch.drawing.rows import Report, TimelineRow
from mimo_launch.drawing.spans import MOST_RANKS, Span, Timeline, Unit
from mimo_launch.drawing.svg import figure
from mimo_launch.drawing.svg_layout import Row
from mimo_launch.drawing.table import Table
from mimo_launch.drawing.timeline import timeline_rows
from mimo_launch.plan.plan import Plan
from mimo_launch.schedule.actions import parse_action
from mimo_launch.schedule.simulation_result import Simulation
from mimo_launch.spec.base import LANGUAGE

# A box takes about 200 bytes, or about 20 without number and words.
MAX_BOXES = 3000
_SHADES = {
    "computing": "#2166a5", "communicating": "#e07b1a", "waiting": "#8888", "updating": "#8a5cc4",
    "weights": "#2166a5", "gradients": "#74a9cf", "optimizer": "#8a5cc4",
    "activations": "#2b8a3e", "transfers": "#e07b1a", "other": "#868e96",
}  # fmt: skip
_STYLE = """\
h2 { font-size: 1rem; border-top: 1px solid #8886; padding-top: 1rem; margin-top: 1.5rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .3rem 1rem; margin: 0; }
dt { opacity: .7; }
dd { margin: 0; overflow-wrap: anywhere; }
pre { overflow-x: auto; border-left: 3px solid #2b8a3e; padding-left: .7rem; margin: .3rem 0; }
.bar { display: flex; height: .9rem; background: #8882; margin: .1rem 0 .6rem;
       position: relative; }
.bar i { display: block; }
.bar b { position: absolute; top: -.2rem; bottom: -.2rem; border-left: 3px solid #c92a2a; }
.loss { margin: .6rem 0; }
.loss p { margin: 0; }
.step .t { fill: CanvasText; }
.step .d { fill: CanvasText; opacity: .7; }
.step .ground { fill: #8883; }
.step .f { fill: #1f2328; }
.step .b { fill: #fff; }"""


def plan_page(plan: Plan, report: Report, simulation: Simulation | None = None) -> str:
    """Return the page of a plan and its `report`.

    `simulation` is the step in estimated seconds; without it the step is drawn in model units.
    """
    cells, names = rank_cells(plan, report), (row.name for row in report.modules)
    # In the order of `Timeline.modules`, so that all pictures have the same colours.
    modules = tuple(sorted(names, key=lambda name: (name != LANGUAGE, name)))
    number = "class of alike ranks, as in the table below" if cells.has_classes else "rank"
    parts = [
        *_answer(report),
        "<h2>Hosts and ranks</h2>",
        f"<p>A number is a {number}; small digits are stages. Point at one, or tap it, for its "
        "groups and traffic.</p>",
        map_legend(cells, modules),
        rank_map(cells),
        "<h2>Classes of alike ranks</h2>",
        class_table(cells),
        *_table("Modules", module_table(report.modules)),
    ]
    if report.groups:
        parts += _table("Groups", group_table(report.groups))
    if report.bridges:
        parts += _table(BRIDGES_TITLE, bridge_table(report.bridges))
    if report.losses:
        parts += _table(LOSS_TERMS_TITLE, loss_table(report.losses))
    if simulation is None:
        drawn = _Step(schedule_title(report.schedule), report.schedule.timeline, Unit.MODEL)
    else:
        bubble = percent(report.estimates.bubble)
        title = f"Schedule: {seconds_text(simulation.makespan)} (estimated), bubble {bubble}"
        drawn = _Step(title, timeline_rows(plan.layout, simulation), Unit.ESTIMATED)
    parts += drawn.parts(modules)
    style = f"{_STYLE}\n{map_style(cells, modules)}"
    return html_page(title_of(report), "\n".join(parts), style=style, width="72rem")


def _table(title: str, table: Table) -> tuple[str, str]:
    return f"<h2>{html_text(title)}</h2>", html_table(table)


def _answer(report: Report) -> Iterator[str]:
    """Yield the first screen of `plan`."""
    yield f"<p>{html_prose(basis_of(report))}</p>"
    facts = facts_of(report).items()
    yield f"<dl>{''.join(f'<dt>{k}</dt><dd>{html_prose(text)}</dd>' for k, text in facts)}</dl>"
    yield f"<h2>{TIME_TITLE}</h2>"
    times, step = times_of(report.answer), report.answer.step_seconds
    yield _bar({part: seconds / step for part, seconds in times.items()})
    yield _key(
        (_SHADES[part], f"{PARTS[part]} {seconds_text(seconds)}, {percent(seconds / step)}")
        for part, seconds in times.items()
    )
    for part, details in details_of(report.answer).items():
        yield f"<p>{PARTS[part]}: {html_prose(details)}</p>"
    yield from _changes(report)
    yield f"<h2>{RANKS_TITLE}</h2>"
    holders, limit = list(holders_of(report)), report.estimates.gpu_memory
    for holder in holders:
        yield f"<div>{html_text(holder.text)}</div>{_bar(holder.shares)}"
    # The width of a bar is the memory of a GPU, or more if a rank needs more.
    width = max(limit or 0, *(sum(holder.memory.values()) for holder in holders))
    of = f" ({bytes_text(limit)} a GPU)" if limit else ""
    yield f"<h2>Memory of the fullest ranks{of}</h2>"
    yield _key((_SHADES[part], part) for part in holders[0].memory)
    for holder in holders:
        parts = {part: size / width for part, size in holder.memory.items()}
        sizes = ", ".join(f"{part} {bytes_text(size)}" for part, size in holder.memory.items())
        end = limit / width if limit and limit < width else None
        yield f"<div>{html_text(f'{holder.text}: {sizes}')}</div>{_bar(parts, end)}"


def _changes(report: Report) -> Iterator[str]:
    """Yield the largest losses and what helps; for a job that does not fit, what fits."""
    title, losses, words = LOSSES_TITLE, losses_of(report.answer), how_to_use(report.answer)
    if report.fitting is not None:
        title, losses = FITS_TITLE, fitting_of(report, report.fitting)
        words = how_to_fit(report.fitting)
    if shown := list(losses):
        yield f"<h2>{title}</h2>"
    for loss in shown:
        helps = "" if loss.helps is None else f"<p>{html_prose(loss.helps)}</p>"
        settings = html_text("\n".join(loss.settings))
        lines = f"<pre>{settings}</pre>" if settings else ""
        yield f'<div class="loss"><p><b>{html_prose(loss.head)}</b></p>{helps}{lines}</div>'
    yield from (f"<p>{html_prose(each)}</p>" for each in words)


def _bar(shares: dict[str, float], limit: float | None = None) -> str:
    """Return a bar of parts, with a line at the `limit`."""
    pieces = [
        f'<i style="width:{100 * share:.2f}%;background:{_SHADES[part]}"></i>'
        for part, share in shares.items()
    ]
    if limit is not None:
        pieces.append(f'<b style="left:{100 * limit:.2f}%"></b>')
    return f'<div class="bar">{"".join(pieces)}</div>'


def _key(entries: Iterable[tuple[str, str]]) -> str:
    """Return a legend of colours."""
    return html_key((f"background:{shade}", word) for shade, word in entries)


@frozen
class _Step:
    """The picture of a step: its title, a row for each class of ranks, the unit of time."""

    title: str
    rows: Sequence[TimelineRow]
    unit: Unit

    def parts(self, modules: Sequence[str]) -> Iterator[str]:
        """Yield the whole step; long steps show one row per role, up to `MOST_RANKS` rows."""
        yield f"<h2>{html_text(self.title)}</h2>"
        kept = [row for row in self.rows if row.work]
        if len(kept) > MOST_RANKS or _num_boxes(kept) > MAX_BOXES:
            by_role = {row.role: row for row in reversed(kept)}
            kept = sorted(by_role.values(), key=lambda row: row.ranks[0])[:MOST_RANKS]
            if len(kept) < len(self.rows):
                yield f"<p>{len(kept)} of {len(self.rows)} rows, the first of each role.</p>"
        is_plain = _num_boxes(kept) > MAX_BOXES
        rows = []
        for row in kept:
            spans = tuple(
                Span(row.ranks[0], parse_action(work.action), work.start, work.stop)
                for work in row.work
            )
            label = f"{ranks_text(row.ranks)} {role_text(row.role)}"
            rows.append(Row(label, row.role, len(row.ranks), row.bubble, spans))
        all_spans = tuple(span for row in rows for span in row.spans)
        timeline = Timeline(self.unit, max(row.ranks[0] for row in kept) + 1, all_spans)
        entries = [
            (shade, f"{module} {word}")
            for number, module in enumerate(modules)
            for shade, word in zip(colors(number), ("forward", "backward"), strict=True)
        ]
        yield _key([*entries, ("#8883", "idle")])
        picture = figure(timeline, tuple(rows), modules, plain=is_plain)
        yield f'<div class="wide step">\n{picture}\n</div>'


def _num_boxes(rows: Sequence[TimelineRow]) -> int:
    return sum(len(row.work) for row in rows)
