"""Parts of a screen as text: lines, lines in a style, and what Rich draws.

Decides: that a line which fits needs no Rich, whose import is a thirtieth of the time of `plan`.
Relies on: Rich for tables, and for lines that must wrap.
Leaves: the words and the width to the callers.
"""

from collections.abc import Iterable
from io import StringIO
from typing import TYPE_CHECKING

from mimo_launch.diag.frozen import frozen

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

# Of the styles in use, as terminals take them.
_CODES = {"bold": 1, "green": 32, "yellow": 33}


@frozen
class Styled:
    """A line in a style."""

    text: str
    style: str = ""

    def __rich__(self) -> "Text":
        """Return the line for Rich."""
        from rich.text import Text

        return Text(self.text, style=self.style)


def printed(parts: "Iterable[RenderableType]", width: int, *, colors: bool = False) -> str:
    """Return parts as text of a width, each below the previous one."""
    buffer, rich = StringIO(), None
    for part in parts:
        line = Styled(part) if isinstance(part, str) else part
        if isinstance(line, Styled) and _fits(line.text, width):
            buffer.write(_painted(line) if colors and line.text else line.text)
            buffer.write("\n")
        else:
            rich = rich or _rich_on(buffer, width, colors=colors)
            rich.print(part)
    # Tables pad their last column with blanks.
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines())


def _fits(text: str, width: int) -> bool:
    return len(text) <= width and text.isascii() and text.isprintable()


def _painted(line: Styled) -> str:
    return f"\x1b[{_CODES[line.style]}m{line.text}\x1b[0m" if line.style else line.text


def _rich_on(buffer: StringIO, width: int, *, colors: bool) -> "Console":
    from rich.console import Console

    return Console(
        file=buffer,
        width=width,
        force_terminal=colors,
        no_color=not colors,
        color_system="standard" if colors else None,
        markup=False,
        highlight=False,
        emoji=False,
    )
