"""Runs a command line in this process and compares all it says with a text file.

A golden file starts with `$ mimo-launch ARGS`; exit code, stdout and stderr follow. After a change
that is meant, `pytest tests/cli --update-golden` writes them anew; read the diff.
"""

import math
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.histories import evaluated, step, write

from mimo_launch.cli.app import run

FIXTURES = Path(__file__).parents[1] / "fixtures"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write golden files anew")


@pytest.fixture
def run_cli(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[str], tuple[int, str, str]]:
    """Run `mimo-launch ARGS` in tests/fixtures; return (exit code, stdout, stderr)."""

    def call(line: str) -> tuple[int, str, str]:
        monkeypatch.chdir(FIXTURES)
        monkeypatch.delenv("FORCE_COLOR", raising=False)
        monkeypatch.setenv("COLUMNS", "100")
        code = run(shlex.split(line))
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture
def golden(
    run_cli: Callable[[str], tuple[int, str, str]], request: pytest.FixtureRequest
) -> Callable[[Path], None]:
    """Check one golden file, or write it anew."""

    def check(path: Path) -> None:
        want = path.read_text(encoding="utf-8")
        first = want.partition("\n")[0]
        code, out, err = run_cli(first.removeprefix("$ mimo-launch"))
        got = f"{first}\nexit {code}\n--- stdout\n{out}--- stderr\n{err}"
        if request.config.getoption("--update-golden", default=False):
            path.write_text(got, encoding="utf-8")
        else:
            assert got == want

    return check


@pytest.fixture
def runs(tmp_path: Path) -> Callable[..., Path]:
    """Make run folders; each has a step that is not finite."""

    def make(name: str, *, steps: int = 40) -> Path:
        run = tmp_path / "runs" / name
        run.mkdir(parents=True)
        numbers = range(1, steps + 1)
        losses = [math.nan if number == 7 else 4.0 / number for number in numbers]
        write(run, *(step(n, loss) for n, loss in zip(numbers, losses, strict=True)))
        with (run / "metrics.jsonl").open("a") as file:
            file.write(evaluated(steps, 0.25))
        return run

    return make
