"""The frame of a self-contained HTML page.

Decides: that a page loads nothing, runs nothing and follows the reader's light or dark colours; how
tables look (on narrow screens they scroll).
Relies on: `table` for the words of a table.
Leaves: escaping the body to the callers, except for tables.
"""

import re
from html import escape

from mimo_launch.drawing.table import Table

# XML 1.0 cannot represent these characters, and files in UTF-8 cannot hold all of them.
FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

_FRAME = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ background: Canvas; color: CanvasText; font: 14px/1.5 system-ui, sans-serif;
        max-width: {width}; margin: 1.5rem auto; padding: 0 1rem; }}
h1 {{ font-size: 1.2rem; overflow-wrap: anywhere; }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; }}
th, td {{ padding: .3rem .7rem; border-bottom: 1px solid #8886; text-align: left;
         white-space: pre; }}
.marked {{ font-weight: bold; }}
{style}
</style>
</head>
<body>
<h1>{title}</h1>
{body}
</body>
</html>
"""


def html_page(title: str, body: str, *, style: str, width: str) -> str:
    """Return a page; `body` is HTML, `style` additional CSS, `width` a CSS length."""
    return _FRAME.format(title=html_text(title), body=body, style=style, width=width)


def html_text(words: str) -> str:
    """Return text escaped for a page, also inside quotes; forbidden characters are replaced."""
    return escape(FORBIDDEN.sub("\ufffd", words))


def px(number: float) -> str:
    """Return a length for an attribute of SVG: `12.5`."""
    return f"{number:.2f}".rstrip("0").rstrip(".")


def html_prose(words: str) -> str:
    """Return a sentence escaped for a page; text in backticks becomes code."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", html_text(words))


def html_table(table: Table) -> str:
    """Return a table of plain text, which this function escapes; marked rows are bold."""
    head = "".join(f"<th>{html_text(name)}</th>" for name in table.names())
    lines = "\n".join(
        f"<tr{' class=marked' * (number in table.marked)}>"
        + "".join(f"<td>{html_text(cell)}</td>" for cell in row)
        + "</tr>"
        for number, row in enumerate(table.cells())
    )
    return (
        f'<div class="wide">\n<table>\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{lines}\n</tbody>\n</table>\n</div>"
    )
