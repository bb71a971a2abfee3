"""Many runs on a terminal, of eight ranks that print and warn all the time: none hangs.

`FAULTS_TERMINAL=200` says how many, and a quarter of them have a rank that raises.
"""

import importlib
import os
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.faulty_train import EVERY_RANK, Launcher
from tests.support.terminal import Terminal

RUNS = int(os.environ.get("FAULTS_TERMINAL", "8"))
RAISES = max(1, RUNS // 4)
SECONDS = 120
SPEC = """
version: 1
name: tiny
modules:
  vision:
    model:
      kind: "tests.support.custom_encoders:Chatty"
      layers: 1
      hidden: 16
      input: {{kind: image, patch: 8}}
      options: {options}
    ranks: 0-7
    grid: {{dp: 8}}
  language:
    model: {{kind: decoder, layers: 1, hidden: 16, heads: 2, vocab: digits}}
    ranks: 0-7
    grid: {{dp: 4, tp: 2}}
schedule: {{microbatches: 1}}
batch: {{global: 8, seq: 24}}
data: {{kind: digits}}
train: {{steps: 2}}
"""

pytestmark = pytest.mark.faults


def warn_as_a_program() -> None:
    """Undo what pytest does to warnings."""
    importlib.reload(warnings)
    warnings.simplefilter("always")


def run(folder: Path, options: str) -> tuple[int | None, str, Path]:
    """Train on a terminal; return the exit code, what is seen, and the logs."""
    folder.mkdir()
    (folder / "spec.yaml").write_text(SPEC.format(options=options))
    terminal = Terminal()
    arguments = ("train", "spec.yaml", "--device", "cpu")
    launcher = Launcher(
        folder, "none", EVERY_RANK, 0, *arguments, enter=warn_as_a_program, terminal=terminal
    )
    code, _, _ = launcher.finish(SECONDS)
    return code, terminal.seen(), launcher.run / "logs" / "attempt-0"


def count(folder: Path, runs: int, options: str, ended: Callable[[int, str, Path], bool]) -> None:
    """Assert that all runs ended as they should; say how many hung."""
    hung, wrong = 0, []
    for number in range(runs):
        code, screen, logs = run(folder / str(number), options)
        hung += code == -9
        if code is None or not ended(code, screen, logs):
            wrong.append(f"run {number}, exit code {code}:\n{screen}")
    print(f"\n{runs} runs on a terminal, {options}: {hung} hung, {len(wrong)} not as they should")
    assert not wrong, wrong[0]


def test_no_run_on_a_terminal_hangs_however_much_its_ranks_print(tmp_path: Path) -> None:
    """Each rank's logs hold all that it said and nothing of the screen."""

    def said(rank: int, logs: Path) -> bool:
        folder = logs / f"rank-{rank}"
        out = (folder / "stdout.log").read_text()
        err = (folder / "stderr.log").read_text()
        built, runs = f"rank {rank} is built\n", f"rank {rank} runs\n"
        return (
            out == built * 2 + runs * 2
            and err.count(f"UserWarning: rank {rank} runs") == 2
            and "\x1b" not in err
        )

    def ended(code: int, screen: str, logs: Path) -> bool:
        return code == 0 and "done: 2 steps" in screen and all(said(r, logs) for r in range(8))

    count(tmp_path, RUNS, "{}", ended)


def test_the_error_of_a_rank_is_shown_on_a_terminal_every_time(tmp_path: Path) -> None:
    def ended(code: int, screen: str, logs: Path) -> bool:
        blamed = "error: rank 5 failed first" in screen
        return code == 1 and blamed and "RuntimeError: broken on purpose on rank 5" in screen

    count(tmp_path, RAISES, "{fails_on: 5}", ended)
