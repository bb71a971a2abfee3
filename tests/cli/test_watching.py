"""`watch`, `runs` and `logs`: what can be known of runs from their folders alone."""

import json
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from tests.support.histories import USAGE, evaluated, step, write
from tests.support.terminal import Terminal

from mimo_launch.cli import run_screens, watch
from mimo_launch.launcher import run_folder as run_folders
from mimo_launch.launcher.forking import ask_child
from mimo_launch.launcher.run_lock import LOCK, Owner
from mimo_launch.launcher.worker_processes import name_process
from mimo_launch.train.events import EvalFinished, StepFinished
from mimo_launch.train.metrics_file import as_record

Cli = Callable[[str], tuple[int, str, str]]
ROOT = Path(__file__).parents[2]
SPEC = Path(__file__).parents[1] / "fixtures" / "tiny_train.yaml"
STEP = {
    "loss": 1.0, "grad_norm": 1.0, "grad_norms": {}, "lr": 0.1, "lrs": {}, "tokens": 3,
    "tokens_per_s": 2.0, "skipped": False,
}  # fmt: skip
KILLED = "its launcher was killed, or its host went down"


def run_folder(folder: Path, name: str, *lines: str) -> Path:
    """The folder of a run of four steps that has written `lines`."""
    run = folder / name
    run.mkdir(parents=True)
    (run / "spec.yaml").write_text(SPEC.read_text())
    (run / "plan.json").write_text('{"header": {"plan_hash": "0", "world_size": 2}}')
    write(run, *lines)
    return run


def lock_elsewhere(run: Path, *, touched: float) -> None:
    """Leave the lock of a launcher on another machine, with its last sign `touched` seconds ago.

    A sign from the future stays new, however slow the machine is.
    """
    owner = Owner(host="far", machine="no boot of ours", pid=1, since="", command="", token="t")
    (run / LOCK).write_text(json.dumps(asdict(owner)))
    os.utime(run / LOCK, (time.time() - touched,) * 2)


def four_runs(folder: Path) -> None:
    run_folder(folder, "all", *map(step, (1, 2, 3, 4)))
    run_folder(folder, "stopped", step(1), step(2, 0.5))
    broken = run_folder(folder, "broken", step(1))
    (broken / "failure.txt").write_text("error: rank 1 stopped first")
    lock_elsewhere(run_folder(folder, "far", step(1)), touched=-600)


def test_runs_are_listed_with_their_states(run_cli: Cli, tmp_path: Path) -> None:
    """A run of another machine is running as long as its launcher touches its lock."""
    four_runs(tmp_path)
    code, out, err = run_cli(f"runs {tmp_path}")
    assert (code, err) == (0, "")
    head, *lines = out.splitlines()
    assert head.split() == ["state", "step", "loss", "age", "name"]
    assert {line.split()[-1]: line.split()[:5] for line in lines} == {
        "all": ["done", "4", "of", "4", "1.0000"],
        "stopped": ["interrupted", "2", "of", "4", "0.5000"],
        "broken": ["failed", "1", "of", "4", "1.0000"],
        "far": ["running", "1", "of", "4", "1.0000"],
    }
    lock_elsewhere(tmp_path / "far", touched=600)
    records = json.loads(run_cli(f"runs {tmp_path} --json")[1])
    [far] = [each for each in records if each["name"] == "far"]
    assert (far["state"], far["why"]) == ("failed", KILLED)


def test_a_running_run_without_a_checkpoint_is_said_to_be_one(run_cli: Cli, tmp_path: Path) -> None:
    run = run_folder(tmp_path, "far", step(3))
    lock_elsewhere(run, touched=-600)
    said = (
        f"error: {run} has no complete checkpoint\n   = state: {{}}, step 3 of 4\n   = help: {{}}\n"
    )
    waits = f"wait for its first checkpoint: mimo-launch watch {run}"
    assert run_cli(f"inspect {run}") == (2, "", said.format("running", waits))
    lock_elsewhere(run, touched=600)
    other = "name a folder with config.json, a run folder or a checkpoint"
    assert run_cli(f"inspect {run}") == (2, "", said.format("failed", other))


# Contents of one file of a run that no release of ours has written.
SPOILT = {
    "spec of itself": ("spec.yaml", "&a [*a]"),
    "deep spec": ("spec.yaml", "[" * 100_000),
    "plan without a header": ("plan.json", "{}"),
    "deep plan": ("plan.json", "[" * 100_000),
    "deep lock": ("run.lock", "[" * 10_000),
    "words for numbers": ("metrics.jsonl", step(1, lr="x")),
    "no loss": ("metrics.jsonl", '{"step": 1, "loss": {}}\n'),
    "norms in a list": ("metrics.jsonl", step(1, grad_norms=[1])),
    "imbalance in a list": ("metrics.jsonl", step(1, imbalance=[1])),
    "a huge loss": ("metrics.jsonl", '{"step": 1, "loss": ' + "9" * 400 + "}\n"),
    "a link to itself": ("failure.txt", None),
    "a lock that is a link": ("run.lock", None),
}


def test_a_bad_folder_is_a_row_of_its_own_and_can_be_watched(run_cli: Cli, tmp_path: Path) -> None:
    """It ends neither `runs` nor `watch`; every other run is shown as ever."""
    run_folder(tmp_path, "good", step(1))
    for name, (file, text) in SPOILT.items():
        path = run_folder(tmp_path, name, step(1)) / file
        if text is None:
            path.symlink_to(file)
        else:
            path.write_text(text)
            os.utime(path, (0, 0))
    for file in ("metrics.jsonl", "run.lock"):
        path = run_folder(tmp_path, f"fifo for {file}", step(1)) / file
        path.unlink(missing_ok=True)
        os.mkfifo(path)
        os.utime(path, (0, 0))
    (tmp_path / "loop").symlink_to("loop")
    code, out, err = run_cli(f"runs {tmp_path}")
    assert (code, err) == (0, "")
    rows = [re.split(r"  +", line) for line in out.splitlines()[1:]]
    states = {row[-1]: row[0] for row in rows}
    assert states.keys() == {"good", *SPOILT, "fifo for metrics.jsonl", "fifo for run.lock"}
    assert states["good"] == "interrupted"
    assert states["deep lock"] == "failed"
    assert states["a lock that is a link"] == "unknown"
    for name, state in states.items():
        code, out, err = run_cli(f"watch '{tmp_path / name}'")
        last = out.splitlines()[-1]
        assert (code, err, last.split()[0]) == (int(state == "failed"), "", state), name


def test_a_folder_without_runs_is_said_to_be_one(run_cli: Cli, tmp_path: Path) -> None:
    said = f"{tmp_path} holds no run of `mimo-launch train`\n"
    assert run_cli(f"runs {tmp_path}") == (0, "", said)
    code, _, err = run_cli(f"runs {tmp_path / 'none'}")
    assert code == 2
    assert "cannot read" in err


def test_watching_a_run_that_has_ended_tells_its_steps_and_its_end(
    run_cli: Cli, tmp_path: Path
) -> None:
    four_runs(tmp_path)
    code, out, _ = run_cli(f"watch {tmp_path / 'all'}")
    assert code == 0
    assert out.splitlines()[0] == "2 ranks ready, 4 steps"
    assert "step      4  loss 1.0000" in out
    assert out.endswith("done after step 4 of 4\n")
    code, out, _ = run_cli(f"watch {tmp_path / 'broken'}")
    assert code == 1
    assert out.endswith(f"failed after step 1 of 4: see {tmp_path / 'broken' / 'failure.txt'}\n")
    code, _, err = run_cli(f"watch {tmp_path}")
    assert code == 2
    assert "is no run folder" in err


def recorded(lines: list[str]) -> Iterator[str]:
    """Yield the records of which `watch` would print these lines."""
    number = r"([\d.,e+-]+)"
    of_step = re.compile(
        rf"step +{number}  loss {number}  grad norm {number} "
        rf"\(vision {number} language {number}\)  lr {number}  {number} tokens/s"
    )
    of_eval = re.compile(
        rf"eval +{number}  loss {number}  digit accuracy {number}%  \({number} held-out samples\)"
    )
    for line in lines:
        kind = of_step if line.startswith("step") else of_eval
        found = kind.fullmatch(line)
        assert found, line
        values = [float(each.replace(",", "")) for each in found.groups()]
        if kind is of_eval:
            event = EvalFinished(
                step=int(values[0]),
                eval_loss=values[1],
                digit_accuracy=values[2] / 100,
                samples=int(values[3]),
            )
            yield json.dumps(as_record(event)) + "\n"
            continue
        norms = {"vision": values[3], "language": values[4]}
        more = {"grad_norm": values[2], "grad_norms": norms, "lr": values[5], "bad_samples": 0}
        yield step(int(values[0]), values[1], **more, tokens_per_s=values[6])


def test_watching_prints_what_its_page_shows(run_cli: Cli, tmp_path: Path) -> None:
    """The screen of the page, from the same run, has the rows of a terminal."""
    page = (ROOT / "docs" / "watching.md").read_text()
    lines = page.partition("watch runs/quickstart | tee quickstart.txt\n")[2].partition("```")[0]
    run = tmp_path / "quickstart"
    run.mkdir()
    text = (ROOT / "topologies" / "quickstart.yaml").read_text()
    text = text.replace("steps: 500", "steps: 40").replace("log_every: 25", "log_every: 10")
    (run / "spec.yaml").write_text(text)
    (run / "plan.json").write_text('{"header": {"plan_hash": "0", "world_size": 8}}')
    write(run, *recorded(lines.splitlines()[1:-1]))
    assert run_cli(f"watch {run}") == (0, lines, "")

    terminal = Terminal()
    command = [sys.executable, "-m", "mimo_launch", "watch", str(run)]
    subprocess.run(command, check=True, preexec_fn=terminal.enter)
    terminal.close()
    screen = page.partition("watch runs/quickstart\n")[2].partition("```")[0]
    shown = [line.split()[0] for line in screen.splitlines() if not line.startswith(" ")]
    drawn = [line.split()[0] for line in terminal.seen().splitlines() if line]
    assert shown == ["eval", "time", "loss", "vision", "language", "step"]
    assert drawn == ["eval", *shown, "done"]


def test_watching_tells_new_steps_once_and_that_the_launcher_was_killed(
    run_cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a line waits for its other half."""
    run = run_folder(tmp_path, "run", step(1))
    lock_elsewhere(run, touched=-600)
    whole = step(4, 0.5)
    written = iter((whole[:20], whole[20:], evaluated(4, 0.25), ""))

    def look(seconds: float) -> None:
        more = next(written)
        lock_elsewhere(run, touched=-600 if more else 600)
        with (run / "metrics.jsonl").open("a") as file:
            file.write(more)

    monkeypatch.setattr(watch.time, "sleep", look)
    code, out, _ = run_cli(f"watch {run}")
    assert code == 1
    assert out.count("step      4  loss 0.5000") == 1
    assert "eval      4  loss 0.2500" in out
    assert out.endswith(f"failed after step 4 of 4: {KILLED}\n")


def test_records_are_new_once_and_all_of_them_if_a_resumed_run_wrote_the_file_anew(
    tmp_path: Path,
) -> None:
    run = run_folder(tmp_path, "run", *map(step, (1, 2, 3)))
    records = watch.Records(run)

    def new() -> list[int]:
        return [each.step for each in records.new()]

    assert (new(), new()) == ([1, 2, 3], [])
    with (run / "metrics.jsonl").open("a") as file:
        file.write(step(4))
    assert new() == [4]
    fresh = run / "metrics.jsonl.new"
    fresh.write_text(step(1) + step(2))
    fresh.replace(run / "metrics.jsonl")
    assert (new(), new()) == ([1, 2], [])


def test_watching_tells_the_steps_that_come_while_it_sees_the_end(
    run_cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, looks = run_folder(tmp_path, "run", *map(step, (1, 2, 3))), []
    status_of = run_folders.status_of

    def ends(run: Path) -> run_folders.RunStatus:
        if not looks:
            with (run / "metrics.jsonl").open("a") as file:
                file.write(step(4))
        looks.append(run)
        return status_of(run)

    monkeypatch.setattr(run_folders, "status_of", ends)
    monkeypatch.setattr(watch, "LOOK_SECONDS", 0.0)
    code, out, _ = run_cli(f"watch {run}")
    assert (code, out.splitlines()[-1]) == (0, "done after step 4 of 4")
    # The spec logs each second step, and the first and the last.
    assert re.findall(r"^step +(\d+)", out, re.M) == ["1", "2", "4"]


def test_watching_counts_the_time_since_the_first_step(
    run_cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = [f"2026-11-23T01:0{minute}:00+00:00" for minute in (1, 2, 3)]
    usages = [replace(USAGE, time=each, step_s=50.0) for each in times]
    events = [
        StepFinished(**{**STEP, "step": number, "usage": each})
        for number, each in enumerate(usages, 1)
    ]
    run = run_folder(tmp_path, "run", *(json.dumps(as_record(each)) + "\n" for each in events))
    began, progress_for = [], run_screens.progress_for

    def noted(*given: object, **named: object) -> run_screens.PlainProgress:
        began.append(named["began"])
        return progress_for(*given, **named)

    monkeypatch.setattr(run_screens, "progress_for", noted)
    assert run_cli(f"watch {run}")[0] == 0
    assert began == [usages[0].at - 50.0]


def test_a_run_that_ended_early_is_done_and_a_report_is_a_sign_of_its_run(
    run_cli: Cli, tmp_path: Path
) -> None:
    end = '{"step": 3, "ended_early": true, "best_step": 1}\n'
    run_folder(tmp_path, "early", *map(step, (1, 2, 3)), end)
    broken = run_folder(tmp_path, "broken", step(1))
    for name in ("metrics.jsonl", "spec.yaml"):
        os.utime(broken / name, (time.time() - 5000,) * 2)
    (broken / "failure.txt").write_text("error: rank 1 stopped first")
    records = json.loads(run_cli(f"runs {tmp_path} --json")[1])
    assert {each["name"]: each["state"] for each in records} == {
        "early": "done",
        "broken": "failed",
    }
    assert all(each["age_s"] < 1000 for each in records)


def test_a_loss_that_is_no_number_is_null(run_cli: Cli, tmp_path: Path) -> None:
    run_folder(tmp_path, "bad", step(1, math.nan))
    code, out, _ = run_cli(f"runs {tmp_path} --json")
    assert (code, json.loads(out)[0]["loss"]) == (0, None)


def test_a_worker_can_be_told_from_others_by_its_name() -> None:
    def named() -> str:
        name_process("mimo rank 12")
        return Path("/proc/self/comm").read_text()

    assert ask_child(named) == "mimo rank 12\n"


def test_logs_are_those_of_the_newest_attempt_and_of_the_ranks_asked_for(
    run_cli: Cli, tmp_path: Path
) -> None:
    run = run_folder(tmp_path, "run")
    for attempt in (0, 1):
        for rank in (0, 1):
            folder = run / "logs" / f"attempt-{attempt}" / f"rank-{rank}"
            folder.mkdir(parents=True)
            (folder / "stdout.log").write_text(f"hello {attempt}\n")
            (folder / "stderr.log").write_text(f"oh\x1b[3A {attempt}\n")
    code, out, err = run_cli(f"logs {run}")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "[rank 0] hello 1", r"[rank 0] oh\x1b[3A 1", "[rank 1] hello 1", r"[rank 1] oh\x1b[3A 1",
    ]  # fmt: skip
    assert run_cli(f"logs {run} --rank 1 --attempt 0 --follow")[1].startswith("[rank 1] hello 0\n")
    code, _, err = run_cli(f"logs {run} --rank 7")
    assert code == 2
    assert "it has those of ranks 0-1" in err
    for file in (run / "logs" / "attempt-1" / "rank-1").iterdir():
        file.write_text("")
    assert run_cli(f"logs {run} --rank 1") == (0, "", "no output of rank 1\n")
