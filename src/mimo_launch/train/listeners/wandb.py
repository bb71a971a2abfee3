"""Reports a run to Weights & Biases.

Decides: that a resumed run continues the same W&B run, whose id is kept in the run folder; that a
server out of reach means offline files and no error; that neither code, nor git state, nor console
output is sent.
Relies on: the package `wandb`, and a login that its user has made (`wandb login`, WANDB_API_KEY).
Leaves: what happens when a call fails to `guard`; sending offline files to `wandb sync`.
"""

import re
import secrets
from pathlib import Path
from typing import Any

from mimo_launch.spec.load import dump_spec
from mimo_launch.spec.model import Spec, WandbSpec
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
from mimo_launch.train.listeners.guard import reason_of
from mimo_launch.train.listeners.scalars import scalars

NAME = "Weights & Biases"
ID_FILE = "wandb-id"

# All ranks wait in their first collective while rank 0 logs in, and leave together at the end.
_SETTINGS = {
    "init_timeout": 30,
    "finish_timeout": 120,
    "console": "off",
    "disable_git": True,
    "disable_code": True,
    "silent": True,
}


class WandbListener:
    """Listener that keeps one W&B run; `tell` hears of a server that cannot be reached."""

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
                # A resumed run repeats steps that W&B has and that it cannot take back.
                if event.step >= self._run.step:
                    self._run.log(scalars(event), step=event.step)
            case CheckpointSaved():
                # Written beside training: steps after it have been reported by now.
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
                # Frees the id, which the failed run still holds.
                wandb.teardown()
                folder = self._run_dir / "wandb"
                effect = f"its files are written to {folder}; send them with `wandb sync`"
                self._tell(ListenerFailed(listener=NAME, reason=reason_of(error), effect=effect))
        if self._run is None:
            self._run = self._init("offline")

    def _init(self, mode: str) -> Any:
        import wandb

        # A timeout that this version of wandb does not have is not worth a failure.
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
        """Send what is left, and say how the run ended."""
        if self._run is None:
            return
        import wandb

        self._run.finish(exit_code=self._exit_code)
        # Its process writes the last points after `finish` has returned; a worker of torch elastic
        # may leave without the exit handlers that would wait for it.
        wandb.teardown()


def run_id(run_dir: Path) -> str:
    """Return the id that W&B knows this run folder by; the first call makes it up."""
    path = run_dir / ID_FILE
    found = path.read_text(encoding="utf-8").strip() if path.exists() else ""
    if re.fullmatch(r"[a-z0-9]+", found):
        return found
    made = secrets.token_hex(8)
    path.write_text(made + "\n", encoding="utf-8")
    return made
