"""The memory of this host, and whether the kernel ended processes for want of it.

Decides: which files are read: those of this process's cgroup, version 2 or 1.
Relies on: /proc and /sys, either of which may be missing.
Leaves: saying so to `failure_report`.
"""

import os
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")


def host_memory() -> int:
    """Return the bytes that processes here may use: those of the host, or the limit of a cgroup."""
    limits = [_limit(path) for path in _files("memory.max", "memory.limit_in_bytes")]
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([whole, *(limit for limit in limits if limit)])


def oom_kills() -> int:
    """Return how many processes of this cgroup the kernel has killed for want of memory."""
    return sum(_count(path) for path in _files("memory.events", "memory.oom_control"))


def _files(second: str, first: str) -> list[Path]:
    """Return where files of this cgroup may be, by their names in versions 2 and 1."""
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


def _count(path: Path) -> int:
    try:
        words = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return 0
    return next((int(word[1]) for word in words if word[:1] == ["oom_kill"]), 0)


def _limit(path: Path) -> int:
    """Return the limit in a file, or 0 if there is none."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # "max", in version 2.
        return 0
