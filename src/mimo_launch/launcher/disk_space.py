"""Whether the disk has room for the checkpoints of a run, asked before its workers start.

Decides: how many checkpoints a run adds to its folder at the same time.
Relies on: `estimate.checkpoint_size` for the size of one; what the file system says is free.
Leaves: a disk that others fill meanwhile to the saver.
"""

import shutil
from pathlib import Path

from mimo_launch.checkpoint.folder import all_checkpoints, is_complete
from mimo_launch.diag.quantities import bytes_text
from mimo_launch.estimate.checkpoint_size import checkpoint_bytes
from mimo_launch.launcher.run_folder import Saved
from mimo_launch.spec.model import Spec


def lacks_room(run: Path, spec: Spec, saved: Saved | None) -> str | None:
    """Return what to say if the checkpoints of a run that goes on from `saved` will not fit."""
    if spec.saving is None:
        return None
    there = step = 0
    if saved is not None:
        there, step = sum(map(is_complete, all_checkpoints(run))), saved.step
    size, number, free = checkpoint_bytes(spec), num_added(spec, there, step), _free(run)
    if free is None or number * size <= free:
        return None
    needed = f"it needs {bytes_text(size)}"
    why = "a run saves after its last step, and when a signal stops it"
    if number > 1:
        needed = f"{number} of {bytes_text(size)} need {bytes_text(number * size)}"
        why = "a new one is complete before the oldest is deleted"
    one = spec.saving.model_copy(update={"keep": 1})
    least = num_added(spec.model_copy(update={"checkpoint": one}), there, step)
    fewer = ", `--set checkpoint.keep=1`" if least < number and least * size <= free else ""
    return (
        f"{run} has no room for {'checkpoints' if number > 1 else 'a checkpoint'}: {needed}, and "
        f"its file system has {bytes_text(free)} free\n"
        f"   = why:  {why}\n"
        f"   = help: `--runs DIR` on a larger one{fewer}, or `--set checkpoint=none` to "
        "save nothing"
    )


def num_added(spec: Spec, there: int, step: int) -> int:
    """Return how many checkpoints a run from `step` on adds at most to those that are `there`.

    The oldest is deleted when a new one is complete, so one more than `keep` is there meanwhile.
    """
    if spec.saving is None:
        return 0
    steps, every = spec.train.steps, spec.saving.every or spec.train.steps
    saves = -(-steps // every) - step // every
    return max(1, min(saves, spec.saving.keep + 1 - there))


def _free(run: Path) -> int | None:
    """Return what the file system of a folder, which need not exist, has free, if it says so."""
    try:
        there = next(each for each in (run, *run.absolute().parents) if each.is_dir())
        usage = shutil.disk_usage(there)
    except OSError:  # Whoever opens the folder says what is wrong with it.
        return None
    return usage.free if usage.total else None
