"""TensorBoard, W&B and MLflow: real files, resumed runs, and failures that stop nothing."""

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from tests.support.histories import USAGE
from tests.support.tensorboard_files import curves
from tests.support.wandb_files import history

from mimo_launch.checks.load_and_check import load_and_check
from mimo_launch.layout.step_views import Imbalance
from mimo_launch.spec.spec import Spec
from mimo_launch.train import mlflow_listener
from mimo_launch.train.events import (
    CheckpointSaved,
    EvalFinished,
    Event,
    ListenerFailed,
    RunFinished,
    RunStarted,
    RunStopped,
    StepFinished,
)
from mimo_launch.train.listeners import ID_FILE, listeners_of, run_id, scalars

TINY = Path(__file__).parents[1] / "fixtures" / "tiny_train.yaml"


def spec_with(log: str) -> Spec:
    checked = load_and_check(TINY, [f"log={log}"])
    assert checked.spec is not None, checked.diagnostics
    return checked.spec


def started(first_step: int = 0) -> RunStarted:
    return RunStarted(
        name="tiny", plan="abc", steps=9, world_size=2, modules=("vision", "language"),
        log_every=1, first_step=first_step,
    )  # fmt: skip


def step(number: int, loss: float) -> StepFinished:
    return StepFinished(
        step=number, loss=loss, grad_norm=2.0, grad_norms={"vision": 1.0, "language": 1.5},
        lr=1e-3, lrs={"language": 1e-3}, tokens=100, tokens_per_s=50.0, skipped=False,
        bad_samples=1, imbalance={"vision": Imbalance(1.5, 1.0625)},
        zero_grads={"vision": 7, "language": 0}, usage=replace(USAGE, mfu=0.4),
    )  # fmt: skip


def evaluated(number: int) -> EvalFinished:
    return EvalFinished(step=number, eval_loss=0.5, digit_accuracy=0.75, samples=8)


def saved(number: int) -> CheckpointSaved:
    return CheckpointSaved(step=number, checkpoint="c", num_bytes=10, stall_s=0.1, seconds=0.2)


def listen(spec: Spec, folder: Path, events: list[Event]) -> list[Event]:
    """Give events to the listeners of a spec; return what they told."""
    told: list[Event] = []
    listeners = listeners_of(spec, folder, told.append)
    for event in events:
        for each in listeners:
            each(event)
    for each in listeners:
        each.close()
    return told


def test_a_spec_without_log_has_no_listeners(tmp_path: Path) -> None:
    assert listeners_of(spec_with("{}"), tmp_path, lambda _: None) == []


def test_every_number_of_a_step_has_a_curve() -> None:
    assert scalars(step(1, 3.0)) == {
        "train/loss": 3.0, "train/grad_norm": 2.0, "train/tokens_per_s": 50.0,
        "train/skipped": 0.0, "train/bad_samples": 1.0,
        "grad_norm/vision": 1.0, "grad_norm/language": 1.5, "lr/language": 1e-3,
        "imbalance/vision": 1.0625, "imbalance_before/vision": 1.5,
        "zero_grads/vision": 7.0, "zero_grads/language": 0.0,
        "train/step_s": 0.25, "train/tflops_per_rank": 2.0, "train/mfu": 0.4,
        "peak_memory/vision": 1e9, "peak_memory/language": 2.5e9,
    }  # fmt: skip
    assert scalars(started()) == {}
    on_a_cpu = scalars(replace(step(1, 3.0), usage=USAGE))
    assert "train/mfu" not in on_a_cpu
    assert "train/step_s" in on_a_cpu


def test_an_evaluation_without_accuracy_has_no_point_for_it() -> None:
    found = scalars(EvalFinished(step=1, eval_loss=0.5, digit_accuracy=None, samples=8))
    assert found == {"eval/loss": 0.5}


def test_the_points_of_a_named_set_have_its_name() -> None:
    event = replace(evaluated(1), eval_set="photos", eval_losses={"language": 0.25})
    assert scalars(event) == {
        "eval/photos/loss": 0.5,
        "eval_loss/photos/language": 0.25,
        "eval/photos/digit_accuracy": 0.75,
    }


def test_tensorboard_shows_each_number_at_its_step(tmp_path: Path) -> None:
    events = [started(), step(1, 3.0), step(2, 2.0), evaluated(2), saved(2)]
    assert listen(spec_with("{tensorboard: true}"), tmp_path, events) == []
    found = curves(tmp_path / "tensorboard")
    assert found["train/loss"] == [(1, 3.0), (2, 2.0)]
    assert found["eval/digit_accuracy"] == [(2, 0.75)]
    assert found["checkpoint/stall_s"] == [(2, 0.1)]
    assert set(found) == {*scalars(step(1, 3.0)), *scalars(evaluated(2)), *scalars(saved(2))}


def test_tensorboard_shows_one_curve_of_a_resumed_run(tmp_path: Path) -> None:
    """The steps after the checkpoint are those of the later process."""
    spec = spec_with("{tensorboard: true}")
    first = [started(), *(step(n, 5.0 - n) for n in (1, 2, 3, 4)), evaluated(2), evaluated(4)]
    listen(spec, tmp_path, sorted(first, key=lambda event: getattr(event, "step", 0)))
    listen(spec, tmp_path, [started(2), step(3, 9.0), step(4, 8.0), step(5, 7.0)])
    found = curves(tmp_path / "tensorboard")
    assert found["train/loss"] == [(1, 4.0), (2, 3.0), (3, 9.0), (4, 8.0), (5, 7.0)]
    assert found["eval/loss"] == [(2, 0.5)]


def test_tensorboard_on_a_full_disk_stops_nothing(tmp_path: Path) -> None:
    """A limit of the size of files stands for the disk; the thread that writes gets the error."""
    code = (
        "import resource, signal, sys, time; from pathlib import Path;"
        "sys.path.insert(0, sys.argv[2]);"
        "from tests.unit.test_listeners import *;"
        "spec = spec_with('{tensorboard: true}'); told = [];"
        "(each,) = listeners_of(spec, Path(sys.argv[1]), told.append);"
        "each(started());"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096));"
        "[(each(step(n, 1.0)), told or time.sleep(0.01)) for n in range(1, 2000)];"
        "each.close();"
        "assert len(told) == 1, told; print(told[0].listener, told[0].reason)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), str(TINY.parents[2])],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("TensorBoard [Errno 27] File too large")


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[], Any]]:
    """Keep wandb away from the login and the settings of whoever runs the tests."""
    import wandb

    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_DIR", "WANDB_PROJECT", "WANDB_ENTITY"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    # Its telemetry would start threads again in every later fork of this process.
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    yield wandb
    with contextlib.suppress(Exception):
        wandb.teardown()


def files_of(folder: Path) -> list[Path]:
    return sorted((folder / "wandb").glob("offline-run-*/*.wandb"))


def test_wandb_offline_writes_every_number(tmp_path: Path, offline: Any) -> None:
    spec = spec_with("{wandb: {project: p, mode: offline}}")
    events = [started(), step(1, 3.0), step(2, 2.0), evaluated(2), step(3, 1.0), saved(2)]
    done = RunFinished(steps=3, seconds=1.0, skipped=0)
    assert listen(spec, tmp_path, [*events, done]) == []
    (file,) = files_of(tmp_path)
    assert file.stem == f"run-{run_id(tmp_path)}"
    rows = history(file)
    assert [(row["_step"], row["train/loss"]) for row in rows] == [(1, 3.0), (2, 2.0), (3, 1.0)]
    assert scalars(evaluated(2)).items() <= rows[1].items()
    assert scalars(saved(2)).items() <= rows[2].items()


def test_wandb_resumes_the_run_of_its_folder(tmp_path: Path, offline: Any) -> None:
    spec = spec_with("{wandb: {project: p, mode: offline}}")
    listen(spec, tmp_path, [started(), step(1, 3.0)])
    known = (tmp_path / ID_FILE).read_text()
    listen(spec, tmp_path, [started(1), step(2, 2.0)])
    assert (tmp_path / ID_FILE).read_text() == known
    first, second = files_of(tmp_path)
    assert first.stem == second.stem == f"run-{known.strip()}"
    assert [row["_step"] for file in (first, second) for row in history(file)] == [1, 2]


@pytest.mark.parametrize(
    ("last", "code"),
    [
        (RunFinished(steps=3, seconds=1.0, skipped=0), 0),
        (RunStopped(step=3, signal=15, checkpoint=None), 128 + 15),
        (step(3, 1.0), 1),
    ],
    ids=["finished", "stopped", "failed"],
)
def test_wandb_is_told_how_a_run_ended(
    last: Event, code: int, tmp_path: Path, offline: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Mock(step=0)
    monkeypatch.setattr(offline, "init", lambda **_: run)
    listen(spec_with("{wandb: {project: p, mode: offline}}"), tmp_path, [started(), last])
    run.finish.assert_called_once_with(exit_code=code)


def test_a_spoilt_id_is_made_up_anew(tmp_path: Path) -> None:
    (tmp_path / ID_FILE).write_text("../../elsewhere")
    made = run_id(tmp_path)
    assert made.isalnum()
    assert run_id(tmp_path) == made


def test_wandb_without_a_server_writes_offline_files(tmp_path: Path, offline: Any) -> None:
    """Nobody is logged in; nothing goes over a network."""
    spec = spec_with("{wandb: {project: p, mode: online}}")
    (told,) = listen(spec, tmp_path, [started(), step(1, 3.0)])
    assert isinstance(told, ListenerFailed)
    assert told.listener == "Weights & Biases"
    assert "API key" in told.reason
    assert "wandb sync" in told.effect
    (file,) = files_of(tmp_path)
    assert [row["train/loss"] for row in history(file)] == [3.0]


@pytest.fixture
def tracking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A client of a store of files, which MLflow asks to be allowed."""
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
    return MlflowClient()


def mlflow_run(client: Any, folder: Path) -> Any:
    return client.get_run((folder / mlflow_listener.ID_FILE).read_text().strip())


def test_mlflow_gets_every_number_and_setting(tmp_path: Path, tracking: Any) -> None:
    spec = spec_with("{mlflow: {experiment: e}}")
    events = [started(), step(1, 3.0), step(2, 2.0), evaluated(2), saved(2)]
    end = RunFinished(steps=2, seconds=1.0, skipped=0, saved=True)
    assert listen(spec, tmp_path, [*events, end]) == []
    run = mlflow_run(tracking, tmp_path)
    assert run.info.experiment_id == tracking.get_experiment_by_name("e").experiment_id
    assert (run.info.run_name, run.info.status) == ("tiny", "FINISHED")
    expected = scalars(step(2, 2.0)) | scalars(evaluated(2)) | scalars(saved(2))
    assert run.data.metrics == expected
    points = tracking.get_metric_history(run.info.run_id, "train/loss")
    assert [(point.step, point.value) for point in points] == [(1, 3.0), (2, 2.0)]
    assert run.data.params["modules.language.grid.tp"] == str(spec.language.grid.tp)
    assert run.data.params["train.steps"] == str(spec.train.steps)


def test_mlflow_resumes_the_run_of_its_folder(tmp_path: Path, tracking: Any) -> None:
    spec = spec_with("{mlflow: {experiment: e}}")
    listen(spec, tmp_path, [started(), step(1, 3.0), step(2, 2.0)])
    known = mlflow_run(tracking, tmp_path).info
    assert known.status == "FAILED"
    listen(spec, tmp_path, [started(1), step(2, 2.0), step(3, 1.0)])
    again = mlflow_run(tracking, tmp_path).info
    assert again.run_id == known.run_id
    points = tracking.get_metric_history(again.run_id, "train/loss")
    assert [point.step for point in points] == [1, 2, 3]


def test_a_run_that_mlflow_has_lost_begins_anew(tmp_path: Path, tracking: Any) -> None:
    (tmp_path / mlflow_listener.ID_FILE).write_text("0" * 32)
    listen(spec_with("{mlflow: {experiment: e}}"), tmp_path, [started(1), step(2, 2.0)])
    assert mlflow_run(tracking, tmp_path).data.metrics["train/loss"] == 2.0


def test_mlflow_without_a_server_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    spec = spec_with("{mlflow: {experiment: e, tracking_uri: 'http://127.0.0.1:9'}}")
    (told,) = listen(spec, tmp_path, [started(), step(1, 3.0)])
    assert isinstance(told, ListenerFailed)
    assert (told.listener, "127.0.0.1" in told.reason) == ("MLflow", True)
