"""Whether the kernel ended processes for want of memory.

Decides: which counter is read: that of this process's cgroup, version 2 or 1.
Relies on: /proc and /sys, either of which may be missing.
Leaves: saying so to `report`.
"""

from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")


def oom_kills() -> int:
    """Return how many processes of this cgroup the kernel has killed for want of memory."""
    return sum(_count(path) for path in _counters())


def _counters() -> list[Path]:
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        below = path.strip("/")
        if not controllers:
            found += [_ROOT / below / "memory.events", _ROOT / "memory.events"]
        elif "memory" in controllers.split(","):
            found += [_ROOT / "memory" / below / "memory.oom_control"]
    return list(dict.fromkeys(found))


def _count(path: Path) -> int:
    try:
        words = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return 0
    return next((int(word[1]) for word in words if word[:1] == ["oom_kill"]), 0)
