"""The codes of plans that pages show are those of their commands.

They change with settings and programs of these specs, not with new keys that have a default.
`pytest tests/cli --update-golden` writes them anew. Pages whose commands make their own specs are
run by `test_worked_example.py`.
"""

import re
import shlex
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from tests.docs.test_docs import AS_WRITTEN

from mimo_launch.checks.load_and_check import load_and_check
from mimo_launch.plan.plan import Plan

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
COMMAND = re.compile(r"mimo-launch (?:train|bench|plan) (topologies/(?:.*\\\n)*.*)")
PICTURE = re.compile(r"\]\((img/\S+-measured\.svg)\)")
CODE = re.compile(r"(?<=\bplan )[0-9a-f]{12}\b")


def code_of(command: str) -> str:
    """Return the code of what `FILE [--set KEY=VALUE] [--steps N] ...` runs."""
    file, *options = shlex.split(command.replace("\\\n", " "), comments=True)
    pairs = list(pairwise(options))
    settings = [value for option, value in pairs if option == "--set"]
    settings += [f"train.steps={value}" for option, value in pairs if option == "--steps"]
    checked = load_and_check(ROOT / file, settings)
    assert checked.spec is not None, checked.diagnostics
    return Plan.of(checked.spec).identity


def shown(page: Path) -> Iterator[tuple[str, Path, re.Match[str]]]:
    """Yield each code of a page or of a picture on it, with the last command above and its file."""
    text = page.read_text(encoding="utf-8")
    commands = list(COMMAND.finditer(text))
    for place in sorted([*CODE.finditer(text), *PICTURE.finditer(text)], key=re.Match.start):
        above = [each[1] for each in commands if each.start() < place.start()]
        if place.re is PICTURE:
            picture = page.parent / place[1]
            for code in CODE.finditer(picture.read_text(encoding="utf-8")):
                yield above[-1], picture, code
        elif above:
            yield above[-1], page, place


def test_codes_of_plans_are_those_of_the_commands_above(request: pytest.FixtureRequest) -> None:
    found = [each for page in PAGES if page.stem not in AS_WRITTEN for each in shown(page)]
    assert {file.name for _, file, _ in found} >= {"README.md", "tutorial.md", "bench.md"}
    for command, file, code in found:
        want = code_of(command)
        if request.config.getoption("--update-golden", default=False):
            text = file.read_text(encoding="utf-8")
            file.write_text(text[: code.start()] + want + text[code.end() :], encoding="utf-8")
        else:
            assert code[0] == want, f"{file.name}: {command}"


def test_a_setting_as_by_default_changes_no_code() -> None:
    quickstart = code_of("topologies/quickstart.yaml")
    assert code_of("topologies/quickstart.yaml --set optimizer.eps=1e-8") == quickstart
    assert code_of("topologies/quickstart.yaml --set optimizer.eps=1e-7") != quickstart
