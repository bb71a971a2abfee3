"""The resources of this host: open files, processes, memory, a loopback, room on its disk.

Decides: which errors are reported as limits of the host, with the limit and the remedy; that a run
may open as many files as the host allows, and how many it needs; the most checkpoints that a run
adds to its folder; that the cgroup of this process, version 2 or 1, limits its memory.
Relies on: error numbers, or the messages of native code that gives no number; the limits of this
process; /proc and /sys, either of which may be missing; `estimate.memory`.
Leaves: printing to the console and to `failure_report`; a disk that fills up during the run to the
saver.
"""

import errno
import os
import resource
import shutil
from contextlib import suppress
from math import lcm
from pathlib import Path

from mimo_launch.checkpoint.folder import all_checkpoints, is_complete
from mimo_launch.diag.quantities import bytes_text
from mimo_launch.estimate.memory import checkpoint_bytes
from mimo_launch.launcher.run_folder import ResumePoint
from mimo_launch.spec.spec import Spec

# The only message from libuv, which torch's stores use, when too many files are open.
_NO_STORE = "init uv loop"
# Measured open files per worker: 66 with 2 workers, 110 with 8.
_FILES, _FILES_PER_WORKER = 64, 6
_ROOT = Path("/sys/fs/cgroup")


def allow_open_files() -> None:
    """Raise the limit on open files of this process and its workers to the hard limit."""
    files, hard_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files != hard_files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard_files, hard_files))


def too_few_files(num_workers: int) -> tuple[str, str] | None:
    """Return the problem and the remedy if `num_workers` workers may open too few files.

    Beyond the limit, gloo and torch's store abort or wait for minutes.
    """
    files, hard_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _FILES + _FILES_PER_WORKER * num_workers
    if files == resource.RLIM_INFINITY or files >= needed:
        return None
    workers = "1 worker needs" if num_workers == 1 else f"{num_workers} workers need"
    return (
        f"this process may have {files} files open, and {workers} {needed}",
        _more_files(files, hard_files),
    )


def environment_fault(error: BaseException | str) -> tuple[str, str] | None:
    """Return the missing resource and the remedy, if an error or its text shows one."""
    text = str(error)
    # Native code gives the error's message, not its number.
    told = (n for n in (errno.EMFILE, errno.ENFILE, errno.EAGAIN) if os.strerror(n) in text)
    number = getattr(error, "errno", None) or next(told, errno.EMFILE if _NO_STORE in text else 0)
    lacks = os.strerror(number) if isinstance(error, str) else text
    files, hard_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    processes, hard_processes = resource.getrlimit(resource.RLIMIT_NPROC)
    known = {
        errno.EMFILE: (
            f"{lacks}: this process may have {files} open",
            _more_files(files, hard_files),
        ),
        errno.ENFILE: (f"{lacks}: those of the whole host", "raise `sysctl fs.file-max`"),
        errno.EAGAIN: (
            f"{lacks}: no worker can be started; the user may have {_limit(processes)} processes",
            f"raise the limit with `ulimit -u {_limit(hard_processes, beyond=processes)}`, or that "
            "of the container (`docker run --pids-limit`)",
        ),
        errno.ENOMEM: (f"{lacks}: no memory is left for workers", "start fewer, or stop others"),
        errno.EADDRNOTAVAIL: (
            f"{lacks}: this host has no loopback",
            "bring it up with `ip link set lo up`",
        ),
    }
    room = lacks, "free some space, or give `--runs` a folder on another file system"
    known |= dict.fromkeys((errno.ENOSPC, errno.EDQUOT), room)
    if "temporary directory" in text:
        return (
            "no folder for memory that workers share: /dev/shm and the folders for temporary files "
            "cannot be written",
            "mount /dev/shm (`docker run --shm-size 1g`), or set TMPDIR to a writable folder",
        )
    return known.get(number)


def _more_files(files: int, hard_files: int) -> str:
    """Return how to raise the limit on open files; only root may exceed the hard limit."""
    said = f"raise the limit with `ulimit -n {_limit(hard_files, beyond=files)}`"
    if hard_files != files:
        return said
    return f"{said} as root, or that of the container (`docker run --ulimit nofile=65536`)"


def _limit(number: int, beyond: int = 0) -> str:
    """Return a limit as `ulimit` writes it, or a value to try if it is not above `beyond`."""
    if number == resource.RLIM_INFINITY:
        return "unlimited"
    return str(number if number > beyond else max(65536, 2 * beyond))


def host_memory() -> int:
    """Return the bytes that processes here may use: the host's memory or the cgroup's limit."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in _files("memory.max", "memory.limit_in_bytes"):
        with suppress(OSError, ValueError):  # No limit is "max" in version 2.
            found.append(int(path.read_text()))
    return min(number for number in found if number)


def oom_kills() -> int:
    """Return how many processes of this cgroup the kernel has killed for lack of memory."""
    kills = 0
    for path in _files("memory.events", "memory.oom_control"):
        with suppress(OSError):
            words = [line.split() for line in path.read_text().splitlines()]
            kills += next((int(word[1]) for word in words if word[:1] == ["oom_kill"]), 0)
    return kills


def _files(second: str, first: str) -> list[Path]:
    """Return possible paths of a cgroup file, given its names in versions 2 and 1."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        below = path.strip("/")
        if not controllers:
            found += [_ROOT / below / second, _ROOT / second]
        elif "memory" in controllers.split(","):
            found += [_ROOT / "memory" / below / first]
    return list(dict.fromkeys(found))


def lacks_room(run: Path, spec: Spec, saved: ResumePoint | None) -> str | None:
    """Return the message if the checkpoints of a run that continues from `saved` will not fit."""
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
    """Return the most checkpoints that a run from `step` on adds to the `there` existing ones.

    The oldest is deleted once a new one is complete, so `keep` + 1 exist for a while, beside those
    that stay.
    """
    if (saving := spec.saving) is None:
        return 0
    steps, every = spec.train.steps, saving.every or spec.train.steps
    saves, stay = -(-steps // every) - step // every, 0
    if apart := saving.keep_every:
        stay, both = steps // apart - step // apart, lcm(every, apart)
        saves += stay - (steps // both - step // both)
        there -= min(there, step // apart)
    if saving.keep_best and spec.eval is not None:
        often = spec.eval.every or steps
        saves, stay = saves + -(-steps // often) - step // often, stay + 1
    return max(1, min(saves, saving.keep + 1 + stay - there))


def _free(run: Path) -> int | None:
    """Return the free bytes of a folder's file system, if known; the folder need not exist."""
    try:
        there = next(each for each in (run, *run.absolute().parents) if each.is_dir())
        usage = shutil.disk_usage(there)
    except OSError:  # Opening the folder will report the error.
        return None
    return usage.free if usage.total else None
