"""What a host does not give a run: open files, processes, memory to share, a loopback.

Decides: which errors of the system are said as such, with the limit and the remedy; that a run may
open as many files as the host allows it to, and how many it needs.
Relies on: the numbers of errors, or their words where native code has no number, and the limits of
this process.
Leaves: showing them to the console and to `failure_report`.
"""

import errno
import os
import resource

# libuv, which the stores of torch use, says no more than this.
_NO_STORE = "init uv loop"
# Of workers and of their launcher; 2 workers were seen to have 66 open each, 8 had 110.
_FILES, _FILES_PER_WORKER = 64, 6


def allow_open_files() -> None:
    """Raise the limit of open files of this process and its workers as far as it may be raised."""
    files, hard_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files != hard_files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard_files, hard_files))


def too_few_files(num_workers: int) -> tuple[str, str] | None:
    """Return what is wrong and what to do if so many workers may not open what they need.

    Beyond the limit gloo and the store of torch abort, or wait for minutes.
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
    """Return what the host lacks and what to do, if that is what an error or its text means."""
    text = str(error)
    number = getattr(error, "errno", None) or _number_in(text)
    lacks = os.strerror(number) if isinstance(error, str) else text
    files, hard_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    processes, hard_processes = resource.getrlimit(resource.RLIMIT_NPROC)
    known = {
        errno.EMFILE: (
            f"{lacks}: this process may have {files} open",
            _more_files(files, hard_files),
        ),
        errno.ENFILE: (f"{lacks}: all of the host", "raise `sysctl fs.file-max`"),
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
    if "temporary directory" in text:
        return (
            "no folder for memory that workers share: /dev/shm and the folders for temporary files "
            "cannot be written",
            "mount /dev/shm (`docker run --shm-size 1g`), or let TMPDIR name a folder",
        )
    return known.get(number)


def _more_files(files: int, hard_files: int) -> str:
    """Return how to raise the limit of open files; beyond the hard one only root may."""
    said = f"raise the limit with `ulimit -n {_limit(hard_files, beyond=files)}`"
    if hard_files != files:
        return said
    return f"{said} as root, or that of the container (`docker run --ulimit nofile=65536`)"


def _number_in(text: str) -> int:
    """Return the number of the error that native code tells in words, or 0."""
    said = (n for n in (errno.EMFILE, errno.ENFILE, errno.EAGAIN) if os.strerror(n) in text)
    return next(said, errno.EMFILE if _NO_STORE in text else 0)


def _limit(number: int, beyond: int = 0) -> str:
    """Return a limit as `ulimit` writes it; a value to try if it is no higher than another."""
    if number == resource.RLIM_INFINITY:
        return "unlimited"
    return str(number if number > beyond else max(65536, 2 * beyond))
