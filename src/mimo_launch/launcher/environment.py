"""What a host does not give a launcher: open files, processes, memory to share, a loopback.

Decides: which errors of the system are said as such, with the limit and the remedy.
Relies on: the numbers of errors, and the limits of this process.
Leaves: what fails inside a worker to `errors`.
"""

import errno
import resource


def environment_fault(error: OSError) -> tuple[str, str] | None:
    """Return what the host lacks and what to do, if that is what an error of the launcher means."""
    lacks = str(error)
    files, hard_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    processes, hard_processes = resource.getrlimit(resource.RLIMIT_NPROC)
    known = {
        errno.EMFILE: (
            f"{lacks}: this process may have {files} open",
            f"raise the limit with `ulimit -n {_limit(hard_files, beyond=files)}`",
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
    if "temporary directory" in lacks:
        return (
            "no folder for memory that workers share: /dev/shm and the folders for temporary files "
            "cannot be written",
            "mount /dev/shm (`docker run --shm-size 1g`), or let TMPDIR name a folder",
        )
    return known.get(error.errno or 0)


def _limit(number: int, beyond: int = 0) -> str:
    """Return a limit as `ulimit` writes it; a value to try if it is no higher than another."""
    if number == resource.RLIM_INFINITY:
        return "unlimited"
    return str(number if number > beyond else max(65536, 2 * beyond))
