"""`mimo-launch plan` from the outside: output, exit codes, what it imports, and how fast it is."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest
from tests.cli.test_start_time import IMPORTS, cpu_seconds

from mimo_launch.cli.app import run
from mimo_launch.drawing import layer_rows, rows
from mimo_launch.estimate import rows as estimate_rows
from mimo_launch.plan import plan as plan_module
from mimo_launch.plan.plan import Plan
from mimo_launch.schedule.generate import generate
from mimo_launch.search import answer
from mimo_launch.spec.load import load_spec

ROOT = Path(__file__).parents[2]
GOLDEN = sorted((Path(__file__).parent / "golden" / "plan").glob("*.txt"))
TOPOLOGIES = sorted((ROOT / "topologies").glob("*.yaml"))


@pytest.fixture(autouse=True)
def in_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_says_what_the_file_says(
    path: Path, golden: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The hash covers the version and every default of the spec.
    monkeypatch.setattr(Plan, "identity", "0" * 12)
    golden(path)


def test_json_has_the_program_of_every_rank(capsys: pytest.CaptureFixture[str]) -> None:
    for file in TOPOLOGIES:
        assert run(["plan", str(file), "--json", "--no-advice"]) == 0
        plan = json.loads(capsys.readouterr().out)
        assert plan["version"] == 1
        made = load_spec(file).spec
        assert made is not None
        programs = Plan.of(made).training
        for row in plan["schedule"]["programs"]:
            for rank in row["ranks"]:
                texts = ["+".join(str(action) for action in slot) for slot in programs[rank]]
                assert row["program"].split() == texts


# Each at the narrowest width, where lines wrap; one in eight at wider ones, too.
WIDTHS = [
    pytest.param(
        file, width, marks=() if width == 60 or not i % 8 else pytest.mark.sweep,
        id=f"{file.stem}-{width}",
    )
    for i, file in enumerate(TOPOLOGIES)
    for width in (60, 100, 200)
]  # fmt: skip


@pytest.mark.parametrize(("file", "width"), WIDTHS)
def test_every_topology_fits_the_width(
    file: Path, width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    for more, title in (
        (["--no-advice"], "Where the time goes"),
        (["--full"], "Schedule:"),
        (["--rank", "0"], "Schedule:"),
    ):
        assert run(["plan", str(file), *more]) == 0
        out = capsys.readouterr().out
        assert title in out
        assert all(len(line) <= width for line in out.splitlines())


@pytest.mark.parametrize("flag", ["auto", "never"])
def test_no_escape_codes_in_a_pipe(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--color", flag, "plan", "topologies/all_text.yaml"]) == 0
    assert "\x1b" not in capsys.readouterr().out


def test_findings_go_to_stderr_as_in_validate(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["topologies/disjoint_one_to_one.yaml", "--set", "modules.vision.grid.dp=3"]
    assert run(["validate", *arguments]) == 2
    want = capsys.readouterr().err
    for more in ([], ["--json"], ["--rank", "0"]):
        assert run(["plan", *arguments, *more]) == 2
        assert capsys.readouterr() == ("", want)


def test_nproc_that_does_not_fit_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "topologies/disjoint_one_to_one.yaml", "--nproc", "4"]) == 0
    capsys.readouterr()
    assert run(["plan", "topologies/disjoint_one_to_one.yaml", "--nproc", "3"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error[")


def test_rank_beyond_the_world_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "topologies/disjoint_one_to_one.yaml", "--rank", "4"]) == 2
    assert "rank 4 is not in 0-3" in capsys.readouterr().err


def test_deadlock_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        plan_module,
        "generate",
        lambda layout: (generate(layout)[0][::-1], *generate(layout)[1:]),
    )
    for more in ([], ["--json"], ["--rank", "1"]):
        assert run(["plan", "topologies/disjoint_one_to_one.yaml", *more]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert "does not end" in err
        assert "rank 0 comes to vision.0B3 before vision.0F3" in err


def test_calibration_changes_what_fits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "large.json"
    file.write_text('{"version": 1, "constants": {"context_memory": 60}}')
    arguments = [
        "plan",
        "topologies/disjoint_one_to_one.yaml",
        "--set",
        "nodes={gpus: 8, gpu_memory: 40GB}",
    ]
    assert run([*arguments, "--no-advice"]) == 0
    assert "memory" not in capsys.readouterr().err
    assert run([*arguments, "--no-advice", "--calibration", str(file)]) == 2
    assert "error[memory-too-small]" in capsys.readouterr().err


def test_a_spec_that_does_not_fit_gets_changes_that_do(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    arguments = ["plan", "topologies/bench/r1_dp2_dp2.yaml", "--set", "nodes.gpu_memory=60GB"]
    assert run(arguments) == 2
    out, err = capsys.readouterr()
    assert "error[memory-too-small]" in err
    assert "What fits, the fastest first" in out
    assert "1. " in out
    assert "language: {" in out
    assert max(map(len, out.splitlines())) <= 60
    assert run([*arguments, "--no-advice"]) == 2
    out = capsys.readouterr().out
    assert "does not fit: " in out
    assert "What fits" not in out


def test_json_has_the_changes_by_which_a_spec_fits(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """`--apply` writes one that does: no error is left, and the command succeeds."""
    arguments = ["plan", "topologies/bench/r1_dp2_dp2.yaml", "--set", "nodes.gpu_memory=60GB"]
    first, last = tmp_path / "first.yaml", tmp_path / "last.yaml"
    assert run([*arguments, "--json", "--apply", "1", "-o", str(first)]) == 0
    plan = json.loads(capsys.readouterr().out)
    changes, tried = plan["fitting"]["changes"], plan["fitting"]["tried"]
    assert plan["answer"]["fit"]["needed_bytes"] > plan["answer"]["fit"]["gpu_memory"]
    assert all(each["needed_bytes"] < 60e9 for each in changes)
    assert plan["fitting"]["compared"] > sum(tried.values()) > 9
    assert len(changes) > 1
    assert run([*arguments, "--apply", str(len(changes)), "-o", str(last)]) == 0
    capsys.readouterr()
    for change, new in ((changes[0], first), (changes[-1], last)):
        assert run(["plan", str(new), "--json", "--no-advice"]) == 0
        step = json.loads(capsys.readouterr().out)["answer"]["step_seconds"]
        assert step == pytest.approx(change["step_seconds"], abs=1e-8)
    assert run([*arguments, "--json", "--no-advice"]) == 2
    assert "fitting" not in json.loads(capsys.readouterr().out)


def test_apply_writes_the_change_of_a_number_and_what_was_set(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = ["plan", "topologies/quickstart.yaml", "--set", "optimizer.lr=0.5"]
    new = tmp_path / "new.yaml"
    assert run([*arguments, "--apply", "1", "-o", str(new), "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == f"wrote {new}\n"
    change = json.loads(out)["answer"]["losses"][0]["change"]
    assert run(["plan", str(new), "--json", "--no-advice"]) == 0
    answer = json.loads(capsys.readouterr().out)["answer"]
    assert answer["step_seconds"] == pytest.approx(change["step_seconds"], abs=1e-8)
    made = load_spec(new).spec
    assert made is not None
    assert made.optimizer.lr == 0.5
    text = (ROOT / "topologies" / "quickstart.yaml").read_text()
    assert new.read_text().partition("\n")[0] == text.partition("\n")[0]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--apply", "1"], "into which file? Add -o new.yaml"),
        (["-o", "new.yaml"], "with which change? Add --apply 1"),
        (["-o", "train.steps=3"], "a setting? Write --set train.steps=3"),
        (["--apply", "1", "-o", "new.yaml", "--rank", "0"], "--rank shows no changes"),
        (["--apply", "1", "-o", "new.yaml", "--no-advice"], "--no-advice shows no changes"),
        (["--apply", "1", "-o", "topologies/quickstart.yaml"], "be written over the spec"),
        (["--apply", "7", "-o", "new.yaml"], "there is no change 7 = help: write --apply 1"),
    ],
)
def test_a_change_that_cannot_be_written_is_refused(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", "topologies/quickstart.yaml", *options]) == 2
    assert said in " ".join(capsys.readouterr().err.split())
    assert not Path("new.yaml").exists()


@pytest.mark.parametrize("option", ["--full", "--tokens 1T"])
def test_what_one_rank_does_not_show_is_refused(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", "topologies/quickstart.yaml", "--rank", "0", *option.split()]) == 2
    assert (
        f"for {option.split(maxsplit=1)[0]}: --rank shows a rank alone" in capsys.readouterr().err
    )


def test_calibration_changes_the_estimates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "slow.json"
    file.write_text('{"version": 1, "device": "abacus", "constants": {"step_overhead": 5000}}')
    arguments = ["plan", "topologies/disjoint_one_to_one.yaml", "--calibration", str(file)]
    for more in (["--full"], ["--rank", "1"]):
        assert run([*arguments, *more]) == 0
        assert "Estimates for abacus: 5." in capsys.readouterr().out
    assert run([*arguments, "--no-advice"]) == 0
    assert "Estimated for abacus and the run's own steps" in capsys.readouterr().out
    assert run([*arguments, "--json", "--no-advice"]) == 0
    estimates = json.loads(capsys.readouterr().out)["estimates"]
    assert estimates["device"] == "abacus"
    assert 5 < estimates["step_seconds"] < 5.1


def test_tokens_give_days_and_the_worst_samples_take_more_memory(
    capsys: pytest.CaptureFixture[str],
) -> None:
    answers = []
    for more in (["--tokens", "2k"], ["--tokens", "1_000", "--worst"]):
        file = "topologies/many_images.yaml"
        assert run(["plan", file, "--json", "--no-advice", *more]) == 0
        plan = json.loads(capsys.readouterr().out)
        assert plan["header"]["nominal"] == plan["answer"]["sample"]
        answers.append(plan)
    mean, worst = (each["answer"] for each in answers)
    assert mean["days"] == pytest.approx(2000 / mean["tokens_per_second"] / 86400, abs=1e-9)
    assert (worst["tokens"], worst["sample"]) == (1000, "largest")
    used = [max(each["total_bytes"] for each in plan["estimates"]["ranks"]) for plan in answers]
    assert used[1] > used[0]
    assert run(["plan", "topologies/quickstart.yaml", "--tokens", "many"]) == 2
    assert "write it as 15B" in capsys.readouterr().err


def test_no_plan_says_h200_over_the_memory_of_another_gpu(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for nodes, device in (
        ("{gpus: 8, gpu: h100-80gb}", "NVIDIA H100 80GB"),
        ("{gpus: 8, gpu_memory: 80GB}", "GPUs of 80.0 GB with the rates of an NVIDIA H200"),
        ("{gpus: 8, gpu_memory: 141GB}", "NVIDIA H200"),
        ("{gpus: 8, gpu: h200-141gb, gpu_memory: 80GB}", "NVIDIA H200 limited to 80.0 GB"),
        ("{gpus: 8, gpu: h200-141gb, gpu_memory: 141GB}", "NVIDIA H200"),
    ):
        setting = f"nodes={nodes}"
        file = "topologies/quickstart.yaml"
        assert run(["plan", file, "--set", setting, "--json", "--no-advice"]) == 0
        estimates = json.loads(capsys.readouterr().out)["estimates"]
        assert estimates["device"] == device


def test_faulty_calibration_is_a_usage_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "faulty.json"
    file.write_text('{"version": 1, "constants": {"step_overheads": 5}}')
    arguments = ["plan", "topologies/disjoint_one_to_one.yaml", "--calibration"]
    assert run([*arguments, str(file)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "did you mean `step_overhead`" in err
    assert run([*arguments, str(tmp_path / "absent.json")]) == 2
    assert "no such file" in capsys.readouterr().err


def test_help_begins_with_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "--help"]) == 0
    out = capsys.readouterr().out
    assert out.index("Examples:") < out.index("Say whether a job fits")


def test_every_key_is_documented() -> None:
    text = (ROOT / "docs" / "plan-json.md").read_text()
    names = {
        field.name
        for module in (rows, layer_rows, estimate_rows, answer)
        for kind in vars(module).values()
        if isinstance(kind, type) and kind.__module__ == module.__name__
        if hasattr(kind, "__dataclass_fields__")
        for field in fields(kind)
    }
    documented = set(re.findall(r"`(?:\w+\[\]\.)?(\w+)`", text))
    assert names <= documented


def test_plan_is_quick_and_imports_no_torch() -> None:
    code = (
        "import sys; from mimo_launch.cli.app import run\n"
        "code = run(['plan', 'topologies/full_sharding.yaml', '--no-advice'])\n"
        "print(code, sorted({'torch'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.split() == ["0", "[]"]
    # Beside other work 8 to 11 times.
    most = 14 * cpu_seconds("-c", IMPORTS)
    assert cpu_seconds("-c", code, enough=most) < most


def test_a_large_vocabulary_moves_layers_to_the_first_stage(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The output layer of the last of two stages takes as long as two and a half layers."""
    assert run(["plan", "topologies/bench/r1_dp2_pp2.yaml"]) == 0
    out = capsys.readouterr().out
    assert "into stages of 9 and 7 layers" in " ".join(out.split())
    assert "       language: {stages: [9, 7]}\n" in out
