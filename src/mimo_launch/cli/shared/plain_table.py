"""A table without borders that breaks no word.

Decides: the widths of columns where cells must wrap; that a table too wide for the screen continues
below, with its first column again.
Relies on: Rich, for wrapping and colour.
Leaves: the words and the width to the callers.
"""

from collections.abc import Iterator, Sequence
from itertools import chain

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table as Grid

from mimo_launch.drawing.table import Table

_GAP = 2
_SHORT = 8


class PlainTable:
    """A table as text: words under the names of their columns, marked rows in yellow."""

    def __init__(self, table: Table) -> None:
        self._columns, self._rows, self._marked = table.names(), [*table.cells()], table.marked

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> RenderResult:
        """Yield one table, or several below each other if the screen is narrow."""
        room, words = options.max_width, []
        for cells in self._cells():
            # A short cell, such as `1.71 GB`, is one word.
            split = ([cell] if len(cell) <= _SHORT else cell.split() for cell in cells)
            longest = max(map(cell_len, chain.from_iterable(split)), default=1)
            words.append(min(longest, room // 3))
        parts = _parts(range(len(words)), words, room)
        if len(parts) > 1:
            filled = [number for number, cells in enumerate(self._cells()) if any(cells[1:])]
            parts = _parts(filled, words, room)
        for number, columns in enumerate(parts):
            if number:
                yield ""
            yield self._part(columns, words, room)

    def _cells(self) -> Iterator[tuple[str, ...]]:
        """Yield each column from top to bottom, its name first."""
        yield from zip(self._columns, *self._rows, strict=True)

    def _part(self, columns: Sequence[int], words: Sequence[int], room: int) -> Grid:
        """Return a table of some columns; the widest wrap first, but words never break."""
        lengths = [max(map(cell_len, cells)) for cells in self._cells()]
        widths = {column: lengths[column] for column in columns}
        while sum(widths.values()) + _GAP * (len(widths) - 1) > room:
            wide = [column for column, width in widths.items() if width > words[column]]
            if not wide:
                break
            widths[max(wide, key=widths.__getitem__)] -= 1
        table = Grid(box=None, pad_edge=False, header_style="dim")
        for column, width in widths.items():
            table.add_column(self._columns[column], overflow="fold", width=width)
        for number, row in enumerate(self._rows):
            style = "yellow" if number in self._marked else None
            table.add_row(*(row[column] for column in columns), style=style)
        return table


def _parts(columns: Sequence[int], words: Sequence[int], room: int) -> list[list[int]]:
    """Return the columns of each partial table, which begins with the first column."""
    lead, *others = columns
    parts = [[lead]]
    for column in others:
        wanted = [*parts[-1], column]
        if len(parts[-1]) > 1 and sum(words[c] + _GAP for c in wanted) - _GAP > room:
            parts.append([lead, column])
        else:
            parts[-1] = wanted
    return parts
