"""The folder of one run: what was asked for, what was planned, what happened.

Decides: names of files; that a run goes on in its folder if that holds a complete checkpoint, and
that the folder of another run is moved aside, never overwritten; what was asked for and planned
before stays on record until a run that goes on has taken its state from there.
Relies on: `checkpoint.folder` to tell which checkpoints are complete; `run_lock`, so that one
launcher at a time has the folder.
Leaves: metrics to `train.metrics_file`, worker logs to `worker_logs`.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import yaml

from mimo_launch.checkpoint.folder import (
    DAMAGED,
    PARTIAL,
    DamagedCheckpoint,
    all_checkpoints,
    read_marker,
)
from mimo_launch.launcher.run_lock import LOCK, RunLock, lock_run
from mimo_launch.launcher.signals import StopRequest
from mimo_launch.spec.load import dump_spec
from mimo_launch.spec.model import Spec

SPEC, PLAN, FAILURE = "spec.yaml", "plan.json", "failure.txt"


class NothingToResume(Exception):
    """The run folder has no usable checkpoint, although it should have one."""


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """A complete checkpoint and the number of steps before it."""

    step: int
    path: Path


@dataclass(frozen=True, slots=True)
class RunFolder:
    """An open run folder; an earlier run went to `moved`, this one goes on from `saved`.

    `texts` are those of its files that say what it is.
    """

    path: Path
    lock: RunLock
    texts: dict[str, str]
    moved: Path | None = None
    saved: ResumePoint | None = None

    def write(self) -> None:
        """Say what the run is; what it was before is kept beside it. Raises: OSError."""
        for name, text in self.texts.items():
            _write(self.path / name, text)


def newest_checkpoint(run: Path) -> ResumePoint | None:
    """Return the newest complete checkpoint of a run."""
    for path in all_checkpoints(run):
        with suppress(DamagedCheckpoint):
            return ResumePoint(read_marker(path).counts["step"], path)
    return None


def damages(run: Path) -> list[str]:
    """Return what is wrong with the checkpoints of a run that were complete once."""
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


def goes_on(root: Path, spec: Spec, *, resume: bool | None) -> ResumePoint | None:
    """Return the checkpoint from which a run would go on, if it may.

    Raises: NothingToResume if it must and cannot, or if all that it saved is damaged.
    """
    run = root / spec.name
    saved = None if resume is False else newest_checkpoint(run)
    if saved is None and resume is not False and (damaged := damages(run)):
        listed = "; ".join(damaged)
        raise NothingToResume(
            f"every checkpoint in {run} is damaged ({listed}); --no-resume starts anew"
        )
    if saved is None and resume:
        raise NothingToResume(f"there is no complete checkpoint in {run}")
    return saved


def open_run_folder(
    root: Path,
    spec: Spec,
    plan_json: str,
    *,
    resume: bool | None = None,
    say: Callable[[str], None] = lambda remark: None,
    stop: StopRequest | None = None,
) -> RunFolder:
    """Create `root/NAME`, or go on in it, and lock it.

    An earlier run that is not gone on with is moved to `NAME.1`, `NAME.2`, and so on. Otherwise the
    resolved spec and the plan are to be written once the run has its state: `RunFolder.write` keeps
    those that differ as `spec.1.yaml` and `plan.1.json`. `say` and `stop` are for a wait.

    Raises: NothingToResume; RunInUse; Interrupted; OSError if the folder cannot be written.
    """
    goes_on(root, spec, resume=resume)  # First: a run that cannot be leaves nothing.
    path, moved = root / spec.name, None
    lock = lock_run(path, say, stop)
    try:
        saved = goes_on(root, spec, resume=resume)
        if saved is None and any(each.name != LOCK for each in path.iterdir()):
            moved = _unused(root, spec.name, "")
            with lock:
                lock.move(moved)
            lock = lock_run(path, say, stop)
        resolved = yaml.safe_dump(dump_spec(spec), sort_keys=False, default_flow_style=None)
        folder = RunFolder(path, lock, {SPEC: resolved, PLAN: plan_json + "\n"}, moved, saved)
        if saved is None:
            folder.write()
    except BaseException:
        lock.close()
        raise
    return folder


def _write(path: Path, text: str) -> None:
    """Write a file; an older one with another text is kept beside it."""
    if path.exists() and path.read_text(encoding="utf-8") != text:
        path.rename(_unused(path.parent, path.stem, path.suffix))
    path.write_text(text, encoding="utf-8")


def _unused(folder: Path, stem: str, suffix: str) -> Path:
    number = 1
    while (folder / f"{stem}.{number}{suffix}").exists():
        number += 1
    return folder / f"{stem}.{number}{suffix}"
