"""Going on with a run, as far as it is decided before a worker starts."""

from pathlib import Path

import pytest
from tests.unit.test_run_folder import add_checkpoint

from mimo_launch.cli.app import run
from mimo_launch.runtime.progress import Best

SPEC = str(Path(__file__).parents[1] / "fixtures" / "tiny_train.yaml")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs" / "tiny"


def test_resume_without_a_checkpoint_is_a_usage_error(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["train", SPEC, "--resume"]) == 2
    out, err = capsys.readouterr()
    assert out.count("\n") == 1
    assert "there is no complete checkpoint in runs/tiny" in err
    assert not folder.exists()


def test_a_finished_run_says_how_to_go_on(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add_checkpoint(folder, 4)
    assert run(["train", SPEC]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "runs/tiny is finished: 4 steps are done" in out
    assert "raise train.steps" in out
    assert "--no-resume" in out
    assert [path.name for path in folder.iterdir()] == ["checkpoints"]


def test_a_run_that_ended_early_says_why_and_how_to_go_on(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_checkpoint(folder, 3, best=Best(1, 0.5, since=2))
    assert run(["train", SPEC, "--set=eval={every: 1, stop_after: 2}"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    why = "3 steps are done, 2 evaluations were no better than that of step 1"
    assert f"runs/tiny is finished: {why}\n  to continue, raise eval.stop_after;" in out


def test_a_disk_without_room_for_checkpoints_is_said_before_a_worker_starts(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Embedding and head of 66 million million weights; what was there before stays as it is."""
    sizes = "vocab_multiple=2000000000", "hidden=16384"
    large = [f"--set=modules.language.model.{size}" for size in sizes]
    add_checkpoint(folder, 2)
    assert run(["train", SPEC, *large, "--set=checkpoint={every: 1}"]) == 1
    out, err = capsys.readouterr()
    assert out.count("\n") == 1
    assert "error: runs/tiny has no room for checkpoints: 2 of 786 TB need 1.57 PB, and its" in err
    assert "= help: `--runs DIR` on a larger one, or `--set checkpoint=none` to save nothing" in err
    assert [path.name for path in folder.iterdir()] == ["checkpoints"]


@pytest.mark.parametrize("ranks", ["x", "3-1", ""])
def test_ranks_to_show_that_are_none_are_a_usage_error(
    folder: Path, capsys: pytest.CaptureFixture[str], ranks: str
) -> None:
    assert run(["train", SPEC, "--console-ranks", ranks]) == 2
    assert "--console-ranks" in capsys.readouterr().err


def test_a_finished_run_of_epochs_says_to_raise_these(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two epochs of 12 samples in steps of 8; `steps: 4` of the file are more."""
    add_checkpoint(folder, 3)
    assert run(["train", SPEC, "--set=train.epochs=2", "--set=data.samples=12"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "3 steps are done\n  to continue, raise train.epochs;" in out
    # Smaller steps take no sample more often.
    halved = ["--set=batch.global=4", "--set=schedule.microbatches=1"]
    assert run(["train", SPEC, "--set=train.epochs=2", "--set=data.samples=12", *halved]) == 0
    assert "3 steps are done" in capsys.readouterr().out
