"""Runs on a terminal: workers print, the bar is drawn, a person presses Ctrl-C."""

import multiprocessing
import os
import re
import sys
from pathlib import Path

import pytest
from tests.support.faulty_train import EVERY_RANK, Launcher
from tests.support.terminal import COLUMNS, CTRL_C, Terminal, hold_locks_at_forks, seen

from mimo_launch.cli.app import run

SPEC = str(Path(__file__).parents[1] / "fixtures" / "tiny_train.yaml")
TWO_STEPS = ("train", SPEC, "--steps", "2", "--set", "eval=null", "--device", "cpu")
LONG = ("train", SPEC, "--steps", "100000", "--set", "eval=null")


def test_workers_print_though_another_thread_held_the_screen_when_they_were_forked(
    tmp_path: Path,
) -> None:
    """Their logs hold what they said, and nothing of the screen."""
    terminal = Terminal()
    launcher = Launcher(
        tmp_path, "talk", EVERY_RANK, 1, *TWO_STEPS, terminal=terminal, enter=hold_locks_at_forks
    )
    code, _, _ = launcher.finish(30)
    assert code == 0, terminal.seen()
    assert "done: 2 steps" in terminal.seen()
    for rank in (0, 1):
        logs = launcher.run / "logs" / "attempt-0" / f"rank-{rank}"
        said = (logs / "stdout.log").read_text()
        assert said == f"hello from rank {rank}\x1b[3A\x1b[31m\x07\n"
        assert f"UserWarning: take care of rank {rank}" in (logs / "stderr.log").read_text()


def test_on_a_terminal_ctrl_c_is_answered_at_once_and_what_ranks_print_is_above_the_bar(
    tmp_path: Path,
) -> None:
    """Nothing that they print moves the cursor, and the end says how the run goes on."""
    terminal = Terminal()
    command = (*LONG, "--set", "checkpoint={every: 1000, keep: 2}", "--console-ranks", "1")
    launcher = Launcher(tmp_path, "talk", EVERY_RANK, 2, *command, terminal=terminal)
    launcher.wait_to_read("UserWarning: take care of rank 1")
    launcher.wait_for_step(3)
    terminal.press(CTRL_C)
    assert launcher.finish()[0] == 130
    lines = terminal.seen().splitlines()
    assert r"[rank 1] hello from rank 1\x1b[3A\x1b[31m\x07" in lines
    assert any(line.startswith("[rank 1] /") and "UserWarning" in line for line in lines)
    assert not any("hello from rank 0" in line for line in lines)
    answer = "SIGINT: stopping after this step; another one stops at once"
    end = next(n for n, line in enumerate(lines) if line.startswith("stopped by SIGINT after step"))
    assert answer in lines[:end]
    step = lines[end].split(";")[0].split()[-1]
    assert any(line.startswith(f"saved {step:>5}") for line in lines)
    assert "interrupted by SIGINT" in lines
    after = " ".join(line.strip() for line in lines[lines.index("interrupted by SIGINT") :])
    assert "= resume: mimo-launch train" in " ".join(after.split())
    assert f"resumes after step {step} (runs/tiny/checkpoints/step-{int(step):08})" in after


def test_a_rank_that_raises_is_reported_on_a_terminal_that_has_become_narrow(
    tmp_path: Path,
) -> None:
    """The bar fits into the new width, and the report is whole."""
    terminal = Terminal()
    launcher = Launcher(tmp_path, "raise", 1, 60, *LONG, terminal=terminal)
    launcher.wait_for_step(3)
    terminal.resize(60)
    launcher.wait_for_step(10)
    before = len(terminal.written)
    assert launcher.finish()[0] == 1
    drawn = re.sub(r"\x1b\[\??[\d;]*([A-Za-z])", _as_text, terminal.written[before:])
    bars = [line for line in re.split(r"[\r\n]+", drawn) if "/100000" in line]
    assert bars
    assert max(map(len, bars)) <= 60
    report = " ".join(drawn.split())
    assert "error: rank 1 failed first" in report
    assert "said: ValueError: no such sample" in report


def test_findings_fit_a_narrow_terminal_and_no_code_is_broken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is lost: the words are those that a pipe gets.

    The spec is named without its folder: a path is not broken either, however long it is.
    """
    monkeypatch.chdir(Path(SPEC).parent)
    shown = []
    for columns in (1000, 60):
        terminal = Terminal()
        terminal.resize(columns)
        process = multiprocessing.get_context("fork").Process(
            target=_validate, args=(terminal, "ten_mistakes.yaml")
        )
        process.start()
        process.join(60)
        terminal.close()
        assert process.exitcode == 2
        shown.append(re.sub(r"\x1b\[[\d;]*m", "", terminal.written).replace("\r", ""))
    assert re.findall(r"\S+", shown[0]) == re.findall(r"\S+", shown[1])
    assert max(map(len, shown[0].splitlines())) > 100
    words = [line for line in shown[1].splitlines() if not re.match(r" *(\d* \||-->)", line)]
    code = re.compile(r"^ *\S*`[^`]*`\S*$")
    assert not [line for line in words if len(line) > 60 and not code.match(line)]


def _validate(terminal: Terminal, spec: str) -> None:
    """Run `validate` on a terminal, in a process of its own."""
    os.environ.pop("COLUMNS", None)
    terminal.enter()
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    sys.exit(run(["validate", spec]))


def _as_text(control: re.Match[str]) -> str:
    """Return what stands for a control: nothing for a colour, else the end of a line."""
    return "" if control[1] == "m" else "\n"


def test_what_a_terminal_shows_is_what_a_person_would_read() -> None:
    """The reading of terminals that these tests rest on."""
    assert seen("one\r\ntwo\r\x1b[2K\x1b[1A\x1b[2Kthree\r\n") == "three\n"
    assert seen("abc\rd\x1b[31me") == "dec"
    assert seen("a" * COLUMNS + "b") == "a" * COLUMNS + "\nb"
