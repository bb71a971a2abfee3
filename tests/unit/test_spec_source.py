"""The loader: YAML 1.2 scalars, places of everything, faults as diagnostics."""

import math
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from mimo_launch.diag.diagnostic import Mark, SourceSpan
from mimo_launch.spec.yaml_source import Document, parse_value, read_file, read_text


def codes(document: Document) -> list[str]:
    return [item.code for item in document.diagnostics]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3e-4", 3e-4),
        ("1e-3", 1e-3),
        (".5", 0.5),
        ("5.", 5.0),
        ("-1.5E+3", -1500.0),
        ("+7", 7),
        ("010", 10),
        ("0o17", "0o17"),
        ("0x1F", "0x1F"),
        ("1_000", "1_000"),
        ("12:30", "12:30"),
        ("1:30:00", "1:30:00"),
        ("no", "no"),
        ("Yes", "Yes"),
        ("on", "on"),
        ("off", "off"),
        ("true", True),
        ("False", False),
        ("~", None),
        ("null", None),
        ("", None),
        ("None", "None"),
        ("2024-01-31", "2024-01-31"),
        ("0-3", "0-3"),
        ("1f1b", "1f1b"),
        (".inf", math.inf),
        ("-.inf", -math.inf),
        ("'3e-4'", "3e-4"),
        ('"true"', "true"),
        ("=", "="),
        ("1e", "1e"),
        ("e5", "e5"),
        (".", "."),
        ("-", "-"),
        ("!!str 12", "12"),
        ("!!float 1", 1.0),
        ("[a, 1]", ["a", 1]),
        ("{a: {b: 1}}", {"a": {"b": 1}}),
    ],
)
def test_plain_words_follow_yaml_1_2(text: str, value: object) -> None:
    data = read_text(f"key: {text}" if text != "-" else "key: '-'").data
    assert data == {"key": value}
    assert type(data["key"]) is type(value)
    if text != "-":
        assert parse_value(text) == (value, "")


def test_nan_is_a_number() -> None:
    data = read_text("key: .nan").data
    assert data is not None
    assert math.isnan(data["key"])


def test_every_key_and_value_has_its_place() -> None:
    document = read_text("a:\n  b: [10, x]\n  'c d': {e: 1.5}\n")
    assert document.source.marks == {
        (): Mark(None, SourceSpan(1, 1, 1)),
        ("a",): Mark(SourceSpan(1, 1, 1), SourceSpan(2, 3, 1)),
        ("a", "b"): Mark(SourceSpan(2, 3, 1), SourceSpan(2, 6, 7)),
        ("a", "b", 0): Mark(None, SourceSpan(2, 7, 2)),
        ("a", "b", 1): Mark(None, SourceSpan(2, 11, 1)),
        ("a", "c d"): Mark(SourceSpan(3, 3, 5), SourceSpan(3, 10, 8)),
        ("a", "c d", "e"): Mark(SourceSpan(3, 11, 1), SourceSpan(3, 14, 3)),
    }


def test_duplicate_keys_show_both_places_and_keep_the_first() -> None:
    document = read_text("a: 1\nb: {c: 1, c: 2}\na: 3\n")
    assert document.data == {"a": 1, "b": {"c": 1}}
    assert codes(document) == ["duplicate-key", "duplicate-key"]
    places = [
        (document.source.place_of(item).span, document.source.place(item.related[0].path).span)
        for item in document.diagnostics
    ]
    assert places == [
        (SourceSpan(2, 11, 1), SourceSpan(2, 5, 1)),
        (SourceSpan(3, 1, 1), SourceSpan(1, 1, 1)),
    ]


def test_anchors_and_merges() -> None:
    text = "base: &base {tp: 1, dp: 2}\na: *base\nb:\n  <<: *base\n  dp: 4\n"
    text += "c: {<<: [*base, {cp: 1}]}\n"
    document = read_text(text)
    assert document.diagnostics == ()
    assert document.data == {
        "base": {"tp": 1, "dp": 2},
        "a": {"tp": 1, "dp": 2},
        "b": {"tp": 1, "dp": 4},
        "c": {"tp": 1, "dp": 2, "cp": 1},
    }
    marks = document.source.marks
    # A merged key stands where it was written; one written here wins, before or after the merge.
    assert marks["b", "tp"].value == marks["base", "tp"].value
    assert marks["b", "dp"].value == SourceSpan(5, 7, 1)


def test_own_keys_of_a_merged_mapping_win_over_those_that_it_merges() -> None:
    text = "a: &a {x: 1, y: 1}\nb: &b {<<: *a, x: 2}\nc: {<<: *b}\nd: {<<: [{<<: *b, y: 3}, *a]}\n"
    document = read_text(text)
    assert document.data is not None
    assert document.data["c"] == {"x": 2, "y": 1}
    assert document.data["d"] == {"x": 2, "y": 3}
    # The place of a value is where it was written.
    assert document.source.marks["c", "x"].value.line == 2


def test_key_before_a_merge_wins() -> None:
    document = read_text("base: &base {dp: 2}\nb: {dp: 4, <<: *base}\n")
    assert document.data == {"base": {"dp": 2}, "b": {"dp": 4}}


@pytest.mark.parametrize(
    ("text", "line", "column", "words"),
    [
        ("a: {b: 1\nc: 2\n", 2, 2, "bracket"),
        ("a: 1\n\tb: 2\n", 2, 1, "tab"),
        ("a:\n\tb: 2\n", 2, 1, "tab"),
        ("a: b: c\n", 1, 5, "second `:`"),
        ("a: *nope\n", 1, 4, "without an anchor"),
        ("a: 'b\n", 2, 1, "quoted text"),
        ("a: 1\nb\n", 3, 1, "without `:`"),
        ("a: !!python/object:os.system x\n", 1, 4, "not used here"),
        ("a: !!binary aGk=\n", 1, 4, "not used here"),
        ("a: !!int x\n", 1, 4, "not a number"),
        ("a: !!bool yes\n", 1, 4, "not a boolean"),
        ("a: !!set {b}\n", 1, 4, "not used here"),
        ("a: &x [*x]\n", 1, 4, "contains itself"),
        ("a: \x07\n", 1, 4, "U+0007"),
        ("a: @b\n", 1, 4, "not YAML"),
        ("a: " + "9" * 5000 + "\n", 1, 4, "too long"),
        ("a: " + "[" * 1000 + "\n", 1, 51, "nested too deeply"),
        ("a: {<<: 3}\n", 1, 9, "`<<` takes"),
    ],
    ids=lambda value: value[:12] if isinstance(value, str) else None,
)
def test_syntax_faults_have_a_place_and_our_words(
    text: str, line: int, column: int, words: str
) -> None:
    document = read_text(text)
    assert codes(document) == ["yaml-syntax"]
    (fault,) = document.diagnostics
    assert words in fault.headline
    assert (fault.line, fault.column or 1) == (line, column)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "empty-file"),
        ("# nothing\n\n", "empty-file"),
        ("---\n", "empty-file"),
        ("a: 1\n---\nb: 2\n", "several-documents"),
        ("- a\n", "top-level-not-mapping"),
        ("just words\n", "top-level-not-mapping"),
        ("1: a\n", "key-not-text"),
        ("true: a\n", "key-not-text"),
        ("? [a]\n: b\n", "key-not-text"),
    ],
)
def test_faults_of_a_document(text: str, code: str) -> None:
    assert codes(read_text(text)) == [code]


def test_aliases_cannot_explode() -> None:
    """Nine levels of nine aliases would be 400 million values."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    assert codes(read_text("\n".join(lines))) == ["yaml-syntax"]


def test_file_faults(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    assert codes(read_file(path)) == ["unreadable-file"]
    assert codes(read_file(tmp_path)) == ["unreadable-file"]
    path.write_bytes(b"a: 1\nb: caf\xe9\n")
    (fault,) = read_file(path).diagnostics
    assert (fault.code, fault.line, fault.column) == ("not-utf8", 2, 7)
    path.write_bytes(b"\xef\xbb\xbfa: 1\r\nb: 2\r\n")
    document = read_file(path)
    assert document.data == {"a": 1, "b": 2}
    assert document.source.marks["b",].key == SourceSpan(2, 1, 1)


def test_for_a_folder_help_names_a_spec_in_it(tmp_path: Path) -> None:
    help_ = [read_file(tmp_path).diagnostics[0].help]
    for name in ("b.yaml", "a.yaml", "spec.yaml"):
        (tmp_path / name).touch()
        help_.append(read_file(tmp_path).diagnostics[0].help)
    assert help_[0].startswith("check the path")
    assert help_[1:] == [
        f"name a file in it, such as `{tmp_path / name}`"
        for name in ("b.yaml", "a.yaml", "spec.yaml")
    ]


def test_a_file_that_is_no_spec_by_its_size_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "weights.bin"
    with path.open("wb") as file:
        file.truncate(120_000_000)
    tracemalloc.start()
    (fault,) = read_file(path).diagnostics
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert fault.code == "unreadable-file"
    assert "larger than 1 MB" in fault.headline
    assert most < 10_000_000


def test_reading_ends_after_more_values_than_a_spec_has() -> None:
    start = time.process_time()
    (fault,) = read_text("a: [" + "1," * 400_000 + "1]").diagnostics
    assert time.process_time() - start < 5
    assert "more than 20,000 values" in fault.headline


@pytest.mark.parametrize("value", ["[1", "a: b: c", "'x", "{a: 1, a: 2}"])
def test_override_values_report_faults(value: str) -> None:
    parsed: tuple[Any, str] = parse_value(value)
    assert parsed[1] != ""
