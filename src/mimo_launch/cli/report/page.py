"""The page of a report: a drawing and a table in one HTML file.

Decides: that whatever comes from a file or a path is escaped.
Relies on: `figure` for the drawing, `table` for the rows, `cli.shared.html_page`.
Leaves: writing it to `report`.
"""

from collections.abc import Sequence
from html import escape

from mimo_launch.cli.report.table import COLUMNS
from mimo_launch.cli.shared.html_page import html_page

_STYLE = """\
svg { width: 100%; height: auto; }
div { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .7rem; border-bottom: 1px solid #8886; text-align: right;
         white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }"""
_BODY = """\
<figure role="img" aria-label="{label}" style="margin: 0">
{drawing}
</figure>
<div>
<table>
<thead><tr>{head}</tr></thead>
<tbody>
{rows}
</tbody>
</table>
</div>"""


def page(names: Sequence[str], rows: Sequence[Sequence[str]], drawing: str) -> str:
    """Return the page of some runs; `drawing` is an SVG element."""
    title = "Runs: " + ", ".join(names) if len(names) > 1 else f"Run {names[0]}"
    body = _BODY.format(
        label=escape(f"Loss, gradient norm, learning rate and tokens per second: {title}"),
        drawing=drawing,
        head="".join(f"<th>{escape(column)}</th>" for column in COLUMNS),
        rows="\n".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
        ),
    )
    return html_page(title, body, style=_STYLE, width="72rem")
