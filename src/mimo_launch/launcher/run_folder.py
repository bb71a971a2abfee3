"""The folder of one run: what was asked for, what was planned, what happened.

Decides: names of files; that a run goes on in its folder if that holds a complete checkpoint, and
that the folder of another run is moved aside, never overwritten.
Relies on: `train.checkpoint.folder` to tell which checkpoints are complete.
Leaves: metrics to `train.metrics`, worker logs to `logs`.
"""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import yaml

from mimo_launch.spec.load import dump_spec
from mimo_launch.spec.model import Spec
from mimo_launch.train.checkpoint.folder import (
    DAMAGED,
    PARTIAL,
    DamagedCheckpoint,
    all_checkpoints,
    read_marker,
)

SPEC, PLAN, FAILURE = "spec.yaml", "plan.json", "failure.txt"


class NothingToResume(Exception):
    """The run folder has no usable checkpoint, although it should have one."""


@dataclass(frozen=True, slots=True)
class Saved:
    """A complete checkpoint and the number of steps before it."""

    step: int
    path: Path


@dataclass(frozen=True, slots=True)
class RunFolder:
    """An open run folder; an earlier run went to `moved`, this one goes on from `saved`."""

    path: Path
    moved: Path | None = None
    saved: Saved | None = None


def newest_checkpoint(run: Path) -> Saved | None:
    """Return the newest complete checkpoint of a run."""
    for path in all_checkpoints(run):
        with suppress(DamagedCheckpoint):
            return Saved(read_marker(path).counts["step"], path)
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


def goes_on(root: Path, spec: Spec, *, resume: bool | None) -> Saved | None:
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
    root: Path, spec: Spec, plan_json: str, *, resume: bool | None = None
) -> RunFolder:
    """Create `root/NAME`, or go on in it, with the resolved spec and the plan in it.

    An earlier run that is not gone on with is moved to `NAME.1`, `NAME.2`, and so on; a spec or
    plan that has changed since is kept as `spec.1.yaml` or `plan.1.json`.

    Raises: NothingToResume; OSError if the folder cannot be written.
    """
    folder, moved = root / spec.name, None
    saved = goes_on(root, spec, resume=resume)
    if saved is None and folder.exists():
        moved = _unused(root, spec.name, "")
        folder.rename(moved)
    folder.mkdir(parents=True, exist_ok=True)
    resolved = dump_spec(spec)
    _write(folder / SPEC, yaml.safe_dump(resolved, sort_keys=False, default_flow_style=None))
    _write(folder / PLAN, plan_json + "\n")
    return RunFolder(folder, moved, saved)


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
