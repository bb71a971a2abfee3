"""Reports metrics to an MLflow tracking server.

Decides: that points are sent in batches, so that a step seldom waits for the server; that a server
that does not answer costs a run a few seconds, once; that a resumed run continues its MLflow run,
with the id from the run folder. No sample, weight, code or console output is sent, and MLflow's own
telemetry stays off unless the user's environment turns it on.
Relies on: `mlflow` or `mlflow-skinny`, without which `checks.packages` refuses a spec; the user's
environment for the server and its login (MLFLOW_TRACKING_URI, MLFLOW_TRACKING_TOKEN).
Leaves: the names of the curves and the handling of failures to `listeners`.
"""

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from mimo_launch.spec.load import dump_spec
from mimo_launch.spec.sections import MlflowSpec
from mimo_launch.spec.spec import Spec
from mimo_launch.train.events import (
    CheckpointSaved,
    EvalFinished,
    Event,
    RunFinished,
    RunStarted,
    RunStopped,
    StepFinished,
)

NAME = "MLflow"
ID_FILE = "mlflow-id"
_FLUSH_SECONDS = 10
# The limits of the server for one request.
_MAX_POINTS, _MAX_SETTINGS, _MAX_NAME, _MAX_VALUE = 1000, 100, 250, 500
# The server's error codes for a run that does not exist or was deleted.
_LOST = {"RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE", "INVALID_STATE"}
_ENVIRONMENT = {
    # All ranks wait in a collective while rank 0 sends.
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "15",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_RESPECT_RETRY_AFTER_HEADER": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}


class MlflowListener:
    """A listener that keeps one MLflow run; `curves` names the points of an event."""

    def __init__(
        self,
        spec: Spec,
        wanted: MlflowSpec,
        run_dir: Path,
        curves: Callable[[Event], dict[str, float]],
    ) -> None:
        self._spec, self._wanted, self._curves = spec, wanted, curves
        self._id_file = run_dir / ID_FILE
        self._client: Any = None
        self._id = ""
        self._points: list[Any] = []
        self._sent = time.monotonic()
        self._last = 0
        self._status = "FAILED"

    def __call__(self, event: Event) -> None:
        """Keep the points of an event, and send all kept points from time to time."""
        match event:
            case RunStarted():
                self._open(event)
            case StepFinished() | EvalFinished() | CheckpointSaved():
                self._keep(self._curves(event), event.step)
            case RunFinished():
                self._status = "FINISHED"
            case RunStopped():
                self._status = "KILLED"

    def _open(self, event: RunStarted) -> None:
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient(tracking_uri=self._wanted.tracking_uri)
        known = self._id_file.read_text(encoding="utf-8").strip() if self._id_file.exists() else ""
        if known:
            try:
                self._client.update_run(known, status="RUNNING")
                self._id, self._last = known, self._last_step(known)
                return
            except MlflowException as error:
                if error.error_code not in _LOST:
                    raise  # The server is busy; a later start continues the run.
        tags = {"mimo-launch.plan": event.plan}
        made = self._client.create_run(self._experiment(), run_name=event.name, tags=tags)
        self._id = made.info.run_id
        self._id_file.write_text(self._id + "\n", encoding="utf-8")
        self._send_settings()

    def _experiment(self) -> str:
        """Return the id of the experiment, which is created if it does not exist."""
        from mlflow.exceptions import MlflowException

        name = self._wanted.experiment
        found = self._client.get_experiment_by_name(name)
        if found is None:
            try:
                return str(self._client.create_experiment(name))
            except MlflowException:
                # A run that started at the same time may have created it.
                found = self._client.get_experiment_by_name(name)
                if found is None:
                    raise
        return str(found.experiment_id)

    def _last_step(self, known: str) -> int:
        """Return the last step that the server has; it cannot delete points."""
        history = self._client.get_metric_history(known, "train/loss")
        return max((point.step for point in history), default=0)

    def _send_settings(self) -> None:
        from mlflow.entities import Param

        # `accepted` may give two keys the same name; the server refuses to change a value.
        texts = {accepted(name): text for name, text in flat(dump_spec(self._spec))}
        settings = iter([Param(name, text[:_MAX_VALUE]) for name, text in texts.items()])
        while chosen := list(islice(settings, _MAX_SETTINGS)):
            self._client.log_batch(self._id, params=chosen)

    def _keep(self, points: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        if step <= self._last and "train/loss" in points:
            return  # A resumed run repeats steps that the server already has.
        now = int(time.time() * 1000)
        self._points += [Metric(name, value, now, step) for name, value in points.items()]
        if time.monotonic() - self._sent > _FLUSH_SECONDS:
            self._send()

    def _send(self) -> None:
        points, self._points = iter(self._points), []
        while chosen := list(islice(points, _MAX_POINTS)):
            self._client.log_batch(self._id, metrics=chosen)
        self._sent = time.monotonic()

    def close(self) -> None:
        """Send the kept points, and how the run ended."""
        if self._id:
            self._send()
            self._client.set_terminated(self._id, self._status)


def accepted(name: str) -> str:
    """Return the name of a setting in a form that MLflow accepts: users may choose any keys."""
    return re.sub(r"[^\w.\- :]+", "_", name)[:_MAX_NAME]


def flat(settings: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the settings of nested mappings by their dotted paths."""
    if isinstance(settings, Mapping) and settings:
        for key, value in settings.items():
            yield from flat(value, f"{path}.{key}" if path else str(key))
    else:
        yield path, str(settings)
