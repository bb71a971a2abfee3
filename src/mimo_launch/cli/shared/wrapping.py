"""Long lines of an answer, wrapped between words where there is a screen.

Decides: that files and pipes get lines as they are, and that indented lines, which are code, stay.
Relies on: COLUMNS and the terminal; `diag.text` wraps findings.
Leaves: tables to Rich.
"""

import os
import shutil
import textwrap
from typing import TextIO


def screen_width() -> int | None:
    """Return the columns of the screen; None if there is none, nor COLUMNS."""
    return shutil.get_terminal_size((0, 0)).columns or None


def terminal_width(stream: TextIO) -> int | None:
    """Return the columns of the terminal that a stream writes to; None if it writes to none."""
    if not stream.isatty():
        return None
    try:
        shown = os.get_terminal_size(stream.fileno()).columns
    except OSError:
        shown = 0
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isdecimal() and int(columns) else shown or None


def wrapped(line: str, indent: int = 0) -> str:
    """Return a line wrapped to the screen; further lines start with `indent` blanks."""
    width = screen_width()
    if width is None or len(line) <= width:
        return line
    return textwrap.fill(
        line,
        max(width, indent + 20),
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def reflowed(page: str) -> str:
    """Return a page of Markdown whose paragraphs fill the screen, if that is too narrow for it."""
    width = screen_width()
    if width is None or max(map(len, page.splitlines()), default=0) <= width:
        return page
    return "\n\n".join(
        # Code is indented, and stays as it is.
        each if each.startswith(" ") else wrapped(" ".join(each.splitlines()))
        for each in page.split("\n\n")
    )
