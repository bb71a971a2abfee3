"""`mimo-launch train` with TensorBoard and Weights & Biases: real workers, a resumed run."""

from pathlib import Path

import pytest
from tests.cli.test_train import finish, metrics, start
from tests.support.tensorboard_files import curves
from tests.support.wandb_files import history

LOG = "log={tensorboard: true, wandb: {project: p, mode: offline}}"
ARGS = ("--set", LOG, "--set", "checkpoint={every: 2}", "--steps")


@pytest.mark.faults
def test_a_resumed_run_is_one_curve_and_a_failing_listener_stops_nothing(tmp_path: Path) -> None:
    code, out, err = finish(start(tmp_path, *ARGS, "2"))
    assert (code, err) == (0, ""), out
    run = tmp_path / "runs" / "tiny"
    (file,) = (run / "wandb").glob("offline-run-*/*.wandb")
    points = {row["_step"]: row for row in history(file)}
    assert points[2]["train/loss"] == metrics(tmp_path)[1]["loss"]
    assert "checkpoint/seconds" in points[2]
    (run / "wandb-id").unlink()
    (run / "wandb-id").mkdir()
    code, out, err = finish(start(tmp_path, *ARGS, "4"))
    assert (code, err) == (0, ""), out
    assert out.count("warning: Weights & Biases: [Errno 21] Is a directory") == 1
    shown = curves(run / "tensorboard")
    assert [step for step, _ in shown["train/loss"]] == [1, 2, 3, 4]
    assert [step for step, _ in shown["checkpoint/seconds"]] == [2, 4]
    losses = [record["loss"] for record in metrics(tmp_path) if "loss" in record]
    assert [value for _, value in shown["train/loss"]] == [round(loss, 4) for loss in losses]
