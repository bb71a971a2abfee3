"""Tables of `plan` on screens of every width: no word is broken, no cell is lost."""

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from mimo_launch.cli.app import run
from mimo_launch.cli.shared.plain_table import PlainTable
from mimo_launch.drawing.table import Table

ROOT = Path(__file__).parents[2]


def printed(table: PlainTable, width: int) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(table)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def made() -> PlainTable:
    columns = ("ranks", "holds", "memory", "optimizer", "settings")
    rows = (
        ("0-1", "vision.0, language.0", "1.71 GB", "392 kB", None),
        ("2", "language.1", "12 GB", "1 kB", None),
    )
    return PlainTable(Table.of_cells(columns, rows))


def test_a_wide_screen_shows_one_line_per_row() -> None:
    assert printed(made(), 60) == (
        "ranks  holds                 memory   optimizer  settings\n"
        "0-1    vision.0, language.0  1.71 GB  392 kB\n"
        "2      language.1            12 GB    1 kB"
    )


def test_long_cells_wrap_between_words_first() -> None:
    assert printed(made(), 48) == (
        "ranks  holds        memory   optimizer  settings\n"
        "0-1    vision.0,    1.71 GB  392 kB\n"
        "       language.0\n"
        "2      language.1   12 GB    1 kB"
    )


def test_a_narrow_screen_goes_on_below_without_what_is_empty() -> None:
    assert printed(made(), 32) == (
        "ranks  holds             memory\n"
        "0-1    vision.0,         1.71 GB\n"
        "       language.0\n"
        "2      language.1        12 GB\n"
        "\n"
        "ranks  optimizer\n"
        "0-1    392 kB\n"
        "2      1 kB"
    )


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize(
    "command",
    ["mixed_placement.yaml --full", "mixed_placement.yaml --rank 3", "draw.yaml --full"],
)
def test_plan_breaks_no_word(
    command: str, width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each word on a narrow screen is one on a screen where nothing wraps."""
    found = []
    for columns in (1000, width):
        monkeypatch.setenv("COLUMNS", str(columns))
        assert run(["plan", *f"{ROOT}/topologies/{command}".split()]) == 0
        found.append(capsys.readouterr().out)
    assert max(map(len, found[1].splitlines())) <= width
    words, known = (set(re.findall(r"\S+", text)) for text in reversed(found))
    # The columns of a timeline are numbered anew on each line.
    assert {word for word in words - known if not word.isdecimal()} == set()
