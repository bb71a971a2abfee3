"""Builds the listeners that a spec asks for.

Decides: which ones.
Relies on: `checks.packages`, which has refused a spec whose packages are missing.
Leaves: `metrics.jsonl` and the console, which every run has, to `launcher` and `cli`.
"""

from pathlib import Path

from mimo_launch.spec.model import Spec
from mimo_launch.train.events import Listener
from mimo_launch.train.listeners.guard import Guarded
from mimo_launch.train.listeners.tensorboard import TensorBoardListener
from mimo_launch.train.listeners.wandb import NAME, WandbListener


def listeners_of(spec: Spec, run_dir: Path, tell: Listener) -> list[Guarded]:
    """Return what `log` asks for. None of them raises; `tell` hears of a first failure."""
    found = []
    if spec.log.tensorboard:
        found.append(Guarded("TensorBoard", TensorBoardListener(run_dir), tell))
    if spec.log.wandb is not None:
        listener = WandbListener(spec, spec.log.wandb, run_dir, tell)
        found.append(Guarded(NAME, listener, tell))
    return found
