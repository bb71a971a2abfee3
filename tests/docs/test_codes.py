"""Every code has a page in step with the table, and a fixture that has exactly that fault."""

import argparse
import shlex
import sys
from pathlib import Path

import pytest

from mimo_launch.checks.load_and_check import load_and_check
from mimo_launch.diag.diagnostic import all_codes
from mimo_launch.hugging_face.families_page import modules, page, wholes
from mimo_launch.spec.reference import reference

ROOT = Path(__file__).parents[2]
FIXTURES = sorted((ROOT / "tests" / "fixtures" / "errors").glob("*.yaml"))
MARK = b"# <- here"


def arguments(raw: bytes) -> argparse.Namespace:
    """Read the command line of a fixture from a first line `# args: ...`.

    `--without PACKAGE`, which only this test knows, hides an installed package from Python.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--nproc", type=int)
    parser.add_argument("--without", action="append", default=[])
    first = raw.partition(b"\n")[0].decode()
    return parser.parse_args(shlex.split(first.partition("# args:")[2]))


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)
def test_fixture_has_its_code_at_the_marked_line(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = path.read_bytes() if path.is_file() else b""
    args = arguments(raw)
    for package in args.without:
        monkeypatch.setitem(sys.modules, package, None)
    checked = load_and_check(path, args.set, args.nproc)
    code = all_codes()[path.name.split(".")[0]]
    assert [item.code for item in checked.diagnostics] == [code.name]
    (found,) = checked.diagnostics
    assert found.is_error is not code.is_warning
    assert (checked.spec is None) is found.is_error
    assert found.headline
    assert found.why
    assert found.help
    place = checked.source.place_of(found)
    marked = [number for number, line in enumerate(raw.splitlines(), 1) if MARK in line]
    if marked:
        assert place.span is not None
        assert [place.span.line] == marked
    else:
        assert place.span is None
        assert path.is_dir() or place.override == args.set[0]


def test_every_code_has_a_fixture() -> None:
    assert {path.name.split(".")[0] for path in FIXTURES} == set(all_codes())


@pytest.mark.parametrize("name", all_codes())
def test_a_page_fits_a_terminal_and_shows_two_fragments_that_differ(name: str) -> None:
    page = all_codes()[name].page
    assert max(map(len, page.splitlines())) <= 100
    assert page.count("`") % 2 == 0
    wrong, right = page.partition("Wrong:\n")[2].split("Right:\n")
    assert wrong.strip() != right.strip()


def test_reference_is_in_step() -> None:
    """Run `python -m mimo_launch.spec.reference docs/spec-reference.md` after a change."""
    page = (ROOT / "docs" / "spec-reference.md").read_text(encoding="utf-8")
    assert page == reference()


def test_the_list_of_families_is_in_step() -> None:
    """Run `python -m mimo_launch.hugging_face.families_page docs/families.md` after a change."""
    assert (ROOT / "docs" / "families.md").read_text(encoding="utf-8") == page()


def test_every_name_on_the_hub_is_listed_once() -> None:
    listed = [name for each in (*wholes(), *modules()) for name in each.published]
    assert len(set(listed)) == len(listed)
    assert {"Qwen/Qwen3.6-27B", "Qwen/Qwen3.8-27B"} <= set(listed)


def test_every_code_in_the_source_is_in_the_table() -> None:
    """A check cannot invent a code without a page, nor a page outlive its check."""
    import re

    used: set[str] = set()
    for path in (ROOT / "src" / "mimo_launch").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for either in re.findall(r'code="([a-z0-9-]+)"(?: if \w+ else "([a-z0-9-]+)")?', text):
            used |= set(filter(None, either))
    assert used == set(all_codes())
