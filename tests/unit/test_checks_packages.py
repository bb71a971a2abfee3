"""A spec that needs a package is refused where the package is missing."""

import sys
from pathlib import Path

import pytest

from mimo_launch.cli.report import REQUIREMENT
from mimo_launch.layout.checks import packages
from mimo_launch.layout.checks.entry import check_text

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "tests" / "fixtures" / "tiny_train.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("log", "key"), [("{tensorboard: true}", "tensorboard"), ("{wandb: {project: p}}", "wandb")]
)
def test_a_missing_package_is_found_before_the_run(
    log: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = TEXT + f"log: {log}\n"
    assert check_text(text).diagnostics == ()
    monkeypatch.setitem(sys.modules, key, None)
    (found,) = check_text(text).diagnostics
    assert found.code == "missing-package"
    assert found.path == ("log", key)


def test_a_folder_of_a_package_s_name_is_not_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`wandb` leaves a folder `wandb/` behind, which Python takes for a package without files."""
    (tmp_path / "wandb").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    text = TEXT + "log: {wandb: {project: p}}\n"
    assert [found.code for found in check_text(text).diagnostics] == ["missing-package"]


def test_the_packages_asked_for_are_those_of_the_extras() -> None:
    import tomllib

    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    extras = tomllib.loads(text)["project"]["optional-dependencies"]
    assert extras["tensorboard"] == [packages.TENSORBOARD]
    assert extras["wandb"] == [packages.WANDB]
    assert extras["report"] == [REQUIREMENT]
