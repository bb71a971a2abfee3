"""`mimo-launch train` from the outside: processes, run folders, exit codes, failures."""

import gzip
import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.faulty_train import EVERY_RANK, Launcher

from mimo_launch.cli.app import run
from mimo_launch.launcher.network import WorkerStore
from mimo_launch.launcher.worker_processes import children

SPEC = Path(__file__).parents[1] / "fixtures" / "tiny_train.yaml"
TOPOLOGIES = Path(__file__).parents[2] / "topologies"
TRAIN = [sys.executable, "-m", "mimo_launch", "train", str(SPEC)]
Ended = tuple[int | None, str, str]


def train(folder: Path, *args: str, file: Path = SPEC, fault: str = "none") -> Ended:
    """Run the command in a fork of this process, which takes a second instead of seven."""
    name = f"launcher-{len(list(folder.glob('*.out')))}"
    launcher = Launcher(folder, fault, EVERY_RANK, 1, "train", str(file), *args, name=name)
    return launcher.finish(120)


def start(folder: Path, *args: str, program: list[str] = TRAIN) -> subprocess.Popen[str]:
    environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
    return subprocess.Popen(
        [*program, *args],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def metrics(folder: Path) -> list[dict]:
    lines = (folder / "runs" / "tiny" / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    return [record for record in records if "resumed_from" not in record]


# Notes which process makes the programs of a plan, and which proves them.
NOTED = """
import os
from mimo_launch.cli.app import main
from mimo_launch.plan import plan as plans

def noted(name):
    made = getattr(plans, name)
    def note(*args):
        with open(name, "a") as file:
            file.write(f"{os.getpid()} ")
        return made(*args)
    setattr(plans, name, note)

noted("generate"), noted("proven")
main()
"""


def test_workers_inherit_the_plan_that_their_launcher_has_made_and_proved(tmp_path: Path) -> None:
    program = [sys.executable, "-c", NOTED, "train", str(SPEC), "--steps", "1"]
    launcher = start(tmp_path, "--nproc", "2", "--set", "eval=null", program=program)
    code, _, err = finish(launcher)
    assert (code, err) == (0, "")
    for name in ("generate", "proven"):
        assert set((tmp_path / name).read_text().split()) == {str(launcher.pid)}


def test_no_thread_answers_workers_while_others_are_forked(tmp_path: Path) -> None:
    """One that did would hold a lock of the C library at a fork, and hang a worker now and then."""
    noted = tmp_path / "noted"

    def note() -> None:
        serve, children_before = WorkerStore.serve, len(children())

        def spied(store: WorkerStore) -> None:
            noted.write_text(str(len(children()) - children_before))
            serve(store)

        WorkerStore.serve = spied  # type: ignore[method-assign]

    arguments = ("train", str(SPEC), "--set", "train.steps=1")
    code, _, err = Launcher(tmp_path, "none", EVERY_RANK, 1, *arguments, enter=note).finish(120)
    assert (code, noted.read_text()) == (0, "2"), err


def test_a_run_leaves_metrics_spec_and_plan(tmp_path: Path) -> None:
    code, out, err = train(tmp_path, "--nproc", "2")
    assert (code, err) == (0, "")
    assert "language: rank 1" in out
    assert "step      4  loss" in out
    assert "step      3  loss" not in out
    steps = metrics(tmp_path)
    assert [record.get("step") for record in steps] == [1, 2, 3, 4, 4]
    assert set(steps[0]) == {
        "step", "loss", "grad_norm", "grad_norms", "lr", "lrs", "tokens", "tokens_per_s", "skipped",
        "bad_samples", "time", "step_s", "tflop", "tflops_per_rank", "peak_memory",
    }  # fmt: skip
    for step in steps[:4]:
        assert step["tokens"] / step["tokens_per_s"] == pytest.approx(step["step_s"])
    assert steps[0]["time"] < steps[3]["time"]
    assert min(steps[0]["tflop"].values()) > 0
    work = 2 * steps[0]["tflops_per_rank"] * steps[0]["step_s"]
    assert sum(steps[0]["tflop"].values()) == pytest.approx(work)
    assert min(steps[3]["peak_memory"].values()) > 50e6
    assert set(steps[0]["grad_norms"]) == {"vision", "language"}
    assert set(steps[-1]) == {"step", "eval_loss", "digit_accuracy", "samples"}
    run = tmp_path / "runs" / "tiny"
    plan = json.loads((run / "plan.json").read_text())
    assert plan["header"]["plan_hash"] in out
    assert "global: 8" in (run / "spec.yaml").read_text()


def test_too_few_open_files_are_said_before_a_worker_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With 60 workers ended in the midst of gloo, with 15 the launcher waited for five minutes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (60, 60))
    assert run(["train", str(SPEC)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "error: this process may have 60 files open, and 2 workers need 76",
        "   = help: raise the limit with `ulimit -n 65536` as root, or that of the container "
        "(`docker run --ulimit nofile=65536`)",
    ]
    assert not (tmp_path / "runs").exists()


@pytest.mark.faults
def test_the_saved_spec_trains_the_same_run_again(tmp_path: Path) -> None:
    """The earlier run is moved aside, not overwritten, and every number repeats."""
    assert train(tmp_path)[0] == 0
    first = metrics(tmp_path)
    saved = tmp_path / "runs" / "tiny" / "spec.yaml"
    copied = tmp_path / "again.yaml"
    copied.write_text(saved.read_text())
    code, out, _ = train(tmp_path, file=copied)
    assert code == 0
    assert "an earlier run is now in runs/tiny.1" in out
    assert [r.get("loss") for r in metrics(tmp_path)] == [r.get("loss") for r in first]
    assert (tmp_path / "runs" / "tiny.1" / "metrics.jsonl").exists()


@pytest.mark.faults
def test_a_run_whose_checkpoints_are_all_damaged_does_not_start_over(tmp_path: Path) -> None:
    saving = ("--set", "checkpoint={every: 2}", "--set", "eval=null")
    assert train(tmp_path, *saving)[0] == 0
    checkpoints = sorted((tmp_path / "runs" / "tiny" / "checkpoints").iterdir())
    assert len(checkpoints) == 2
    (checkpoints[0] / "tensors.json").write_text("{}")
    checkpoints[1].rename(checkpoints[1].with_name(checkpoints[1].name + ".damaged"))
    code, out, err = train(tmp_path, *saving, "--steps", "6")
    assert code == 2
    assert [line.partition(": ")[2][:4] for line in out.splitlines()] == ["plan"]  # Nothing ran.
    assert err.startswith("error: every checkpoint in ")
    assert "step-00000002: tensors.json has 2 bytes" in err
    assert "step-00000004.damaged: it was found damaged before" in err
    assert "--no-resume starts anew" in err
    code, out, _ = train(tmp_path, *saving, "--no-resume")
    assert code == 0
    assert "an earlier run is now in runs/tiny.1" in out


def test_steps_and_overrides_are_checked_and_used(tmp_path: Path) -> None:
    code, out, _ = train(tmp_path, "--steps", "1", "--set", "eval=null")
    assert code == 0
    assert [record["step"] for record in metrics(tmp_path)] == [1]
    assert re.search(r"done: 1 steps in .* s; no checkpoint was saved\n", out)
    assert not (tmp_path / "runs" / "tiny" / "checkpoints").exists()


@pytest.mark.faults
def test_a_finished_run_without_a_section_goes_on_with_more_steps(tmp_path: Path) -> None:
    short = ("--set", "checkpoint=null", "--set", "eval=null", "--steps")
    code, out, _ = train(tmp_path, *short, "2")
    assert code == 0
    assert re.search(r"saved +2  runs/tiny/checkpoints/step-00000002 ", out)
    code, out, _ = train(tmp_path, *short, "2")
    assert (code, "runs/tiny is finished: 2 steps are done" in out) == (0, True)
    code, out, _ = train(tmp_path, *short, "3")
    assert code == 0
    assert "resumed after step 2 from runs/tiny/checkpoints/step-00000002" in out
    assert [record["step"] for record in metrics(tmp_path)] == [1, 2, 3]
    code, _, err = train(tmp_path, "--set", "modules.vision.grid.tp=3")
    assert code == 2
    assert "--set modules.vision.grid.tp=3" in err


def test_memory_of_gpus_counts_unless_processors_are_asked_for(tmp_path: Path) -> None:
    small = ("--set", "nodes={gpus: 8, gpu_memory: 100MB}", "--steps", "1")
    code, out, err = train(tmp_path, *small)
    assert (code, out) == (2, "")
    assert "error[memory-too-small]" in err
    code, _, err = train(tmp_path, *small, "--device", "cpu")
    assert (code, err) == (0, "")


def test_the_output_of_chosen_ranks_is_shown_too(tmp_path: Path) -> None:
    """Whatever a rank prints is in its log, and with its number on the console."""
    code, out, err = train(tmp_path, "--console-ranks", "1", fault="print")
    assert code == 0, err
    assert "[rank 1] hello from this rank" in out
    log = tmp_path / "runs" / "tiny" / "logs" / "attempt-0" / "rank-1" / "stdout.log"
    assert log.read_text() == "hello from this rank\n"


def test_a_wrong_number_of_processes_starts_none(tmp_path: Path) -> None:
    code, out, err = train(tmp_path, "--nproc", "3")
    assert (code, out) == (2, "")
    assert "3" in err
    assert not (tmp_path / "runs").exists()


@pytest.mark.example
def test_under_torchrun_a_process_joins_as_its_rank(tmp_path: Path) -> None:
    """Two workers of an outer torchrun: the same metrics as two of our own."""
    assert train(tmp_path)[0] == 0
    own = metrics(tmp_path)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    program = [*torchrun, "--nproc-per-node", "2", "-m", "mimo_launch", "train", str(SPEC)]
    code, out, err = finish(start(tmp_path, program=program))
    assert code == 0, err
    assert out.count("2 ranks ready") == 1
    assert [r.get("loss") for r in metrics(tmp_path)] == [r.get("loss") for r in own]


@pytest.mark.parametrize(
    "file",
    [
        pytest.param(SPEC, id="tiny_train"),
        pytest.param(
            TOPOLOGIES / "bubble_filling.yaml", marks=pytest.mark.faults, id="bubble_filling"
        ),
    ],
)
def test_a_profiled_run_does_what_the_plan_says_in_its_order(tmp_path: Path, file: Path) -> None:
    """The measured timeline has the actions of every rank's program, in their order."""
    from tests.support.timelines import parse_timeline

    from mimo_launch.checks.load_and_check import load_and_check
    from mimo_launch.drawing.spans import Unit
    from mimo_launch.layout.layout import build_layout
    from mimo_launch.schedule.generate import generate

    spec = load_and_check(file).spec
    assert spec is not None
    code, _, err = train(tmp_path, "--steps", "4", "--profile", "3", file=file)
    assert code == 0, err
    profile = tmp_path / "runs" / spec.name / "profile"
    assert {path.name for path in profile.iterdir()} == {
        "step-3.json", "step-3.svg", "step-3.trace.json",
    }  # fmt: skip
    timeline = parse_timeline((profile / "step-3.json").read_text())
    assert timeline.unit is Unit.SECONDS
    for row, program in zip(timeline.by_rank(), generate(build_layout(spec)), strict=True):
        assert [span.action for span in row] == [action for slot in program for action in slot]


def test_chosen_ranks_write_a_trace_of_torch_for_chosen_steps(tmp_path: Path) -> None:
    """What torch calls is in it, and which part of the step it belongs to."""
    profiled = ("--profile", "2-3", "--profile-ranks", "1")
    code, _, err = train(tmp_path, "--steps", "4", *profiled)
    assert code == 0, err
    profile = tmp_path / "runs" / "tiny" / "profile"
    traces = sorted(path.name for path in profile.glob("*.torch.json.gz"))
    assert traces == ["step-2-rank-1.torch.json.gz", "step-3-rank-1.torch.json.gz"]
    assert {"step-2.svg", "step-3.svg"} < {path.name for path in profile.iterdir()}
    for name in traces:
        events = json.loads(gzip.decompress((profile / name).read_bytes()))["traceEvents"]
        seen = {event["name"] for event in events if "name" in event}
        assert {"aten::mm", "update"} <= seen
        assert {"language.0F0", "language.0B0"} <= seen


def test_a_resumed_run_measures_the_steps_that_are_left_and_names_the_others(
    tmp_path: Path,
) -> None:
    """A trace of one rank that cannot be written is said once; the run goes on."""
    saving = ("--set", "checkpoint={every: 2}")
    code, _, err = train(tmp_path, "--steps", "2", *saving)
    assert code == 0, err
    folder = tmp_path / "runs" / "tiny" / "profile"
    in_the_way = [folder / f"step-{number}-rank-1.torch.json.gz" for number in (3, 4)]
    for path in in_the_way:
        path.mkdir(parents=True)
    asked = ("--profile", "1-4", "--profile-ranks", "1", "--profile-memory")
    code, out, err = train(tmp_path, "--steps", "4", *saving, *asked)
    assert code == 0, err
    told = "warning: profile: the run continues after step 2; steps 1-2 are not measured"
    assert (out + err).count(told) == 1
    assert "this run has no GPU; what ranks allocate is not recorded" in out + err
    assert {path.name for path in folder.glob("*.svg")} == {"step-3.svg", "step-4.svg"}
    assert (out + err).count("warning: profile: step") == 1
    assert "its files are incomplete; training continues" in out + err


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--profile", "3-2"], "'3-2' ends before it begins; write 2-3"),
        (["--profile", "0-2"], "steps count from 1; write 1-2"),
        (["--profile", "two"], "'two' is neither a step nor a range of steps such as 20-22"),
        (["--profile", "3-9"], "the run has 4 steps; write 3-4"),
        (["--profile", "7-9"], "the run has 4 steps; write 4"),
        (["--profile", "10"], "the run has 4 steps; write 4"),
        (["--profile", "0"], "steps count from 1; write 1"),
        (["--profile", "1-" + "9" * 5000], "is neither a step nor a range"),
        (["--profile", "1", "--profile-ranks", "0,2"], "the spec has ranks 0-1"),
        (["--profile-ranks", "0"], "which steps? Add --profile 4"),
        (["--profile", "1", "--profile-memory"], "of which ranks? Add --profile-ranks 0"),
    ],
)
def test_steps_and_ranks_that_cannot_be_profiled_are_refused(
    tmp_path: Path, options: list[str], told: str
) -> None:
    code, _, err = train(tmp_path, "--steps", "4", *options)
    assert code == 2
    assert told in " ".join(err.split())
    assert not (tmp_path / "runs").exists()
