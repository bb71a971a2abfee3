"""What the pages show is so: specs plan, and commands print what stands below them.

A fenced `yaml` block with a `version:` key is a whole spec; others are fragments. One with a title
(```yaml title="spec.yaml", or one of Python) is a file for the commands of its page, and may be
wrong on purpose if its name begins with `broken`. A `console` block that begins with
`$ mimo-launch` and `plan`, `validate` or `explain` is run in a folder with these files; `...`
stands for lines left out.
"""

import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.support.reports import build_report
from tests.support.shards import tokenizer_folder

from mimo_launch.checks.load_and_check import check_text
from mimo_launch.cli.app import run
from mimo_launch.plan.plan import Plan

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
CONCEPTS = sorted((ROOT / "docs" / "concepts").glob("*.md"))
RUNNABLE = re.compile(r"\$ mimo-launch (plan|validate|explain) ")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its title if it has one, and its text."""

    page: Path
    number: int
    language: str
    title: str
    text: str

    @property
    def id(self) -> str:
        return f"{self.page.stem}-{self.number}"


def blocks(page: Path) -> Iterator[Block]:
    """Yield the fenced blocks of a page in order."""
    fence = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.DOTALL | re.MULTILINE)
    for number, found in enumerate(fence.finditer(page.read_text(encoding="utf-8"))):
        yield Block(page, number, found[1], found[2] or "", found[3])


def write_files(page: Path, folder: Path) -> None:
    """Write the blocks of a page that have a title, as files."""
    for block in blocks(page):
        if block.title:
            (folder / block.title).write_text(block.text, encoding="utf-8")


# Their commands need what those before them made: test_worked_example.py runs them in one go.
AS_WRITTEN = ("worked-example", "fine-tune", "speech")
ALL = [block for page in PAGES if page.stem not in AS_WRITTEN for block in blocks(page)]
SPECS = [
    block
    for block in ALL
    if block.language == "yaml" and re.search(r"^version:", block.text, re.MULTILINE)
]
# Those of shipped specs need nothing before them.
SHIPPED = [
    block
    for page in PAGES
    if page.stem in AS_WRITTEN
    for block in blocks(page)
    if block.text.startswith("$ mimo-launch plan topologies/")
]
COMMANDS = [
    block
    for block in (*ALL, *SHIPPED)
    if block.language == "console" and RUNNABLE.match(block.text)
]
TOPOLOGIES = sorted((ROOT / "topologies").rglob("*.yaml"))


@pytest.mark.parametrize("block", SPECS, ids=lambda block: block.id)
def test_a_spec_on_a_page_validates_and_plans(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(block.page, tmp_path)
    monkeypatch.chdir(tmp_path)
    if "tokenizer: models/tokenizer" in block.text:
        tokenizer_folder(tmp_path / "models" / "tokenizer")
    checked = check_text(block.text, str(block.page))
    if block.title.startswith("broken"):
        assert any(found.is_error for found in checked.diagnostics)
        return
    assert checked.diagnostics == ()
    assert checked.spec is not None
    assert build_report(Plan.of(checked.spec)).header.world_size > 0


@pytest.mark.parametrize("path", TOPOLOGIES, ids=lambda path: path.stem)
def test_a_shipped_spec_plans(path: Path) -> None:
    checked = check_text(path.read_text(encoding="utf-8"), str(path))
    assert checked.spec is not None, checked.diagnostics
    assert build_report(Plan.of(checked.spec)).header.world_size > 0


@pytest.mark.parametrize("block", COMMANDS, ids=lambda block: block.id)
def test_a_command_prints_what_the_page_shows(
    block: Block,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "topologies").symlink_to(ROOT / "topologies")
    write_files(block.page, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    command, _, shown = block.text.partition("\n")
    run(shlex.split(command.removeprefix("$ mimo-launch ")))
    printed = "".join(capsys.readouterr())
    # No traceback, no "internal error": the pieces are searched for in order, whole lines only.
    rest = f"\n{printed.rstrip()}\n"
    for piece in re.split(r"^\.\.\.\n", shown, flags=re.MULTILINE):
        if piece.strip():
            before, found, rest = rest.partition(f"\n{piece.rstrip()}\n")
            assert found, f"not printed:\n{piece}\nprinted:\n{before}"
            rest = f"\n{rest}"
    if not re.search(r"^\.\.\.\n", shown, flags=re.MULTILINE):
        assert shown.rstrip() == printed.rstrip()


def test_every_concept_has_a_spec_and_a_picture() -> None:
    names = {page.stem for page in CONCEPTS}
    assert names == {"grids", "placement", "bridges", "graphs", "schedule", "gradients"}
    for group in (SPECS, COMMANDS):
        assert names <= {block.page.stem for block in group}


@pytest.mark.parametrize(
    ("words", "setting"),
    [
        ("Custom language models are not", "modules.language.model.kind=my_package:Decoder"),
    ],
)
def test_the_limits_are_those_of_validate(words: str, setting: str) -> None:
    """A limit goes from the list when it goes from the checks, and not before."""
    text = (ROOT / "topologies" / "quickstart.yaml").read_text(encoding="utf-8")
    found = check_text(text, overrides=[setting]).diagnostics
    refused = "not-supported-yet" in {item.code for item in found}
    assert refused == (words in (ROOT / "docs" / "index.md").read_text(encoding="utf-8"))


def test_what_pages_install_is_there() -> None:
    """This package is in no index: it is installed from a checkout, with extras that it has."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"].keys()
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert not re.search(
        r"pip install[^\n`]*\bmimo-launch\b", text.replace(".venv/bin/mimo-launch", "")
    )
    named = {each for found in re.findall(r"'\.\[(.*?)\]'", text) for each in found.split(",")}
    assert {"data", "audio"} <= named <= extras


def test_links_of_the_top_level_pages_lead_somewhere() -> None:
    """Those of docs/ are checked by its strict build."""
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#]+)", text):
            assert target.startswith("https://") or (ROOT / target).exists(), f"{name}: {target}"


def test_every_page_is_in_the_navigation() -> None:
    text = (ROOT / ".mkdocs.yml").read_text(encoding="utf-8")
    listed = re.findall(r"^ +- (?:.*: )?(\S+\.md)$", text, re.MULTILINE)
    docs = ROOT / "docs"
    # The pages of codes are reached from their table.
    pages = {str(page.relative_to(docs)) for page in docs.rglob("*.md")}
    assert set(listed) == {page for page in pages if not page.startswith("errors/")} | {
        "errors/index.md"
    }


def test_decisions_are_short_and_listed() -> None:
    folder = ROOT / "docs" / "adr"
    index = (folder / "index.md").read_text(encoding="utf-8")
    for page in sorted(folder.glob("0*.md")):
        text = page.read_text(encoding="utf-8")
        assert len(text.splitlines()) <= 60, page.name
        assert re.findall(r"^## (\w+)", text, re.MULTILINE) == [
            "Status",
            "Context",
            "Decision",
            "Consequences",
        ]
        assert f"({page.name})" in index
