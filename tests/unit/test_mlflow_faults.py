"""MLflow servers that refuse, delay or race: a run waits little, and keeps its MLflow run."""

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.unit.test_listeners import listen, mlflow_run, spec_with, started, step, tracking

from mimo_launch.checks.load_and_check import load_and_check
from mimo_launch.train import mlflow_listener
from mimo_launch.train.events import Event, ListenerFailed
from mimo_launch.train.listeners import reason_of

__all__ = ["tracking"]
TINY = Path(__file__).parents[1] / "fixtures" / "tiny_train.yaml"


class Busy(BaseHTTPRequestHandler):
    """Asks every client to come back much later."""

    def answer(self) -> None:
        self.send_response(503)
        self.send_header("Retry-After", "3600")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_POST = do_PATCH = answer

    def log_message(self, *args: Any) -> None:
        """Print nothing."""


@pytest.fixture
def busy() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Busy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_busy_server_costs_seconds_and_no_run_at_mlflow(
    tmp_path: Path, busy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks for an hour; the id in the folder stays, so that a later start continues the run."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://me:secret@{busy}")
    monkeypatch.delenv("MLFLOW_HTTP_RESPECT_RETRY_AFTER_HEADER", raising=False)
    (tmp_path / mlflow_listener.ID_FILE).write_text("0" * 32)
    told: list[Any] = []
    spec = spec_with("{mlflow: {experiment: e}}")
    waits = threading.Thread(
        target=lambda: told.extend(listen(spec, tmp_path, [started(1), step(2, 2.0)])), daemon=True
    )
    begin = time.monotonic()
    waits.start()
    waits.join(30)
    assert not waits.is_alive(), "it waits as long as the server asks for"
    assert time.monotonic() - begin < 30
    (failed,) = told
    assert isinstance(failed, ListenerFailed)
    assert "secret" not in failed.reason
    assert (tmp_path / mlflow_listener.ID_FILE).read_text() == "0" * 32


def test_runs_that_make_an_experiment_at_once_share_it(
    tmp_path: Path, tracking: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.tracking import MlflowClient

    make = MlflowClient.create_experiment

    def second(client: Any, name: str) -> str:
        make(client, name)  # By another run, since this one has looked.
        return str(make(client, name))

    monkeypatch.setattr(MlflowClient, "create_experiment", second)
    assert listen(spec_with("{mlflow: {experiment: e}}"), tmp_path, [started(), step(1, 3.0)]) == []
    assert mlflow_run(tracking, tmp_path).data.metrics["train/loss"] == 3.0


def test_keys_that_mlflow_refuses_are_sent_under_names_that_it_takes(
    tmp_path: Path, tracking: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        mlflow_listener,
        "dump_spec",
        lambda spec: {"options": {"a(b)": 1, "../c//d": 2, "e" * 300: 3}, "text": "x" * 7000},
    )
    assert listen(spec_with("{mlflow: {experiment: e}}"), tmp_path, [started(), step(1, 3.0)]) == []
    found = mlflow_run(tracking, tmp_path).data.params
    assert found["options.a_b_"] == "1"
    assert found["options..._c_d"] == "2"
    assert found[f"options.{'e' * 242}"] == "3"
    assert found["text"] == "x" * 500


def test_numbers_that_are_not_finite_are_sent(tmp_path: Path, tracking: Any) -> None:
    events: list[Event] = [started(), step(1, float("nan")), step(2, float("inf")), step(3, 1.0)]
    assert listen(spec_with("{mlflow: {experiment: e}}"), tmp_path, events) == []
    assert mlflow_run(tracking, tmp_path).data.metrics["train/loss"] == 1.0


def test_a_run_that_sent_no_step_is_continued(tmp_path: Path, tracking: Any) -> None:
    spec = spec_with("{mlflow: {experiment: e}}")
    listen(spec, tmp_path, [started()])
    first = mlflow_run(tracking, tmp_path).info.run_id
    listen(spec, tmp_path, [started(), step(1, 3.0)])
    assert mlflow_run(tracking, tmp_path).info.run_id == first


@pytest.mark.parametrize(
    ("uri", "fits"),
    [
        ("http://mlflow:5000", True),
        ("https://mlflow/behind/@me", True),
        ("databricks://profile", True),
        ("sqlite:////home/me@work/mlflow.db", True),
        ("file:/home/me@work/mlruns", True),
        ("/home/me@work/mlruns", True),
        ("./me@work", True),
        ("http://me:secret@mlflow:5000", False),
        ("http://token@mlflow", False),
        ("postgresql://me:secret@db/mlflow", False),
    ],
)
def test_an_address_holds_no_login(uri: str, fits: bool) -> None:
    """The spec is saved in the run folder and sent to servers."""
    checked = load_and_check(TINY, [f"log={{mlflow: {{experiment: e, tracking_uri: '{uri}'}}}}"])
    codes = [(each.code, each.path) for each in checked.diagnostics]
    wrong = ("bad-value", ("log", "mlflow", "tracking_uri"))
    assert (wrong not in codes) is fits, codes


def test_failures_do_not_show_logins() -> None:
    error = RuntimeError("API request to http://me:p%40ss@host:5000/api/x failed for a@b\nmore")
    assert reason_of(error) == "API request to http://***@host:5000/api/x failed for a@b"
