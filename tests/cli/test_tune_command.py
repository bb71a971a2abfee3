"""`tune` from the outside: its table, specs, JSON, and what it refuses."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.published import MODELS

from mimo_launch.checks.load_and_check import load_and_check
from mimo_launch.estimate.estimates import Estimator
from mimo_launch.plan.plan import Plan
from mimo_launch.spec import yaml_source

Cli = Callable[[str], tuple[int, str, str]]
SPEC = "../../topologies/quickstart.yaml"
SHORT = "--gpus 2 --seconds 1 --top 3"


def step_of(file: Path) -> float:
    checked = load_and_check(file)
    assert checked.spec is not None, checked.diagnostics
    return Estimator.of(Plan.of(checked.spec)).estimates().step_seconds


def test_specs_are_ready_to_run_and_say_why(run_cli: Cli, tmp_path: Path) -> None:
    code, out, err = run_cli(f"tune {SPEC} {SHORT} --json --to {tmp_path}/found")
    assert (code, err) == (0, f"wrote 3 specs to {tmp_path}/found\n")
    record = json.loads(out)
    files = sorted((tmp_path / "found").iterdir())
    assert [file.name for file in files] == ["01.yaml", "02.yaml", "03.yaml"]
    for file, row in zip(files, record["layouts"], strict=True):
        assert step_of(file) == pytest.approx(row["step_seconds"])
        text = file.read_text()
        assert text.startswith("# The fastest of 3 " if row["number"] == 1 else "# Number ")
        # The comments of the spec stay.
        assert "# A vision encoder and a language model that read strips" in text
    code, out, _ = run_cli(f"tune {SPEC} --explain {files[0]} {files[2]}")
    assert code == 0
    assert "the step" in out


def test_a_model_folder_is_tuned_without_a_spec(run_cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "Qwen3-VL-4B"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(MODELS[folder.name][0]))
    more = "--gpus 8 --gpu h100-80gb --set batch.global=64 --seconds 1 --top 1"
    code, out, err = run_cli(f"tune {folder} {more} --to {tmp_path}/found")
    assert code == 0, err
    assert "limit: " in out
    checked = load_and_check(tmp_path / "found" / "01.yaml", only_plans=True)
    assert checked.spec is not None
    assert checked.spec.batch.global_ == 64
    assert checked.spec.nodes is not None
    assert (checked.spec.nodes.gpus, checked.spec.nodes.gpu) == (8, "h100-80gb")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--gpu h100", "no GPU has the name h100; did you mean"),
        ("--keep batch.global=8", "`batch.global` is no part of a layout"),
        ("--keep modules.language.grid.tp", "write a path and a value: --keep modules.language."),
        ("--data shards.tar", "--data is for model folders"),
        ("--gpus 2 --keep modules.language.grid.tp=3", "no layout on 2 GPUs is legal with"),
        ("--fewer --explain 1 2", "--fewer shows speeds alone"),
        ("--fewer --to found", "--fewer shows speeds alone"),
    ],
)
def test_what_tune_cannot_do_is_refused_with_a_remedy(run_cli: Cli, line: str, said: str) -> None:
    code, out, err = run_cli(f"tune {SPEC} {line}")
    assert (code, out) == (2, "")
    assert said in " ".join(err.split())


def test_a_layout_is_not_tuned_over_itself(run_cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "01.yaml"
    file.write_text((Path(__file__).parent / SPEC).resolve().read_text(), encoding="utf-8")
    code, out, err = run_cli(f"tune {file} --to {tmp_path} --seconds 1")
    assert (code, out) == (2, "")
    assert "01.yaml would be overwritten" in " ".join(err.split())


def test_a_dash_stands_for_the_standard_input(
    run_cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (Path(__file__).parent / SPEC).resolve().read_bytes()
    monkeypatch.setattr(yaml_source, "_stdin", lambda: text)
    code, out, err = run_cli("tune - --seconds 1 --top 1")
    assert code == 0, err
    assert "limit: " in out


def test_two_specs_are_compared_with_the_settings_and_constants_of_the_line(run_cli: Cli) -> None:
    line = f"tune {SPEC} --explain {SPEC} {SPEC}"
    code, out, err = run_cli(f"{line} --set batch.global=96")
    assert code == 0, err
    assert out != run_cli(line)[1]
    assert run_cli(f"{line} --calibration missing.json")[0] == 2


def test_fewer_gpus_are_shown_with_their_speed(run_cli: Cli) -> None:
    code, out, err = run_cli(f"tune {SPEC} --gpus 2 --seconds 1 --fewer")
    assert code == 0, err
    assert [line.split()[0] for line in out.splitlines()[:2]] == ["1", "2"]
    assert "The fewest that lose less than 5% are " in out
