"""A table as a value, which screens, pages and JSON show in their own ways.

Decides: how a value becomes a cell: as its column writes it, with its unit.
Leaves: the form to `cli.shared.plain_table` and `html_page`; JSON gets the values themselves.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Column:
    """A column by its name on screens and pages, and by its `key` in JSON.

    One of both is "" for a column that is not shown there. `text` writes a value with its unit.
    """

    name: str
    text: Callable[[Any], str] = str
    key: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of values, one for each column; missing ones at the end are None.

    `marked` are the numbers of rows that a reader should not overlook; `none` is the cell of None.
    """

    columns: tuple[Column, ...]
    rows: tuple[tuple[Any, ...], ...]
    marked: frozenset[int] = frozenset()
    none: str = ""

    @classmethod
    def of(
        cls,
        columns: Iterable[str | Column],
        rows: Iterable[Sequence[Any]],
        *,
        marked: Iterable[int] = (),
        none: str = "",
    ) -> "Table":
        """Return a table; the values of a column that is only a name are written as they are."""
        named = tuple(each if isinstance(each, Column) else Column(each) for each in columns)
        return cls(named, tuple(map(tuple, rows)), frozenset(marked), none)

    def names(self) -> tuple[str, ...]:
        """Return the names of the columns that screens show."""
        return tuple(column.name for column in self.columns if _is_shown(column))

    def cells(self) -> Iterator[tuple[str, ...]]:
        """Yield the words of each row, one for each name."""
        for row in self.rows:
            values = (*row, *[None] * (len(self.columns) - len(row)))
            yield tuple(
                self.none if value is None else column.text(value)
                for column, value in zip(self.columns, values, strict=True)
                if _is_shown(column)
            )

    def records(self) -> list[dict[str, Any]]:
        """Return a record for each row, for JSON."""
        keys = [column.key for column in self.columns]
        return [
            {key: value for key, value in zip(keys, row, strict=True) if key} for row in self.rows
        ]


def _is_shown(column: Column) -> bool:
    return bool(column.name or not column.key)
