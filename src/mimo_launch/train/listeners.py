"""Writes metrics to TensorBoard, Weights & Biases and MLflow, in addition to `metrics.jsonl`.

Decides: the listeners for `log`; that a listener that fails is reported once, gets no more events
and does not stop the run; the names of the curves: for the run under `train/`, `eval/` and
`checkpoint/`, for a module under `grad_norm/`, `lr/`, `imbalance/`, `imbalance_before/`,
`zero_grads/` and `peak_memory/`, with the module's name. A resumed run continues its curves:
TensorBoard hides the points that an earlier process wrote for the same steps, W&B gets the id from
the run folder. Without a W&B server, offline files are written, and there is no error; no code, git
state or console output is sent.
Relies on: the packages `tensorboard` and `wandb`, without which `checks.packages` refuses a spec;
the user's login (`wandb login`, WANDB_API_KEY).
Leaves: MLflow to `mlflow_listener`; `metrics.jsonl` and the console, which every run has, to
`launcher` and `cli`; sending offline files to `wandb sync`.
"""

import re
import secrets
from pathlib import Path
from typing import Any, Protocol

from mimo_launch.spec.load import dump_spec
from mimo_launch.spec.sections import WandbSpec
from mimo_launch.spec.spec import Spec
from mimo_launch.train import mlflow_listener
from mimo_launch.train.events import (
    CheckpointSaved,
    EvalFinished,
    Event,
    Listener,
    ListenerFailed,
    RunFinished,
    RunStarted,
    RunStopped,
    StepFinished,
)
from mimo_launch.train.mlflow_listener import MlflowListener

FOLDER = "tensorboard"
# A killed run loses at most this many seconds of its curves; metrics.jsonl loses nothing.
_FLUSH_SECONDS = 10
NAME = "Weights & Biases"
ID_FILE = "wandb-id"

# All ranks wait in their first collective while rank 0 logs in, and exit together at the end.
_SETTINGS = {
    "init_timeout": 30,
    "finish_timeout": 120,
    "console": "off",
    "disable_git": True,
    "disable_code": True,
    "silent": True,
}


class Closable(Protocol):
    """A listener that holds a file or a connection."""

    def __call__(self, event: Event) -> None:
        """Handle an event."""

    def close(self) -> None:
        """Finish; no event follows."""


class Guarded:
    """Passes events to a listener until it fails; reports the failure once to `tell`."""

    def __init__(self, name: str, listener: Closable, tell: Listener) -> None:
        self._name, self._listener, self._tell = name, listener, tell
        self._failed = False

    def __call__(self, event: Event) -> None:
        """Pass an event to the listener."""
        if self._failed:
            return
        try:
            self._listener(event)
        except Exception as error:
            self._fail(error, "it gets no more metrics of this run; training continues")

    def close(self) -> None:
        """Close the listener, even after a failure: it may hold a process or a file."""
        try:
            self._listener.close()
        except Exception as error:
            if not self._failed:
                self._fail(error, "its last metrics may be missing")

    def _fail(self, error: Exception, effect: str) -> None:
        # Set this first: `tell` calls this listener, too.
        self._failed = True
        self._tell(ListenerFailed(listener=self._name, reason=reason_of(error), effect=effect))


def reason_of(error: Exception) -> str:
    """Return the first line of an error's message, without logins in URLs."""
    first = (str(error).strip() or repr(error)).splitlines()[0]
    return re.sub(r"://[^/\s@]*@", "://***@", first)


def scalars(event: Event) -> dict[str, float]:
    """Return the points that an event adds to curves, by name; most events add none."""
    match event:
        case StepFinished(reading=reading):
            times = {}
            if reading is not None:
                times = {"reading/waited_s": reading.waited_s, "reading/read_s": reading.read_s}
            if event.usage is not None:
                used = event.usage
                times |= {
                    "train/step_s": used.step_s,
                    "train/tflops_per_rank": used.tflops_per_rank,
                }
                times |= {} if used.mfu is None else {"train/mfu": used.mfu}
                times |= {f"peak_memory/{name}": float(n) for name, n in used.peak_memory.items()}
            return {
                "train/loss": event.loss,
                **{f"loss/{name}": loss for name, loss in (event.losses or {}).items()},
                **{f"source_loss/{n}": loss for n, loss in (event.source_losses or {}).items()},
                **({} if event.aux_loss is None else {"train/aux_loss": event.aux_loss}),
                "train/grad_norm": event.grad_norm,
                "train/tokens_per_s": event.tokens_per_s,
                "train/skipped": float(event.skipped),
                "train/bad_samples": float(event.bad_samples),
                **{f"grad_norm/{name}": norm for name, norm in event.grad_norms.items()},
                **{f"lr/{name}": rate for name, rate in event.lrs.items()},
                **{f"imbalance/{name}": each.after for name, each in event.imbalance.items()},
                **{f"imbalance_before/{name}": x.before for name, x in event.imbalance.items()},
                **times,
                **{f"zero_grads/{name}": float(n) for name, n in (event.zero_grads or {}).items()},
            }
        case EvalFinished():
            of = "" if event.eval_set is None else f"{event.eval_set}/"
            shares = {
                f"eval/{of}digit_accuracy": event.digit_accuracy,
                f"eval/{of}drawn_recognised": event.drawn_recognised,
                f"eval/{of}code_accuracy": event.code_accuracy,
            }
            losses = event.eval_losses or {}
            return {
                f"eval/{of}loss": event.eval_loss,
                **{f"eval_loss/{of}{name}": loss for name, loss in losses.items()},
                **{name: share for name, share in shares.items() if share is not None},
            }
        case CheckpointSaved():
            return {
                "checkpoint/seconds": event.seconds,
                "checkpoint/stall_s": event.stall_s,
                "checkpoint/bytes": event.num_bytes,
            }
        case _:
            return {}


class TensorBoardListener:
    """A listener that writes into `tensorboard/` of the run folder."""

    def __init__(self, run_dir: Path) -> None:
        self._folder = run_dir / FOLDER
        self._writer: Any = None

    def __call__(self, event: Event) -> None:
        """Write the points of an event."""
        match event:
            case RunStarted():
                self._open(event.first_step)
            case StepFinished() | EvalFinished() | CheckpointSaved():
                for name, value in scalars(event).items():
                    self._writer.add_scalar(name, value, event.step)

    def _open(self, first_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # An evaluation or a checkpoint after `first_step` steps belongs to the earlier process.
        self._writer = SummaryWriter(
            str(self._folder), purge_step=first_step + 1, flush_secs=_FLUSH_SECONDS
        )

    def close(self) -> None:
        """Write what is still in memory, and close the file."""
        if self._writer is not None:
            self._writer.close()


class WandbListener:
    """A listener that keeps one W&B run; `tell` gets an event if there is no server."""

    def __init__(self, spec: Spec, wanted: WandbSpec, run_dir: Path, tell: Listener) -> None:
        self._spec, self._wanted, self._run_dir, self._tell = spec, wanted, run_dir, tell
        self._run: Any = None
        self._exit_code = 1

    def __call__(self, event: Event) -> None:
        """Report the points of an event."""
        match event:
            case RunStarted():
                self._open()
            case StepFinished() | EvalFinished():
                # A resumed run repeats steps that W&B already has and cannot delete.
                if event.step >= self._run.step:
                    self._run.log(scalars(event), step=event.step)
            case CheckpointSaved():
                # It was written during training: later steps may already be logged.
                self._run.log(scalars(event), step=max(event.step, self._run.step))
            case RunFinished():
                self._exit_code = 0
            case RunStopped():
                self._exit_code = 128 + event.signal

    def _open(self) -> None:
        import wandb

        if self._wanted.mode == "online":
            try:
                self._run = self._init("online")
            except Exception as error:
                # Free the id, which the failed run still holds.
                wandb.teardown()
                folder = self._run_dir / "wandb"
                effect = f"its files are written to {folder}; send them with `wandb sync`"
                self._tell(ListenerFailed(listener=NAME, reason=reason_of(error), effect=effect))
        if self._run is None:
            self._run = self._init("offline")

    def _init(self, mode: str) -> Any:
        import wandb

        # Leave out settings that this version of wandb does not have.
        known = wandb.Settings()
        return wandb.init(
            project=self._wanted.project,
            entity=self._wanted.entity,
            mode=mode,
            name=self._spec.name,
            id=run_id(self._run_dir),
            resume="allow",
            dir=str(self._run_dir),
            config=dump_spec(self._spec),
            settings=wandb.Settings(**{k: v for k, v in _SETTINGS.items() if hasattr(known, k)}),
        )

    def close(self) -> None:
        """Send what is left, with the exit code of the run."""
        if self._run is None:
            return
        import wandb

        self._run.finish(exit_code=self._exit_code)
        # W&B's process writes the last points after `finish` returns; a worker of torch elastic may
        # exit without running the handlers that wait for it.
        wandb.teardown()


def run_id(run_dir: Path) -> str:
    """Return the W&B id of this run folder; the first call draws it at random."""
    path = run_dir / ID_FILE
    found = path.read_text(encoding="utf-8").strip() if path.exists() else ""
    if re.fullmatch(r"[a-z0-9]+", found):
        return found
    made = secrets.token_hex(8)
    path.write_text(made + "\n", encoding="utf-8")
    return made


def listeners_of(spec: Spec, run_dir: Path, tell: Listener) -> list[Guarded]:
    """Return the listeners for `log`. None of them raises; `tell` gets each one's first failure."""
    found = []
    if spec.log.tensorboard:
        found.append(Guarded("TensorBoard", TensorBoardListener(run_dir), tell))
    if spec.log.wandb is not None:
        listener = WandbListener(spec, spec.log.wandb, run_dir, tell)
        found.append(Guarded(NAME, listener, tell))
    if spec.log.mlflow is not None:
        reports = MlflowListener(spec, spec.log.mlflow, run_dir, scalars)
        found.append(Guarded(mlflow_listener.NAME, reports, tell))
    return found
