"""Says how runs stand, from the files of their folders alone.

Decides: what running, done, failed and interrupted mean; which folders are runs.
Relies on: `run_lock` for whether a launcher is there; `train.metrics_file` for steps; no torch.
Leaves: showing it to `cli`.

A folder may lie on a file system that other hosts write to.
"""

import math
import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from mimo_launch.launcher.run_folder import FAILURE, PLAN, SPEC
from mimo_launch.launcher.run_lock import is_in_use
from mimo_launch.spec.load import load_spec
from mimo_launch.train.metrics_file import METRICS, NoHistory, Record, read_history


class State(StrEnum):
    """How a run stands; a failed one left a report, or its launcher ended without a word."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """How a run stands: its last step, of how many, and the seconds since it was last heard of.

    `why` says how a run failed. Steps are None if the spec cannot be read.
    """

    run: Path
    state: State
    step: int
    steps: int | None
    loss: float
    age_s: float
    why: str = ""


def is_run(folder: Path) -> bool:
    """Return whether a folder is one of a run of `train`."""
    return (folder / SPEC).is_file() and (folder / PLAN).is_file()


def runs_below(folder: Path) -> list[Path]:
    """Return the runs in a folder, the one that was last heard of first."""
    found = [each for each in folder.iterdir() if is_run(each)]
    return sorted(found, key=_heard_of, reverse=True)


def status_of(run: Path) -> RunStatus:
    """Return how a run stands."""
    spec = load_spec(run / SPEC).spec
    steps = None if spec is None else spec.train.steps
    last = _last_record(run)
    step = last.get("step", 0)
    state, why = _state(run, done=steps is not None and step >= steps)
    loss = last.get("loss")
    return RunStatus(
        run=run,
        state=state,
        step=step,
        steps=steps,
        loss=math.nan if loss is None else float(loss),
        age_s=max(0.0, time.time() - _heard_of(run)),
        why=why,
    )


def _state(run: Path, *, done: bool) -> tuple[State, str]:
    in_use = is_in_use(run)
    if in_use:
        return State.RUNNING, ""
    if in_use is None:
        return State.FAILED, "its launcher was killed, or its host went down"
    if done:
        return State.DONE, ""
    if has_failed(run):
        return State.FAILED, f"see {run / FAILURE}"
    return State.INTERRUPTED, ""


def has_failed(run: Path) -> bool:
    """Return whether the last attempt of a run left a report of a failure."""
    report, metrics = run / FAILURE, run / METRICS
    # The report of an earlier attempt is older than the steps after it.
    newest = metrics.stat().st_mtime if metrics.exists() else 0.0
    return report.is_file() and report.stat().st_mtime >= newest


def _last_record(run: Path) -> Record:
    """Return the record of the last step, or an empty one."""
    try:
        return read_history(run).steps[-1]
    except NoHistory:
        return {}


def _heard_of(run: Path) -> float:
    """Return the time of the newest sign of a run."""
    files = (run / name for name in (METRICS, FAILURE, SPEC))
    return max((file.stat().st_mtime for file in files if file.exists()), default=0.0)
