"""The losses on the page about losses of one's own train, are proved, and are refused as said."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from tests.docs.test_custom_modules import read, train
from tests.docs.test_docs import ROOT, blocks, write_files
from tests.support.proof import failures
from tests.support.shards import tokenizer_folder
from yaml import safe_load

from mimo_launch.data.shard_samples import ShardSamples
from mimo_launch.launcher.forking import custom_class_fault
from mimo_launch.spec.spec import UserData
from mimo_launch.verify.proof import verify_spec
from mimo_launch.verify.shrink import shrink

PAGE = ROOT / "docs" / "custom-losses.md"
# The loss of the whole spec, then the others.
SETTINGS: list[tuple[str, ...]] = [
    (),
    *(
        (f"modules.language.loss={json.dumps(safe_load(block.text)['loss'])}",)
        for block in blocks(PAGE)
        if block.language == "yaml" and block.text.startswith("loss:")
    ),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files of the page and a tokenizer, in the current folder."""
    write_files(PAGE, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("my_losses", "my_taught"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    tokenizer_folder(tmp_path / "models" / "tokenizer")
    return tmp_path


@pytest.mark.parametrize("settings", SETTINGS, ids=["weighted", "distilled", "scored"])
def test_the_losses_are_taken_and_proved(folder: Path, settings: tuple[str, ...]) -> None:
    spec = read("taught.yaml", *settings)
    assert custom_class_fault(spec) == ""
    assert failures(verify_spec(shrink(spec))) == []
    assert isinstance(spec.data, UserData)
    found = ShardSamples(spec, spec.data)
    assert found.num_samples("train") == 64
    assert spec.language.loss is not None
    assert found.columns("train", 3).keys() == spec.language.loss.columns.keys()


@pytest.mark.parametrize(
    ("grid", "first"),
    [("{tp: 2, cp: 2}", "1.0"), ("{pp: 2, dp: 2}", "1.0 / (number % 5)")],
    ids=["tp cp", "pp dp, bad samples"],
)
def test_columns_of_records_reach_the_loss_of_packed_records(
    folder: Path, grid: str, first: str
) -> None:
    """On the data of the page, not on random ones."""
    source = folder / "my_taught.py"
    source.write_text(source.read_text().replace("[1.0] * last", f"[{first}] * last"))
    exact = ("train.precision=fp64", "train.steps=2", "optimizer.kind=sgd", "optimizer.lr=0.5")
    spec = read("taught.yaml", f"modules.language.grid={grid}", *exact, "data.packing=true")
    assert failures(verify_spec(spec)) == []


def test_the_refusal_on_the_page_is_that_of_a_mean(folder: Path) -> None:
    (folder / "my_losses.py").write_text(
        "import torch\n\n\ndef mean(tokens):\n    return tokens.cross_entropy().mean()\n"
    )
    said = custom_class_fault(read("taught.yaml", "modules.language.loss.kind=my_losses:mean"))
    shown = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert f"error: {said.replace(str(folder), '/home/me')}" in shown


@pytest.mark.example
def test_weights_of_a_loss_are_new_in_a_run_and_left_out_of_an_export(folder: Path) -> None:
    saving, scored = ("--steps", "2", "--set", "checkpoint={every: 2}"), ("--set", *SETTINGS[2])
    assert train("taught.yaml", *saving).returncode == 0
    more = ("--set", "init_from=runs/taught", "--set", "name=more")
    found = train("taught.yaml", *saving, *scored, *more)
    assert found.returncode == 0, found.stderr
    command = [sys.executable, "-m", "mimo_launch", "export", "runs/more", "--to", "made"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    with safe_open(folder / "made" / "model.safetensors", "numpy") as file:
        assert not [name for name in file.keys() if "loss" in name or "score" in name]  # noqa: SIM118


@pytest.mark.example
@pytest.mark.parametrize("settings", SETTINGS, ids=["weighted", "distilled", "scored"])
def test_the_losses_are_learnt_and_go_on(folder: Path, settings: tuple[str, ...]) -> None:
    saving = ("checkpoint={every: 10}", "optimizer.lr=3e-3", *settings)
    words = [word for each in saving for word in ("--set", each)]
    first = train("taught.yaml", *words, "--steps", "10")
    assert first.returncode == 0, first.stderr
    more = train("taught.yaml", *words, "--set", "modules.language.grid={pp: 2, dp: 2}")
    assert (more.returncode, "resumes after step 10" in more.stdout) == (0, True), more.stderr
    lines = (folder / "runs" / "taught" / "metrics.jsonl").read_text().splitlines()
    losses = [record["loss"] for record in map(json.loads, lines) if "loss" in record]
    assert len(losses) == 20
    assert np.mean(losses[-3:]) < np.mean(losses[:3])
