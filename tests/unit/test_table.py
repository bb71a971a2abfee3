"""A table as a value: the same rows on screens, on pages and in JSON."""

from mimo_launch.cli.shared.plain_table import PlainTable, printed
from mimo_launch.drawing.html_page import html_table
from mimo_launch.drawing.table import Column, Table

TABLE = Table.of(
    (Column("rank", key="rank"), Column("memory", "{} GB".format, "gb"), Column("", key="why"), ""),
    [(0, 8, "fits", "<b>"), (1, 90, None, None), (2, None)],
    marked=[1],
    none="-",
)


def test_cells_have_units_and_columns_of_json_alone_have_none() -> None:
    assert TABLE.names() == ("rank", "memory", "")
    assert list(TABLE.cells()) == [("0", "8 GB", "<b>"), ("1", "90 GB", "-"), ("2", "-", "-")]


def test_json_has_the_values_themselves_by_their_keys() -> None:
    short = Table(TABLE.columns, TABLE.rows[:2])
    assert short.records() == [
        {"rank": 0, "gb": 8, "why": "fits"},
        {"rank": 1, "gb": 90, "why": None},
    ]


def test_a_marked_row_is_marked_on_screens_and_pages() -> None:
    lines = printed([PlainTable(TABLE)], 60, colors=True).splitlines()
    assert ["\x1b[33m" in line for line in lines] == [False, False, True, False]
    page = html_table(TABLE)
    assert page.count("class=marked") == 1
    assert "<tr class=marked><td>1</td><td>90 GB</td>" in page
    assert "&lt;b&gt;" in page
