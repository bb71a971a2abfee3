"""The look of pages and pictures: the frame of a page, tables, legends, the colours of modules.

Decides: a page loads nothing, runs nothing and follows the reader's light or dark colours; tables
scroll on narrow screens. A module has a pair of colours: forward and backward differ in lightness,
not in hue, and the first pairs are distinct for people with any common colour blindness (a test
simulates their vision).
Relies on: `table` for the words of a table.
Leaves: escaping the body to the callers, except for tables and legends.
"""

import re
from collections.abc import Iterable
from colorsys import hls_to_rgb
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


def html_key(entries: Iterable[tuple[str, str]]) -> str:
    """Return a legend: the style of each swatch with its words."""
    words = (f'<span><i style="{look}"></i>{html_text(word)}</span>' for look, word in entries)
    return f'<p class="key">{"".join(words)}</p>'


# Blue, orange, green, violet, yellow, rose. The first five are distinct in simulated vision.
_PAIRS = (
    ("#9ecae9", "#2166a5"),
    ("#f7c267", "#b35a00"),
    ("#7fd0ad", "#00694e"),
    ("#bba3f3", "#442883"),
    ("#f0f0a0", "#4d4a00"),
    ("#f2a0a0", "#8a0f3c"),
)
# The golden angle: each hue after the end of the palette is far from the hues just before it.
_TURN = 0.381966


def colors(number: int) -> tuple[str, str]:
    """Return the colours of module `number` as `#rrggbb`: forward, backward."""
    if number < len(_PAIRS):
        return _PAIRS[number]
    hue = (number * _TURN) % 1.0
    return _hex(hue, 0.78, 0.45), _hex(hue, 0.30, 0.45)


def _hex(hue: float, lightness: float, saturation: float) -> str:
    return "#" + "".join(f"{round(255 * c):02x}" for c in hls_to_rgb(hue, lightness, saturation))
