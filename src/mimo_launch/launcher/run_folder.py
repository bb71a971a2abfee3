"""The folder of one run: its spec, its plan, its records, and the status of the run.

Decides: names of files; that a run resumes in its folder if it holds a complete checkpoint, and
that the folder of another run is moved aside, never overwritten; that the old spec and plan stay
in place until a resumed run has loaded its state; what running, done, failed, interrupted and
unknown mean; which folders are runs.
Relies on: `checkpoint.folder` for which checkpoints are complete; `run_lock`, so that only one
launcher at a time uses the folder, and for whether one does; `train.history` for steps; no torch.
Leaves: writing metrics to `train.metrics_file`, worker logs to `worker_logs`, showing the status to
`cli`.

A folder may be on a file system that other hosts write to.
"""

import math
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import yaml

from mimo_launch.checkpoint.folder import (
    DAMAGED,
    PARTIAL,
    DamagedCheckpoint,
    all_checkpoints,
    read_marker,
)
from mimo_launch.data.run_length import ANEW, Begun
from mimo_launch.launcher.run_lock import LOCK, RunLock, is_in_use, lock_run
from mimo_launch.launcher.signals import StopRequest
from mimo_launch.runtime.progress import Best
from mimo_launch.spec.files import read_json
from mimo_launch.spec.load import dump_written, load_spec
from mimo_launch.spec.spec import Spec
from mimo_launch.train.history import NoHistory, read_history
from mimo_launch.train.metrics_file import METRICS

SPEC, PLAN, FAILURE = "spec.yaml", "plan.json", "failure.txt"


class NothingToResume(Exception):
    """The run folder has no usable checkpoint, although it should have one."""


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """A complete checkpoint, with the steps, the samples and the best evaluation up to it.

    `evaluated` is as in `RunState`.
    """

    step: int
    path: Path
    best: Best | None = None
    samples: int = 0
    evaluated: int = 0


@dataclass(frozen=True, slots=True)
class RunFolder:
    """An open run folder; an earlier run was moved to `moved`, this one resumes from `saved`.

    `texts` are the contents of the files that describe the run, by name.
    """

    path: Path
    lock: RunLock
    texts: dict[str, str]
    moved: Path | None = None
    saved: ResumePoint | None = None

    def write(self) -> None:
        """Write the files that describe the run; rename old ones with different contents.

        Raises: OSError.
        """
        for name, text in self.texts.items():
            path = self.path / name
            if path.exists() and path.read_text(encoding="utf-8") != text:
                path.rename(_free_name(self.path, path.stem, path.suffix))
            path.write_text(text, encoding="utf-8")


def newest_checkpoint(run: Path) -> ResumePoint | None:
    """Return the newest complete checkpoint of a run, to say where it would resume.

    This checks the sizes of files, not their contents: a rank may still reject the checkpoint (see
    `checkpoint.usable.newest_usable`). Commands that read weights use
    `checkpoint.index.open_checkpoint`.
    """
    for path in all_checkpoints(run):
        with suppress(DamagedCheckpoint):
            marker = read_marker(path)
            counts, best = marker.counts, marker.best
            return ResumePoint(counts["step"], path, best, counts["samples"], marker.evaluated)
    return None


def damages(run: Path) -> list[str]:
    """Return the damages of checkpoints of a run that were complete."""
    found = []
    for path in all_checkpoints(run):
        if path.suffix == DAMAGED:
            found.append(f"{path.name}: it was found damaged before")
        elif path.suffix != PARTIAL:
            try:
                read_marker(path)
            except DamagedCheckpoint as error:
                found.append(f"{path.name}: {error}")
    return found


def resume_point(root: Path, spec: Spec, *, resume: bool | None) -> ResumePoint | None:
    """Return the checkpoint to resume from, if any; `resume` None means resume if possible.

    Raises: NothingToResume if it must resume and cannot, or if all its checkpoints are damaged.
    """
    run = root / spec.name
    saved = None if resume is False else newest_checkpoint(run)
    if saved is None and resume is not False and (damaged := damages(run)):
        listed = "; ".join(damaged)
        raise NothingToResume(f"every checkpoint in {run} is damaged ({listed})")
    if saved is None and resume:
        raise NothingToResume(f"there is no complete checkpoint in {run}")
    return saved


def begun(root: Path, spec: Spec, *, resume: bool | None) -> Begun:
    """Return what the run that would be resumed has done; nothing if none can be."""
    with suppress(NothingToResume):
        if (saved := resume_point(root, spec, resume=resume)) is not None:
            return Begun(saved.step, saved.samples)
    return ANEW


def open_run_folder(
    root: Path,
    spec: Spec,
    plan_json: str,
    *,
    resume: bool | None = None,
    say: Callable[[str], None] = lambda remark: None,
    stop: StopRequest | None = None,
) -> RunFolder:
    """Create or reuse `root/NAME`, and lock it.

    An earlier run that is not resumed is moved to `NAME.1`, `NAME.2`, and so on. A resumed run must
    call `RunFolder.write` once it has its state; that keeps a different spec and plan as
    `spec.1.yaml` and `plan.1.json`. While another launcher ends, `say` gets the reason for the
    wait, and `stop` ends it.

    Raises: NothingToResume; RunInUse; Interrupted; OSError if the folder cannot be written.
    """
    # Check this first, so that a run that cannot start leaves no files.
    resume_point(root, spec, resume=resume)
    path, moved = root / spec.name, None
    lock = lock_run(path, say, stop)
    try:
        saved = resume_point(root, spec, resume=resume)
        if saved is None and any(each.name != LOCK for each in path.iterdir()):
            moved = _free_name(root, spec.name, "")
            with lock:
                lock.move(moved)
            lock = lock_run(path, say, stop)
        resolved = yaml.safe_dump(dump_written(spec), sort_keys=False, default_flow_style=None)
        folder = RunFolder(path, lock, {SPEC: resolved, PLAN: plan_json + "\n"}, moved, saved)
        if saved is None:
            folder.write()
    except BaseException:
        lock.close()
        raise
    return folder


def _free_name(folder: Path, stem: str, suffix: str) -> Path:
    number = 1
    while (folder / f"{stem}.{number}{suffix}").exists():
        number += 1
    return folder / f"{stem}.{number}{suffix}"


class State(StrEnum):
    """The state of a run.

    A failed run left a report, or its launcher ended without one. The state is unknown if the lock
    cannot be read.
    """

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """The status of a run: state, last step, number of steps, seconds since its last sign of life.

    `why` says how a run failed, or why its state is unknown. The number of steps is None if the
    spec cannot be read.
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
    # `Path.is_file` raises an error for a link to itself.
    return all(os.path.isfile(folder / name) for name in (SPEC, PLAN))


def runs_below(folder: Path) -> list[Path]:
    """Return the runs in a folder, the one with the latest sign of life first."""
    found = [each for each in folder.iterdir() if is_run(each)]
    return sorted(found, key=_last_sign, reverse=True)


def steps_of(run: Path) -> int | None:
    """Return the number of steps of a run; None if its files cannot be read."""
    spec = load_spec(run / SPEC).spec
    if spec is None:
        return None
    if spec.train.epochs is None:
        return spec.train.steps
    try:  # The steps of epochs are counted for the plan.
        steps = read_json(run / PLAN)["header"]["steps"]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return steps if isinstance(steps, int) else None


def status_of(run: Path) -> RunStatus:
    """Return the status of a run."""
    steps = steps_of(run)
    try:
        history = read_history(run)
        ended, (numbers, losses) = history.ended_early, history.curve("loss")
    except NoHistory:
        ended, numbers, losses = False, [], []
    step = numbers[-1] if numbers else 0
    try:
        done = is_done(run, step=step, steps=steps, ended_early=ended)
        state, why = _state(run, done=done)
    except OSError as error:
        # A lock that cannot be asked for names no file.
        file = error.filename or run / LOCK
        state, why = State.UNKNOWN, f"{file} cannot be read: {error.strerror or error}"
    return RunStatus(
        run=run,
        state=state,
        step=step,
        steps=steps,
        loss=losses[-1] if losses else math.nan,
        age_s=max(0.0, time.time() - _last_sign(run)),
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
    # The report of an earlier attempt is older than the steps of later attempts.
    return os.path.isfile(run / FAILURE) and _change_time(run / FAILURE) >= _change_time(
        run / METRICS
    )


def is_done(run: Path, *, step: int, steps: int | None, ended_early: bool) -> bool:
    """Return whether a run did all its steps, and did not fail before they were in a checkpoint.

    `step` is its last one, of `steps` if the spec can be read. Raises OSError if a folder cannot be
    read.
    """
    if not ended_early and (steps is None or step < steps):
        return False
    if not has_failed(run):
        return True
    saved = newest_checkpoint(run)
    return saved is not None and saved.step >= step


def _last_sign(run: Path) -> float:
    """Return the time of a run's latest sign of life."""
    return max(_change_time(run / name) for name in (METRICS, FAILURE, SPEC))


def _change_time(file: Path) -> float:
    """Return when a file was changed; 0 if it is missing or cannot be read."""
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0
