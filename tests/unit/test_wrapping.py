"""Long lines on screens: wrapped between words, code untouched, files and pipes as they are."""

import re

import pytest

from mimo_launch.cli.app import run
from mimo_launch.cli.shared.console import reflowed, wrapped

PAGE = (
    "# a-code\n\nSome words that are\nlonger than the screen.\n\n"
    "    code: {that: stays, as: it is}\n"
)


def test_lines_wrap_where_there_is_a_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    line = "name  a sentence of several words with a-hyphen"
    monkeypatch.delenv("COLUMNS", raising=False)
    assert wrapped(line, 6) == line
    monkeypatch.setenv("COLUMNS", "30")
    assert wrapped(line, 6) == "name  a sentence of several\n      words with a-hyphen"


def test_paragraphs_fill_the_screen_and_code_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert reflowed(PAGE) == PAGE
    monkeypatch.setenv("COLUMNS", "24")
    assert reflowed(PAGE).splitlines() == [
        "# a-code",
        "",
        "Some words that are",
        "longer than the screen.",
        "",
        "    code: {that: stays, as: it is}",
    ]


@pytest.mark.parametrize("command", ["explain", "explain videos-not-read", "inspect --families"])
def test_commands_fit_a_screen_and_break_no_word(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = []
    for columns in ("1000", "60"):
        monkeypatch.setenv("COLUMNS", columns)
        assert run(command.split()) == 0
        found.append(capsys.readouterr().out)
    assert re.findall(r"\S+", found[0]) == re.findall(r"\S+", found[1])
    assert max(map(len, found[1].splitlines())) <= 60
