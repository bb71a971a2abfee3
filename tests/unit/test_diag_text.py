"""How findings are drawn and turned into rows."""

from mimo_launch.diag.diagnostic import (
    Diagnostic,
    Mark,
    Related,
    Severity,
    SourcePlace,
    SourceSpan,
    SpecSource,
    to_json,
)
from mimo_launch.diag.text import count, filled, has_errors, location, render

TEXT = "modules:\n  a: {x: 1, y: 22}\n  \tz: 日本 5\n" + "\n" * 96 + "last: 7\n"
SOURCE = SpecSource(
    name="f.yaml",
    text=TEXT,
    marks={
        (): Mark(None, SourceSpan(1, 1, 1)),
        ("modules",): Mark(SourceSpan(1, 1, 7), SourceSpan(2, 3, 1)),
        ("modules", "a"): Mark(SourceSpan(2, 3, 1), SourceSpan(2, 6, 15)),
        ("modules", "a", "x"): Mark(SourceSpan(2, 7, 1), SourceSpan(2, 10, 1)),
        ("modules", "a", "y"): Mark(SourceSpan(2, 13, 1), SourceSpan(2, 16, 2)),
        ("z",): Mark(SourceSpan(3, 4, 1), SourceSpan(3, 10, 1)),
        ("last",): Mark(SourceSpan(100, 1, 4), SourceSpan(100, 7, 1)),
    },
    overrides={("train", "steps"): "train.steps=0"},
)


def diagnostic(*path: str | int, **rest: object) -> Diagnostic:
    return Diagnostic(code="some-code", headline="wrong", path=path, **rest)  # type: ignore[arg-type]


def test_full_form() -> None:
    item = diagnostic(
        "modules",
        "a",
        "y",
        why="because",
        help="write `y: 1`\nor nothing",
        related=(
            Related(path=("last",), label="and this"),
            Related(path=("modules", "a", "x"), label="with this"),
            Related(path=("train", "steps"), label="and that"),
        ),
    )
    assert render([item], SOURCE).splitlines() == [
        "error[some-code]: wrong",
        "  --> f.yaml:2:16",
        "    |",
        "  2 |   a: {x: 1, y: 22}",
        "    |          - with this",
        "    |                ^^",
        "100 | last: 7",
        "    |       - and this",
        "    |",
        "   = with: --set train.steps=0: and that",
        "   = why:  because",
        "   = help: write `y: 1`",
        "           or nothing",
        "   = more: mimo-launch explain some-code",
        "",
        "1 error in f.yaml",
    ]


def test_carets_stand_below_wide_characters_and_tabs() -> None:
    lines = render([diagnostic("z")], SOURCE).splitlines()
    text = next(line for line in lines if line.startswith(" 3 |"))
    caret = next(line for line in lines if line.endswith("^"))
    # Two characters of two columns each stand before the value.
    assert len(caret) - 1 == text.index("5") + 2
    assert "\t" not in text


def test_places_fall_back_to_the_nearest_parent() -> None:
    def at(*path: str | int, at_key: bool = False) -> str:
        return location(SOURCE.place(path, at_key=at_key), SOURCE)

    assert at("modules", "a", "x") == "f.yaml:2:10"
    assert at("modules", "a", "x", at_key=True) == "f.yaml:2:7"
    assert at("modules", "a", "nope", "deeper") == "f.yaml:2:3"
    assert at("modules", "nope") == "f.yaml:1:1"
    assert at("nope") == "f.yaml:1:1"
    assert at("train", "steps", "x") == "--set train.steps=0"
    assert location(SourcePlace(), SOURCE) == "f.yaml"


def test_given_line_and_column_win() -> None:
    item = diagnostic(line=2, column=5)
    assert SOURCE.place_of(item) == SourcePlace(span=SourceSpan(2, 5))


def test_a_line_beyond_the_file_is_not_drawn() -> None:
    """PyYAML reports a missing bracket after the last line."""
    lines = render([diagnostic(line=101, column=1)], SOURCE).splitlines()
    assert lines[:3] == [
        "error[some-code]: wrong",
        "  --> f.yaml:101:1",
        "   = more: mimo-launch explain some-code",
    ]


def test_sorted_by_place_and_each_once() -> None:
    items = [diagnostic("last"), diagnostic("modules", "a", "x"), diagnostic("last")]
    items.append(diagnostic("train", "steps"))
    rows = to_json(items, SOURCE)
    assert [(row["line"], row["set"]) for row in rows] == [
        (None, "train.steps=0"),
        (2, None),
        (100, None),
    ]


def test_rows_hold_everything() -> None:
    (row,) = to_json([diagnostic("modules", "a", "y", why="w", help="h")], SOURCE)
    assert row == {
        "code": "some-code",
        "severity": "error",
        "headline": "wrong",
        "file": "f.yaml",
        "line": 2,
        "column": 16,
        "length": 2,
        "set": None,
        "path": ["modules", "a", "y"],
        "why": "w",
        "help": "h",
        "related": [],
    }


def test_counts() -> None:
    error, warning = diagnostic("a"), diagnostic("b", severity=Severity.WARNING)
    assert count([]) == "no findings"
    assert count([error]) == "1 error"
    assert count([warning, warning]) == "2 warnings"
    assert count([error, error, warning]) == "2 errors, 1 warning"
    assert has_errors([warning, error])
    assert not has_errors([warning])
    assert render([], SOURCE) == ""


def test_color_only_wraps() -> None:
    import re

    plain, colored = (render([diagnostic("last")], SOURCE, color=on) for on in (False, True))
    assert plain != colored
    assert re.sub(r"\x1b\[[0-9;]*m", "", colored) == plain


def test_words_wrap_to_a_width_below_the_text_and_code_stays_whole() -> None:
    item = diagnostic(
        "last",
        why="a sentence that is longer than the screen has columns",
        help="write `a: {b: 1, c: 2, d: 3}` in `model`, or `e: 1`\n    code: {stays, as it is}",
    )
    shown = render([item], SOURCE, width=40).splitlines()
    assert shown[shown.index("    |") + 4 :] == [
        "   = why:  a sentence that is longer",
        "           than the screen has columns",
        "   = help: write `a: {b: 1, c: 2, d: 3}`",
        "           in `model`, or `e: 1`",
        "               code: {stays, as it is}",
        "   = more: mimo-launch explain some-code",
        "",
        "1 error in f.yaml",
    ]
    head = render([Diagnostic(code="a-code", headline="wide 日本 words in it")], SOURCE, width=28)
    assert head.splitlines()[:2] == ["error[a-code]: wide 日本", "           words in it"]
    assert max(map(len, render([item], SOURCE).splitlines())) > 60


def test_nothing_to_paste_is_broken() -> None:
    for kept in ("`x: [1, 2, 3]`", "pip install 'a>=1' 'b[c]'", "--set log.file=none"):
        for width in range(1, 60):
            lines = filled(f"some words, {kept}, and some more", width, 11, 11).splitlines()
            assert any(kept in line for line in lines), (kept, width)
