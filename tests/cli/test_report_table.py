"""What a report says of each run in words."""

import errno
import json
import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
from tests.support.histories import evaluated, step, write

from mimo_launch.cli.report import ROWS
from mimo_launch.cli.report import cells as cells_of
from mimo_launch.cli.report_figure import Charts
from mimo_launch.launcher import run_folder
from mimo_launch.launcher.run_folder import ResumePoint, status_of
from mimo_launch.train.events import PlanCompared
from mimo_launch.train.history import read_history
from mimo_launch.train.metrics_file import as_record

SPEC = Path(__file__).parents[1] / "fixtures" / "tiny_train.yaml"


def cells(run: Path) -> dict[str, str]:
    return dict(zip(ROWS, cells_of(read_history(run)), strict=True))


def test_the_row_of_a_run(runs: Callable[..., Path]) -> None:
    run = runs("one")
    assert cells(run) == {
        "status": "-", "steps": "40", "last loss": "0.1000",
        "best loss": "0.1000 at step 40", "last evaluation": "0.2500", "median tokens/s": "5",
        "step, estimated": "-", "tensors on the fullest GPU, estimated": "-",
        "skipped steps": "1", "bad samples": "80", "checkpoints": "0",
        "resumed after": "-",
    }  # fmt: skip


def test_the_last_evaluation_of_each_set_is_told(runs: Callable[..., Path]) -> None:
    run = runs("one")
    write(run, step(1), evaluated(1, 0.5, "photos"), evaluated(1, 0.25, "charts"))
    assert cells(run)["last evaluation"] == "photos 0.5000; charts 0.2500"
    lines = Charts([read_history(run)], 1).loss().lines
    assert [each.name for each in lines[1:]] == ["evaluation photos", "evaluation charts"]


def test_the_newest_numbers_are_compared_with_the_plan(runs: Callable[..., Path]) -> None:
    """A resumed run may measure only one of them again."""
    run = runs("one")
    first = PlanCompared(
        step=20, estimated_step_s=2.0, measured_step_s=2.1,
        estimated_memory=50_000_000_000, measured_memory=49_000_000_000,
    )  # fmt: skip
    second = replace(first, step=40, measured_step_s=2.2, measured_memory=None)
    with (run / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(as_record(each)) + "\n" for each in (first, second))
    found = cells(run)
    assert found["step, estimated"] == "2.20 s, 2.00 s"
    assert found["tensors on the fullest GPU, estimated"] == "49.0 GB, 50.0 GB"


@pytest.mark.parametrize(("after", "status"), [("", "done"), (step(5), "step 5 of 4,000")])
def test_a_run_that_ended_early_is_done_until_it_goes_on(
    runs: Callable[..., Path], after: str, status: str
) -> None:
    run = runs("one")
    end = '{"step": 3, "ended_early": true, "best_step": 1}\n'
    write(run, step(2), step(3), evaluated(3), end, after)
    (run / "spec.yaml").write_text(SPEC.read_text().replace("steps: 4,", "steps: 4000,"))
    assert cells(run)["status"] == status


@pytest.mark.parametrize(("wanted", "status"), [(40, "done"), (100, "step 40 of 100")])
def test_the_status_of_a_run(runs: Callable[..., Path], wanted: int, status: str) -> None:
    run = runs("one")
    text = SPEC.read_text().replace("steps: 4,", f"steps: {wanted},")
    assert f"steps: {wanted}" in text
    (run / "spec.yaml").write_text(text)
    report = run / "failure.txt"
    report.write_text("an earlier attempt")
    os.utime(report, (0, 0))
    assert cells(run)["status"] == status
    os.utime(report)
    assert cells(run)["status"] == "failed, see failure.txt"


@pytest.mark.parametrize(
    ("counted", "status"), [(40, "done"), (100, "step 40 of 100"), (None, "-")]
)
def test_the_steps_of_epochs_are_in_the_plan(
    runs: Callable[..., Path], counted: int | None, status: str
) -> None:
    run = runs("one")
    (run / "spec.yaml").write_text(SPEC.read_text().replace("steps: 4,", "epochs: 2,"))
    if counted is not None:
        (run / "plan.json").write_text(json.dumps({"header": {"steps": counted}}))
    assert cells(run)["status"] == status
    assert status_of(run).steps == counted


@pytest.mark.parametrize(("saved", "status"), [(39, "failed, see failure.txt"), (40, "done")])
def test_a_run_whose_last_step_was_not_saved_has_failed(
    runs: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, saved: int, status: str
) -> None:
    """A failure after the last checkpoint loses nothing."""
    run = runs("one")
    (run / "spec.yaml").write_text(SPEC.read_text().replace("steps: 4,", "steps: 40,"))
    (run / "failure.txt").write_text("the last checkpoint could not be written")
    monkeypatch.setattr(run_folder, "newest_checkpoint", lambda run: ResumePoint(saved, run))
    assert cells(run)["status"] == status
    assert status_of(run).state == status.split(",", maxsplit=1)[0]


def test_checkpoints_that_cannot_be_read_are_named(
    runs: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = runs("one")
    (run / "spec.yaml").write_text(SPEC.read_text().replace("steps: 4,", "steps: 40,"))
    (run / "failure.txt").write_text("the last checkpoint could not be written")

    def refuse(run: Path) -> NoReturn:
        raise OSError(errno.EIO, "Input/output error", str(run / "checkpoints"))

    monkeypatch.setattr(run_folder, "newest_checkpoint", refuse)
    found = status_of(run)
    assert found.state == "unknown"
    assert found.why == f"{run / 'checkpoints'} cannot be read: Input/output error"


def test_checkpoints_are_counted_when_complete(runs: Callable[..., Path]) -> None:
    run = runs("one")
    for name in ("step-00000010", "step-00000020", "step-00000030.partial"):
        (run / "checkpoints" / name).mkdir(parents=True)
    (run / "checkpoints" / "step-00000010" / "checkpoint.json").write_text("{}")
    assert cells(run)["checkpoints"] == "1"


def test_a_run_without_a_finite_loss_has_none(runs: Callable[..., Path]) -> None:
    run = runs("one")
    write(run, step(1, math.nan))
    assert (cells(run)["last loss"], cells(run)["best loss"]) == ("-", "-")
