"""Every fault we know, at random ranks, steps and actions of random layouts.

`FAULTS_SEED=7 nox -s faults` repeats the draws; `FAULTS_EACH=10` makes more of them.
"""

import os
import random
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.faults.runs import (
    EVERY,
    LAYOUTS,
    STARTERS,
    STEPS,
    TIMEOUT,
    curve,
    newest,
    run,
    write_spec,
)

pytestmark = pytest.mark.faults
SEED = int(os.environ.get("FAULTS_SEED", "1"))
EACH = int(os.environ.get("FAULTS_EACH", "4"))
SAVES = int(os.environ.get("FAULTS_SAVES", "24"))

DEATHS = ("raise", "kill", "segv", "exit0", "exit3", "memory")
HANGS = ("stop", "sleep", "loader")
SLOTS = 6


def draw(kind: str, number: int) -> tuple[str, dict[str, Any]]:
    """Return a layout and a fault, the same for the same seed."""
    source = random.Random(f"{SEED}/{kind}/{number}")
    layout = source.choice(list(LAYOUTS))
    fault = {
        "kind": kind,
        "rank": source.randrange(4),
        "step": source.randint(2, STEPS - 1),
        "slot": source.randrange(SLOTS),
        "slots": SLOTS,
    }
    return layout, fault


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The metrics of each layout without a fault."""
    curves: dict[str, list[dict[str, Any]]] = {}

    def get(layout: str) -> list[dict[str, Any]]:
        if layout not in curves:
            folder = tmp_path_factory.mktemp("undisturbed")
            write_spec(folder, layout)
            ended = run(folder, None)
            assert ended.code == 0, ended.err
            curves[layout] = curve(folder)
            assert len(curves[layout]) == STEPS
        return curves[layout]

    return get


def shared_memory() -> set[str]:
    return {path.name for path in Path("/dev/shm").iterdir()}


def check_resume(folder: Path, want: list[dict[str, Any]], *, step: int) -> None:
    """A usable checkpoint is left, and what follows it is as if nothing had happened."""
    assert newest(folder) >= (step - 1) // EVERY * EVERY - EVERY
    ended = run(folder, None)
    assert ended.code == 0, ended.err
    assert curve(folder) == want


def say(kind: str, layout: str, fault: dict[str, Any], after: float) -> None:
    where = f"rank {fault['rank']}, step {fault['step']}"
    print(f"{kind:<14} {layout:<14} {where:<16} {after:5.1f} s")


@pytest.mark.parametrize("number", range(EACH))
@pytest.mark.parametrize("kind", DEATHS)
def test_a_death(kind: str, number: int, tmp_path: Path, undisturbed: Any) -> None:
    """One report within 10 s names the rank; nothing is left; the run resumes to the bit."""
    layout, fault = draw(kind, number)
    before = shared_memory()
    write_spec(tmp_path, layout)
    ended = run(tmp_path, fault)
    say(kind, layout, fault, ended.after_s)
    code = 75 if kind == "kill" else 1
    assert (ended.struck, ended.code, ended.blamed) == (True, code, fault["rank"]), ended.err
    assert ended.after_s < 10
    assert (ended.orphans, shared_memory() - before) == ([], set())
    assert ended.err.count("error: rank") == 1
    check_resume(tmp_path, undisturbed(layout), step=fault["step"])


@pytest.mark.parametrize("number", range(EACH))
@pytest.mark.parametrize("kind", HANGS)
def test_a_hang(kind: str, number: int, tmp_path: Path, undisturbed: Any) -> None:
    """The same within the time-out + 10 s."""
    layout, fault = draw(kind, number)
    if kind == "loader":
        # Ids that the rank comes to read at a step; every rank reads some sample of each step.
        fault["ids"] = step_ids(tmp_path, layout, fault["step"])
    write_spec(tmp_path, layout)
    ended = run(tmp_path, fault)
    say(kind, layout, fault, ended.after_s)
    assert (ended.struck, ended.code, ended.blamed) == (True, 1, fault["rank"]), ended.err
    assert ended.after_s < TIMEOUT + 10
    assert ended.orphans == []
    check_resume(tmp_path, undisturbed(layout), step=fault["step"])


# The largest code of a task, as srun returns it; others tell the verdict.
CODES = {"kill": 137, "segv": 139, "exit3": 3, "stop": 137}


@pytest.mark.parametrize("starter", STARTERS)
@pytest.mark.parametrize("kind", [*DEATHS, *HANGS])
def test_ranks_that_others_started(
    kind: str, starter: str, tmp_path: Path, undisturbed: Any
) -> None:
    """The watcher of their host names the same rank in the same time; torchrun itself exits with 1.

    One more process of each rank has to import everything.
    """
    layout, fault = draw(kind, 0)
    if kind == "loader":
        fault["ids"] = step_ids(tmp_path, layout, fault["step"])
    write_spec(tmp_path, layout)
    ended = run(tmp_path, fault, starter=starter, limit_s=120)
    say(f"{kind}, {starter}", layout, fault, ended.after_s)
    code = 1 if starter == "torchrun" else CODES.get(kind, 1)
    assert (ended.struck, ended.code, ended.blamed) == (True, code, fault["rank"]), ended.err
    assert ended.after_s < 10 + (TIMEOUT if kind in HANGS else 0)
    named = ended.err.count(f"error: rank {fault['rank']} ")
    assert ended.err.count("error: rank") == named == (2 if "two" in starter else 1), ended.err
    assert ended.orphans == []
    assert f"error: rank {fault['rank']} " in (tmp_path / "runs/broken/failure.txt").read_text()
    check_resume(tmp_path, undisturbed(layout), step=fault["step"])


def step_ids(folder: Path, layout: str, step: int) -> list[int]:
    """Ids of the samples of a step."""
    from mimo_launch.data.build import build_dataset
    from mimo_launch.data.order.sample_order import GlobalOrder
    from mimo_launch.spec.load import load_spec

    spec = load_spec(write_spec(folder, layout)).spec
    assert spec is not None
    samples = build_dataset(spec).num_samples("train")
    return list(GlobalOrder(samples, spec.batch.global_, spec.train.seed).ids(step - 1))


@pytest.mark.parametrize("number", range(EACH))
def test_a_rank_that_never_creates_its_groups(number: int, tmp_path: Path) -> None:
    layout, fault = draw("groups", number)
    write_spec(tmp_path, layout)
    ended = run(tmp_path, fault)
    say("groups", layout, fault, ended.after_s)
    assert (ended.struck, ended.code, ended.blamed) == (True, 1, fault["rank"]), ended.err
    assert ended.after_s < TIMEOUT + 10
    assert ended.orphans == []


@pytest.mark.parametrize("number", range(EACH))
@pytest.mark.parametrize("kind", ["nan_loss", "nan_gradient"])
def test_numbers_that_are_not_finite(
    kind: str, number: int, tmp_path: Path, undisturbed: Any
) -> None:
    """Two in a row end the run, the rank named; what was saved before them goes on to the bit."""
    layout, fault = draw(kind, number)
    if kind == "nan_loss":
        fault["rank"] = 3 if layout == "dp2 to pp2" else 2 + number % 2
    write_spec(tmp_path, layout)
    ended = run(tmp_path, fault)
    say(kind, layout, fault, ended.after_s)
    assert (ended.struck, ended.code) == (True, 1), ended.err
    steps = min(2, STEPS - fault["step"] + 1)
    assert ended.out.count("SKIPPED") == steps, ended.out
    what = "loss" if kind == "nan_loss" else "gradient"
    said = f"{what} of {ended.err.partition(f'{what} of ')[2].split()[0]} on rank {fault['rank']}"
    assert said in ended.err, ended.err
    assert ended.orphans == []
    check_resume(tmp_path, undisturbed(layout), step=fault["step"])


@pytest.mark.parametrize("number", range(EACH))
def test_a_corrupt_sample_is_left_out(number: int, tmp_path: Path) -> None:
    """Reported by its id, the same on all ranks; a killed run resumes to the same curve."""
    layout, fault = draw("bad_samples", number)
    fault["ids"] = step_ids(tmp_path, layout, fault["step"])[:3]
    write_spec(tmp_path, layout)
    ended = run(tmp_path, fault)
    assert ended.code == 0, ended.err
    records = curve(tmp_path)
    bad = [record["bad_samples"] for record in records]
    assert 1 <= bad[fault["step"] - 1] <= 3, bad
    assert sum(bad) == bad[fault["step"] - 1]
    assert f"planted: {fault['ids'][0]}" in ended.out or bad[fault["step"] - 1] < 3
    for checkpoint in (tmp_path / "runs/broken/checkpoints").glob(f"step-{STEPS:08d}*"):
        shutil.rmtree(checkpoint)
    again = run(tmp_path, fault)
    assert again.code == 0, again.err
    assert curve(tmp_path) == records


@pytest.mark.parametrize("number", range(EACH))
def test_a_damaged_newest_checkpoint(number: int, tmp_path: Path, undisturbed: Any) -> None:
    """A bit flips in any file of the newest checkpoint: it is named, the one before is taken."""
    layout, fault = draw("kill", 100 + number)
    fault["step"] = STEPS - 1
    write_spec(tmp_path, layout)
    # Steps are short: of saves beside them only the first may be complete at the end.
    at_once = ("--set", "checkpoint.asynchronous=false")
    assert run(tmp_path, fault, *at_once).code == 75
    step = newest(tmp_path)
    assert step >= 2 * EVERY
    source = random.Random(f"{SEED}/{number}")
    folder = tmp_path / "runs/broken/checkpoints" / f"step-{step:08d}"
    file = source.choice(sorted(folder.iterdir()))
    data = bytearray(file.read_bytes())
    data[source.randrange(len(data))] ^= 1 << source.randrange(8)
    file.write_bytes(data)
    ended = run(tmp_path, None, *at_once)
    print(f"damaged        {layout:<14} {file.name}")
    assert ended.code == 0, ended.err
    assert f"step-{step:08d}" in ended.out
    assert curve(tmp_path) == undisturbed(layout)


@pytest.mark.parametrize("number", range(SAVES))
def test_killed_during_a_save(number: int, tmp_path: Path, undisturbed: Any) -> None:
    """At a random moment of it: at most that one save is lost."""
    layout, fault = draw("save", number)
    source = random.Random(f"{SEED}/moment/{number}")
    # A save takes 0.1 s, and the steps after the sixth take longer than 0.2 s.
    fault |= {"step": source.choice([3, 6]), "delay": source.uniform(0, 0.2)}
    write_spec(tmp_path, layout)
    ended = run(tmp_path, fault)
    assert ended.struck, ended.err
    found = newest(tmp_path)
    moment = f"step {fault['step']}, {fault['delay'] * 1e3:4.0f} ms into it"
    print(f"save           {layout:<14} {moment}: {found} left")
    assert found >= fault["step"] - EVERY
    assert ended.orphans == []
    again = run(tmp_path, None)
    assert again.code == 0, again.err
    assert curve(tmp_path) == undisturbed(layout)


@pytest.fixture
def small_disk(tmp_path: Path) -> Any:
    """A disk of 8 MB at `runs` in a namespace of its own; yields the command that enters it."""
    (tmp_path / "runs").mkdir()
    script = f"mount -t tmpfs -o size=8m none {tmp_path}/runs && echo ready && exec sleep 600"
    command = ["unshare", "-Urm", "sh", "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        if not holder.stdout.readline():
            pytest.skip("user namespaces are not permitted here")
        target = str(holder.pid)
        yield ("nsenter", "-t", target, "-U", "-m", "--preserve-credentials", f"--wdns={tmp_path}")
        holder.kill()


@pytest.mark.parametrize("rule", ["continue", "stop"])
@pytest.mark.parametrize("step", [6, 9])
def test_a_full_disk(
    rule: str, step: int, tmp_path: Path, small_disk: tuple[str, ...], undisturbed: Any
) -> None:
    """Reported; the checkpoint before stays whole; training goes on or stops by the spec."""
    layout = "colocated"
    write_spec(tmp_path, layout)
    setting = ("--set", f"train.on_write_error={rule}")
    fault = {"kind": "full_disk", "rank": 0, "step": step}
    ended = run(tmp_path, fault, *setting, inside=small_disk)
    print(f"full_disk      {layout:<14} step {step}, {rule}\n{ended.err}")
    assert (ended.struck, ended.code) == (True, 1), ended.err
    last = int(re.findall(r"^step +(\d+)", ended.out, flags=re.MULTILINE)[-1])
    if rule == "stop" and "/metrics.jsonl'" in ended.err:  # A line of metrics did not fit before.
        assert "No space left on device: 'runs/broken/metrics.jsonl'" in ended.err
        assert step <= last < STEPS
    else:
        assert "No space left on device" in ended.out
        assert "the last checkpoint could not be written" in ended.err
        # The failure of an asynchronous save is known a step or more after it began.
        assert last == STEPS or (rule == "stop" and last > step), ended.out

    def inside(*command: str) -> str:
        return subprocess.run(
            [*small_disk, *command], check=True, capture_output=True, text=True
        ).stdout

    complete = inside("sh", "-c", "ls runs/broken/checkpoints/*/checkpoint.json")
    assert f"step-{step - EVERY:08d}" in complete
    inside("rm", "runs/ballast")
    again = run(tmp_path, None, *setting, inside=small_disk)
    assert again.code == 0, again.err
    (tmp_path / "out/runs/broken").mkdir(parents=True)
    text = inside("cat", "runs/broken/metrics.jsonl")
    (tmp_path / "out/runs/broken/metrics.jsonl").write_text(text)
    assert curve(tmp_path / "out") == undisturbed(layout)
