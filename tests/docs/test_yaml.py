"""Every spec that we ship or show is valid, and what we say about other projects is proved."""

import re
from pathlib import Path

import pytest

from mimo_launch.checks.load_and_check import check_text, load_and_check
from mimo_launch.diag.diagnostic import all_codes

ROOT = Path(__file__).parents[2]
SHIPPED = sorted((ROOT / "topologies").rglob("*.yaml"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCKS = [
    (page, number, block)
    for page in PAGES
    for number, block in enumerate(
        re.findall(
            r"^```yaml\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
        )
    )
    if re.search(r"^version:", block, re.MULTILINE)
]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_specs_are_valid(path: Path) -> None:
    """Without warnings: they are what people copy."""
    assert load_and_check(path).diagnostics == ()


@pytest.mark.parametrize(
    ("page", "block"),
    [pytest.param(p, b, id=f"{p.stem}-{n}") for p, n, b in BLOCKS] or [(None, "")],
)
def test_specs_shown_in_the_docs_are_valid(page: Path | None, block: str) -> None:
    if page is not None:
        assert check_text(block, str(page)).diagnostics == ()


def test_every_upstream_error_is_answered() -> None:
    text = (ROOT / "docs" / "upstream-errors.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| (.+?) \| (.+?) \| (.*?) ?\|$", text, re.MULTILINE)
    assert [int(number) for number, *_ in rows] == list(range(1, 68))
    tests = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        tests |= set(re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE))
    for number, _, answer, proof in rows:
        named = re.findall(r"`(test_\w+)`", proof)
        assert set(named) <= tests, number
        codes = set(re.findall(r"`([a-z-]+)`", answer)) & set(all_codes())
        assert codes or answer.startswith(("cannot occur", "later")), number
        if codes and not answer.startswith(("cannot occur", "later")):
            assert named, f"{number} names a code and no test"
