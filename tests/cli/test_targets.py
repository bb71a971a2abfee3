"""A file or folder that cannot be written is refused before any work."""

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

import pytest

import mimo_launch.cli as cli_modules
from mimo_launch.checks import load_and_check
from mimo_launch.cli import init_draft
from mimo_launch.train import history

Cli = Callable[[str], tuple[int, str, str]]


@pytest.fixture(autouse=True)
def no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all work that comes first fail the test."""

    def fails(*_: object, **__: object) -> None:
        pytest.fail("there was work before the error")

    # A module that was imported meanwhile would keep the function that fails.
    for each in walk_packages(cli_modules.__path__, f"{cli_modules.__name__}."):
        import_module(each.name)
    for work in (load_and_check.load_and_check, init_draft.draft, history.read_history):
        name = work.__name__
        for module in list(sys.modules.values()):
            if vars(module).get(name) is work:
                monkeypatch.setattr(module, name, fails)


@pytest.mark.parametrize(
    "line",
    [
        "plan valid.yaml --html",
        "plan valid.yaml --timeline",
        "plan valid.yaml --trace",
        "plan valid.yaml --apply 1 -o",
        "report runs/one -o",
        "data valid.yaml --stats",
        "data valid.yaml --html",
        "init --yes",
    ],
)
@pytest.mark.parametrize("target", ["missing/x.html", "file/x.html", "folder.html"])
def test_no_work_is_done_for_a_file_that_cannot_be_written(
    line: str, target: str, run_cli: Cli, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder.html").mkdir()
    force = " --force" if line.startswith("init") else ""
    code, out, err = run_cli(f"{line} {tmp_path / target}{force}")
    assert (code, out) == (1, "")
    assert err.startswith(f"error: cannot write {tmp_path / target}: ")


@pytest.mark.parametrize("line", ["tune valid.yaml --to", "data valid.yaml --index-to"])
def test_no_work_is_done_for_a_folder_that_cannot_be_made(
    line: str, run_cli: Cli, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    code, out, err = run_cli(f"{line} {tmp_path / 'file' / 'x'}")
    assert (code, out) == (1, "")
    assert err.startswith(f"error: cannot make {tmp_path / 'file' / 'x'}: ")
