"""A table as a value: the same rows on screens and on pages."""

from types import SimpleNamespace

import pytest
from rich.text import Text

from mimo_launch.cli.shared.plain_table import PlainTable
from mimo_launch.cli.shared.styled import Styled, printed
from mimo_launch.drawing.html_page import html_table
from mimo_launch.drawing.table import Column, Table

COLUMNS = (
    Column("rank"),
    Column("memory", "uses.gb", "{} GB".format),
    Column("twice", lambda row: 2 * row["rank"]),
    Column("", "why"),
)
ROWS = (
    {"rank": 0, "uses": {"gb": 8}, "why": "<b>"},
    {"rank": 1, "uses": {"gb": None}, "why": "full"},
)
TABLE = Table(COLUMNS, ROWS, frozenset([1]), none="-")


def test_a_column_finds_its_value_by_name_path_or_function() -> None:
    assert TABLE.names() == ("rank", "memory", "twice", "")
    assert list(TABLE.cells()) == [("0", "8 GB", "0", "<b>"), ("1", "-", "2", "full")]


def test_rows_may_be_objects_or_cells() -> None:
    row = SimpleNamespace(rank=3, uses={"gb": 1}, why="")
    assert list(Table(COLUMNS[:2], [row]).cells()) == [("3", "1 GB")]
    assert list(Table.of_cells(("a", "b"), [(1, None)]).cells()) == [("1", "")]


def test_a_marked_row_is_marked_on_screens_and_pages() -> None:
    lines = printed([PlainTable(TABLE)], 60, colors=True).splitlines()
    assert ["\x1b[33m" in line for line in lines] == [False, False, True]
    page = html_table(TABLE)
    assert page.count("class=marked") == 1
    assert "<tr class=marked><td>1</td><td>-</td>" in page
    assert "&lt;b&gt;" in page


@pytest.mark.parametrize("colors", [False, True])
@pytest.mark.parametrize("style", ["", "bold", "green", "yellow"])
@pytest.mark.parametrize("text", ["", "  a: [b]  ", "a word " * 4, "5 µs", "a\tb"])
def test_a_line_is_printed_as_rich_prints_it(text: str, style: str, colors: bool) -> None:
    found = printed([Styled(text, style), "end"], 20, colors=colors)
    assert found == printed([Text(text, style=style), Text("end")], 20, colors=colors)
