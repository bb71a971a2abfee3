"""The classes on the pages about encoders and generators of one's own train and are proved."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.docs.test_docs import ROOT, write_files
from tests.support.proof import failures

from mimo_launch.checks.load_and_check import load_and_check
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.models.custom_stages import build_custom_stage, whole_stage
from mimo_launch.spec.spec import Spec
from mimo_launch.verify.proof import verify_spec
from mimo_launch.verify.shrink import shrink

PAGE, GENERATORS = (ROOT / "docs" / f"custom-{what}.md" for what in ("encoders", "generators"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files of the pages, in the current folder."""
    write_files(PAGE, tmp_path)
    write_files(GENERATORS, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


def read(name: str, *settings: str) -> Spec:
    checked = load_and_check(name, settings)
    assert checked.spec is not None, checked.diagnostics
    return checked.spec


def train(*args: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
    command = [sys.executable, "-m", "mimo_launch", "train", *args, "--device", "cpu"]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=600, check=False
    )


@pytest.mark.example
def test_the_first_example_learns_and_goes_on_with_another_layout(folder: Path) -> None:
    saving = ("--set", "checkpoint.every=10")
    first = train("own.yaml", *saving, "--steps", "20")
    assert (first.returncode, first.stderr) == (0, "")
    other = ("modules.vision.grid={dp: 2}", "modules.vision.sharding=full")
    settings = [
        word for each in (*other, "modules.vision.recompute=full") for word in ("--set", each)
    ]
    more = train("own.yaml", *saving, "--steps", "22", *settings)
    assert (more.returncode, more.stderr) == (0, "")
    assert "resumes after step 20" in more.stdout
    lines = (folder / "runs" / "own" / "metrics.jsonl").read_text().splitlines()
    losses = [record["loss"] for record in map(json.loads, lines) if "loss" in record]
    assert len(losses) == 22
    assert max(losses[-4:]) < min(losses[:2]) - 0.8


@pytest.mark.example
def test_the_generator_learns(folder: Path) -> None:
    ended = train("denoiser.yaml")
    assert (ended.returncode, ended.stderr) == (0, "")
    lines = (folder / "runs" / "denoiser" / "metrics.jsonl").read_text().splitlines()
    losses = [each["losses"]["denoiser"] for each in map(json.loads, lines) if "losses" in each]
    assert len(losses) == 60
    assert sum(losses[-10:]) < 0.7 * sum(losses[:10])


@pytest.mark.example
def test_a_class_that_fails_is_reported_once_and_starts_nothing(folder: Path) -> None:
    ended = train("wide.yaml", "--set", "modules.vision.model.options={}")
    (plan,) = ended.stdout.splitlines()  # Said before classes are imported.
    assert (ended.returncode, plan.startswith("wide.yaml: plan ")) == (2, True)
    (line,) = ended.stderr.splitlines()
    shown = PAGE.read_text(encoding="utf-8").replace("\n", " ")
    assert line.replace(str(folder), "/home/me") in shown
    assert not (folder / "runs").exists()


def test_the_number_of_parameters_is_right(folder: Path) -> None:
    spec = read("wide.yaml")
    network = build_custom_stage(spec, whole_stage(spec, "vision"), ParallelContext())
    assert sum(each.numel() for each in network.parameters()) == 25024
    assert "parameters: 25024" in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["own.yaml", "wide.yaml", "denoiser.yaml"])
def test_the_examples_are_proved(folder: Path, name: str) -> None:
    assert failures(verify_spec(shrink(read(name)))) == []


def test_the_gradient_that_the_page_warns_of_is_named(folder: Path) -> None:
    source = folder / "my_wide_encoder.py"
    wrong = source.read_text().replace("context.token_grad", '"complete"')
    (folder / "my_wrong_encoder.py").write_text(wrong)
    (folder / "wrong.yaml").write_text(
        (folder / "wide.yaml").read_text().replace("my_wide_encoder", "my_wrong_encoder")
    )
    found = failures(verify_spec(shrink(read("wrong.yaml"))))
    assert any("vision.layers.0.scale.weight: relative error" in each for each in found)
