"""Faults in real runs: each ends with one report that names the right rank, in time."""

import os
import re
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.support.faulty_train import EVERY_RANK, Launcher, gone

from mimo_launch.cli.app import run as run_here
from mimo_launch.diag.exit_codes import ExitCode

SPEC = str(Path(__file__).parents[1] / "fixtures" / "tiny_train.yaml")
LONG = ("train", SPEC, "--steps", "100000", "--set", "eval=null")
CHECKPOINTS = ("--set", "checkpoint={every: 2, keep: 2, asynchronous: false}")
TIMEOUT, ELSEWHERE = 2, ExitCode.ELSEWHERE

DEATHS = {
    "raise": ("failed first", "ValueError: no such sample"),
    "memory": ("failed first", "MemoryError"),
    "exit0": ("stopped first", "exited with status 0 before the run ended"),
    "exit3": ("stopped first", "exited with status 3"),
    "segv": ("stopped first", "killed by SIGSEGV"),
    "kill": ("stopped first", "killed by SIGKILL"),
}
HANGS = {
    "stop": ("is suspended", "its process is stopped"),
    "sleep": ("is stuck", "at <lambda> (faulty_train.py"),
    "loader": ("is stuck", "reading samples"),
    "group": ("is stuck", "creating process groups"),
    "gil": ("is stuck", "holds the GIL"),
}
IN_DEFAULT_SUITE = {"raise", "exit0", "kill", "stop", "loader", "gil"}
FAULTY_WORDS = {"surrogate": "no file \\x1b[2J\\x1b[31modd\\udcff.jpg", "mute": "Mute: "}


def sample(faults: dict[str, tuple[str, str]]) -> list[Any]:
    """Return all kinds; those that the default suite leaves out run in `nox -s faults`."""
    return [
        kind if kind in IN_DEFAULT_SUITE else pytest.param(kind, marks=pytest.mark.faults)
        for kind in faults
    ]


def check_report(launcher: Launcher, how: str, said: str, *, within: float) -> None:
    """One report in time after the last sign of life, on stderr and in the run folder."""
    code, _, err = launcher.finish()
    ended = time.time()
    assert ended - (launcher.run / "metrics.jsonl").stat().st_mtime < within
    assert code == (ELSEWHERE if "SIGKILL" in said else 1)
    assert err.count("error: ") == 1
    assert f"error: rank 1 {how} (language tp 0 cp 0 dp 0 pp 0)" in err
    assert said in err
    assert "   = others:  rank 0: " in err
    assert "   = resume:  mimo-launch train " in err
    assert err.rstrip() in (launcher.run / "failure.txt").read_text()


@pytest.mark.parametrize("fault", sample(DEATHS))
def test_a_death_ends_the_run_within_ten_seconds(tmp_path: Path, fault: str) -> None:
    launcher = Launcher(tmp_path, fault, 1, 3, *LONG)
    check_report(launcher, *DEATHS[fault], within=10)
    assert [record["step"] for record in launcher.metrics()] == [1, 2]


@pytest.mark.parametrize("fault", sample(HANGS))
def test_a_hang_ends_the_run_after_its_timeout(tmp_path: Path, fault: str) -> None:
    launcher = Launcher(tmp_path, fault, 1, 3, *LONG, "--set", f"train.timeout={TIMEOUT}")
    check_report(launcher, *HANGS[fault], within=TIMEOUT + 10)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)]
)
def test_a_signal_saves_a_checkpoint_and_the_same_command_goes_on(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    """The workers get the signal too, as from Ctrl-C in a terminal."""
    first = Launcher(tmp_path, "slow", 0, 0, *LONG, *CHECKPOINTS)
    first.wait_for_step(3)
    for worker in first.workers():
        os.kill(worker, number)
    os.kill(first.pid, number)
    found, out, err = first.finish()
    done = first.metrics()[-1]["step"]
    assert found == code
    assert f"stopped by {number.name} after step {done}; runs/tiny/checkpoints/step-" in out
    assert f"interrupted by {number.name}" in err
    again = Launcher(tmp_path, "slow", 0, 0, *LONG, *CHECKPOINTS, "--steps", str(done + 2))
    found, out, _ = again.finish()
    assert found == 0
    assert f"resumed after step {done}" in out
    assert [record["step"] for record in again.metrics()] == list(range(1, done + 3))


@pytest.mark.parametrize("closed", [(1,), (2,), (1, 2)])
def test_a_signal_saves_a_checkpoint_though_nobody_reads_on(
    tmp_path: Path, closed: tuple[int, ...]
) -> None:
    """As when Ctrl-C also ends the `tee` behind the command."""
    launcher = Launcher(tmp_path, "slow", 0, 0, *LONG, *CHECKPOINTS, closed=closed)
    launcher.wait_for_step(3)
    os.kill(launcher.pid, signal.SIGTERM)
    assert launcher.finish()[0] == 143
    done = launcher.metrics()[-1]["step"]
    assert (launcher.run / "checkpoints" / f"step-{done:08}").is_dir()


def test_a_run_that_finished_is_done_though_nobody_read_it(tmp_path: Path) -> None:
    arguments = ("train", SPEC, "--steps", "3", "--set", "eval=null")
    launcher = Launcher(tmp_path, "print", 9, 0, *arguments, closed=(1,))
    code, _, err = launcher.finish()
    assert (code, err) == (0, "")


def test_a_report_is_kept_though_nobody_reads_it(tmp_path: Path) -> None:
    launcher = Launcher(tmp_path, "raise", 1, 2, *LONG, closed=(1, 2))
    assert launcher.finish()[0] == 1
    assert "error: rank 1 failed first" in (launcher.run / "failure.txt").read_text()


def test_a_stop_whose_save_fails_is_a_failure(tmp_path: Path) -> None:
    """And is not started again."""
    never = ("--set", "checkpoint={every: 100000, asynchronous: false}")
    launcher = Launcher(tmp_path, "slow", 0, 0, *LONG, *never, "--max-restarts", "2")
    launcher.wait_for_step(2)
    (launcher.run / "checkpoints").rmdir() if (launcher.run / "checkpoints").exists() else None
    (launcher.run / "checkpoints").write_text("in the way")
    os.kill(launcher.pid, signal.SIGTERM)
    code, _, err = launcher.finish()
    assert code == 1, err
    assert "not started again: SIGTERM" in err


def test_an_error_that_cannot_be_written_down_is_told_all_the_same(tmp_path: Path) -> None:
    """A name with bytes that are no text and an escape, and an error without words."""
    for number, (fault, said) in enumerate(FAULTY_WORDS.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        code, _, err = Launcher(folder, fault, 1, 2, *LONG).finish()
        assert code == 1
        assert "error: rank 1 failed first" in err
        assert said in err
        assert "\x1b" not in err + (folder / "runs" / "tiny" / "failure.txt").read_text()


def test_a_second_signal_stops_at_once(tmp_path: Path) -> None:
    """Also a run that has stopped moving."""
    launcher = Launcher(tmp_path, "sleep", 1, 3, *LONG)
    launcher.wait_for_step(2)
    workers = launcher.workers()
    os.kill(launcher.pid, signal.SIGINT)
    time.sleep(0.5)
    assert not any(gone(worker) for worker in workers)
    os.kill(launcher.pid, signal.SIGINT)
    code, out, err = launcher.finish(10)
    assert code == 130
    assert "another one stops at once" in err
    assert "stopped by" not in out
    assert all(gone(worker) for worker in workers)


def test_a_second_run_in_the_same_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would move the folder aside, or save over the first one's checkpoints.

    A run whose folder is deleted ends, though it could go on in a new one.
    """
    launcher = Launcher(tmp_path, "slow", 0, 0, *LONG)
    launcher.wait_for_step(1)
    monkeypatch.chdir(tmp_path)
    assert run_here(list(LONG)) == 1
    out, err = capsys.readouterr()
    assert "step" not in out
    assert f"error: runs/tiny is in use by process {launcher.pid} on " in err
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["tiny"]
    shutil.rmtree(launcher.run)
    code, out, err = launcher.finish(20)
    assert (code, "done:" in out) == (1, False)
    assert "error: the run folder no longer belongs to this run: it was deleted" in err
    assert err.count("error: ") == 1


def test_no_worker_outlives_a_launcher_that_is_killed(tmp_path: Path) -> None:
    launcher = Launcher(tmp_path, "sleep", 1, 3, *LONG)
    launcher.wait_for_step(2)
    workers = launcher.workers()
    os.kill(launcher.pid, signal.SIGKILL)
    deadline = time.monotonic() + 5
    while not all(gone(worker) for worker in workers) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert all(gone(worker) for worker in workers)


@pytest.mark.faults
def test_a_job_that_is_frozen_as_a_whole_is_no_ranks_fault(tmp_path: Path) -> None:
    """Stopped for longer than its timeout, as by Ctrl-Z: it goes on, or says what happened."""
    seconds = TIMEOUT + 2
    settings = ("--set", f"train.timeout={TIMEOUT}", "--max-restarts", "1")
    arguments = ("train", SPEC, "--steps", "60", "--set", "eval=null", *settings)
    launcher = Launcher(tmp_path, "slow", 0, 0, *arguments, enter=os.setsid)
    launcher.wait_for_step(3)
    os.killpg(launcher.pid, signal.SIGSTOP)
    time.sleep(seconds)
    os.killpg(launcher.pid, signal.SIGCONT)
    code, _, err = launcher.finish()
    assert code == 0, err
    assert "error: rank" not in err
    if err:
        assert re.search(rf"^error: the whole job stood still for [{seconds - 1}-9] s$", err, re.M)


@pytest.mark.faults
def test_a_wait_that_ends_because_the_job_was_frozen_is_no_ranks_fault(tmp_path: Path) -> None:
    """Rank 0 is inside of gloo, waiting for a peer that would come soon."""
    timeout, seconds = 4, 6
    settings = ("--set", f"train.timeout={timeout}", "--max-restarts", "1")
    arguments = ("train", SPEC, "--steps", "20", "--set", "eval=null", *settings)
    launcher = Launcher(tmp_path, "nap", 1, 5, *arguments, enter=os.setsid)
    launcher.wait_for_step(4)
    time.sleep(1)
    os.killpg(launcher.pid, signal.SIGSTOP)
    time.sleep(seconds)
    os.killpg(launcher.pid, signal.SIGCONT)
    code, _, err = launcher.finish()
    assert code == 0, err
    [error] = re.findall("^error: .*", err, re.M)
    assert re.fullmatch(rf"error: the whole job stood still for [{seconds}-9] s", error)
    assert "no rank is to blame" in err
    assert "rank 0: timed out waiting, step 5" in err
    assert "restart 1: the run starts over" in err


@pytest.mark.faults
def test_a_run_that_was_asked_to_stop_ends_though_its_ranks_give_signs_of_work(
    tmp_path: Path,
) -> None:
    """But never come to the end of their step."""
    timeout = ("--set", f"train.timeout={TIMEOUT}")
    launcher = Launcher(tmp_path, "beats", EVERY_RANK, 3, *LONG, *timeout)
    launcher.wait_for_step(2)
    os.kill(launcher.pid, signal.SIGTERM)
    code, _, err = launcher.finish(30)
    assert code == 1
    assert re.search("error: rank [01] is stuck", err)
    assert f"it is busy, but its step has not ended for {TIMEOUT} s or longer" in err


def test_a_failed_run_starts_again_from_its_newest_checkpoint(tmp_path: Path) -> None:
    """The fault strikes the first attempt after step 4; one curve, and logs of both attempts."""
    arguments = ("train", SPEC, "--steps", "6", "--set", "eval=null", *CHECKPOINTS)
    launcher = Launcher(tmp_path, "kill", 1, 6, *arguments, "--max-restarts", "2")
    code, out, err = launcher.finish()
    assert code == 0, err
    assert err.count("error: rank 1 stopped first") == 1
    assert "restart 1: the run resumes after step 4, in 1 s" in err
    assert "resumed after step 4" in out
    assert [record["step"] for record in launcher.metrics()] == [1, 2, 3, 4, 5, 6]
    assert {path.name for path in (launcher.run / "logs").iterdir()} == {"attempt-0", "attempt-1"}


def test_processes_that_a_rank_started_end_with_the_run(tmp_path: Path) -> None:
    """Also one that has left its parent and its session: it has the log of the rank open."""
    code, _, err = Launcher(tmp_path, "children", 1, 2, *LONG).finish()
    assert code == 1, err
    assert "no such sample" in err
    assert writers_to(tmp_path) == []


def writers_to(folder: Path) -> list[str]:
    """Return the processes whose output goes to files in a folder."""
    found = []
    for output in Path("/proc").glob("[0-9]*/fd/1"):
        with suppress(OSError):
            if output.readlink().is_relative_to(folder):
                found.append((output.parents[1] / "cmdline").read_text())
    return found


def test_a_run_that_was_ended_on_purpose_is_not_started_again(tmp_path: Path) -> None:
    launcher = Launcher(tmp_path, "final", 1, 2, *LONG, "--max-restarts", "2")
    code, _, err = launcher.finish()
    assert code == 1
    assert err.count("error: ") == 1
    assert "not started again" in err
