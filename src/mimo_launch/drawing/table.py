"""A table as a value, which screens and pages show: rows of a report or a record, as JSON has them.

Decides: how a column finds its value in a row, and how the value becomes a cell, with its unit.
Leaves: the form to `cli.shared.plain_table` and `html_page`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

from mimo_launch.diag.frozen import frozen


@frozen
class Column:
    """A column by its name; `value` is where a row has its value, or computes it.

    It is the name of a field or key, as in JSON, or a path such as `speed.mfu`; by default it is
    `name`. `text` writes the value with its unit.
    """

    name: str
    value: str | Callable[[Any], Any] = ""
    text: Callable[[Any], str] = str

    def value_in(self, row: Any) -> Any:
        """Return the value of a row."""
        source = self.value or self.name
        if callable(source):
            return source(row)
        for key in source.split("."):
            row = row[key] if isinstance(row, Mapping) else getattr(row, key)
        return row


@frozen
class Table:
    """Rows under columns; `none` is the cell of None.

    `marked` are the numbers of rows that a reader should not overlook.
    """

    columns: tuple[Column, ...]
    rows: Sequence[Any]
    marked: frozenset[int] = frozenset()
    none: str = ""

    @classmethod
    def of_cells(cls, names: Sequence[str], rows: Iterable[Sequence[Any]]) -> "Table":
        """Return a table of rows with a value for each name."""
        columns = (Column(name, itemgetter(number)) for number, name in enumerate(names))
        return cls(tuple(columns), tuple(rows))

    def names(self) -> tuple[str, ...]:
        """Return the names of the columns."""
        return tuple(column.name for column in self.columns)

    def cells(self) -> Iterator[tuple[str, ...]]:
        """Yield the words of each row."""
        for row in self.rows:
            values = ((column, column.value_in(row)) for column in self.columns)
            yield tuple(
                self.none if value is None else column.text(value) for column, value in values
            )
