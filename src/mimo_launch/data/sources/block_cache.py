"""A cache of limited size on the local disk for what has been fetched.

Decides: which files are removed when there are too many; that no process removes a file that
another one reads.
Relies on: locks of a local file system.
Leaves: what the files hold to `cached_file` and `tables`.
"""

import fcntl
import os
from array import array
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import field
from pathlib import Path

from mimo_launch.diag.frozen import frozen

# Bytes of a block; most blocks of one request. Each block has a number: its checksum, a bit if the
# checksum is known, and a bit if the block is here.
BLOCK, MOST_BLOCKS = 1 << 18, 64
KNOWN, HERE = 1 << 32, 1 << 33


class WrongBytes(Exception):
    """Bytes differ from those that were seen first; the message says which."""


@frozen
class BlockCache:
    """A folder of at most `most` bytes; beyond, the least recently used files are removed."""

    folder: Path
    most: int
    # New bytes since the last look at the folder.
    _new: list[int] = field(default_factory=lambda: [0], compare=False)

    def make_room(self, size: int) -> None:
        """Remove files that no process reads, if `size` new bytes may be too many."""
        self._new[0] += size
        if self._new[0] < min(64 << 20, self.most // 16):
            return
        self._new[0] = 0
        kept = sorted((_used(path) for path in self._files()), key=lambda each: each[1])
        left = sum(size for size, *_ in kept) - self.most
        for taken, _, path in kept:
            if left <= 0:
                return
            left -= taken if _remove(path) else 0

    def _files(self) -> Iterator[Path]:
        yield from self.folder.glob("*.data")
        yield from self.folder.glob("*/*/*.arrow")


def _used(path: Path) -> tuple[int, float, Path]:
    """Return the bytes that a file takes on the disk, and when it was used last."""
    with suppress(OSError):
        found = path.stat()
        return found.st_blocks * 512, found.st_mtime, path
    return 0, 0.0, path


def _remove(path: Path) -> bool:
    """Remove a file that no process holds; return whether it was removed."""
    with suppress(OSError), path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        marks = path.with_suffix(".marks")
        if marks.exists():
            kept = array("Q", [each & ~HERE for each in array("Q", marks.read_bytes())])
            with marks.open("r+b") as out:
                kept.tofile(out)
        path.unlink()
        return True
    return False


@contextmanager
def held(path: Path, *, makes: bool = False) -> Iterator[int]:
    """Hold a file open, so that no process removes it; yield its descriptor. Raises: OSError."""
    flags = os.O_RDWR | os.O_CREAT if makes else os.O_RDONLY
    while True:
        descriptor = os.open(path, flags, 0o644)
        try:
            with suppress(OSError):  # Not all file systems have locks, and files may be others'.
                fcntl.flock(descriptor, fcntl.LOCK_SH)
                os.utime(descriptor)
            if os.fstat(descriptor).st_nlink:  # Otherwise it was removed before the lock.
                yield descriptor
                return
        finally:
            os.close(descriptor)
