"""The frame of a self-contained HTML page.

Decides: that a page loads nothing, runs nothing and follows the reader's light or dark colours.
Relies on: nothing.
Leaves: escaping the body to the callers.
"""

from html import escape

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
h1 {{ font-size: 1.2rem; }}
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
    return _FRAME.format(title=escape(title), body=body, style=style, width=width)
