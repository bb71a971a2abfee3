"""Which cases the default suite leaves to `nox -s sweep`: those that `tests/seldom.txt` lists."""

from pathlib import Path

import pytest
from tests.support import sweeps


class Case:
    """What marking needs of a case that was collected."""

    def __init__(self, nodeid: str) -> None:
        self.nodeid, self.marks = nodeid, list[str]()

    def add_marker(self, mark: pytest.MarkDecorator) -> None:
        self.marks.append(mark.name)


def left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, *, whole_files: bool = True
) -> list[str]:
    """Return those of four cases that a list leaves to the sweep."""
    monkeypatch.setattr(sweeps, "SELDOM", tmp_path / "seldom.txt")
    sweeps.SELDOM.write_text(text, encoding="utf-8")
    found = [Case(each) for each in ("t.py::one[a, b]", "t.py::one[c[0]]", "t.py::two", "u.py::x")]
    sweeps.leave_to_sweep(found, whole_files=whole_files)  # type: ignore[arg-type]
    return [each.nodeid for each in found if each.marks == ["sweep"]]


def test_listed_cases_and_tests_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = "t.py::one\n    c[0]\nt.py::two\nother.py::not_collected\n    a\n"
    assert left(tmp_path, monkeypatch, listed) == ["t.py::one[c[0]]", "t.py::two"]


@pytest.mark.parametrize("cases", ["    gone\n", "    a, b\n    c[0]\n"])
def test_a_name_without_a_case_and_a_test_without_cases_are_errors(
    cases: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(pytest.UsageError, match=r"t\.py::one has"):
        left(tmp_path, monkeypatch, f"t.py::one\n{cases}")


def test_of_a_case_that_is_asked_for_the_others_are_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert left(tmp_path, monkeypatch, "t.py::one\n    gone\n", whole_files=False) == []
