"""Small files that others may have written, read whole.

Decides: that only regular files of a bounded size are read: a FIFO would keep the reader waiting, a
device would never end; and that JSON nested without end is no JSON.
Relies on: the standard library.
Leaves: what the files say to their readers.
"""

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any

MEGABYTE = 10**6


def read_small(path: str | Path, most: int) -> bytes:
    """Return the bytes of a regular file no larger than `most`. Raises: OSError."""
    # Without O_NONBLOCK a FIFO is not even opened before somebody writes to it.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        found = os.fstat(file.fileno())
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        if found.st_size > most:
            raise OSError(errno.EFBIG, f"it is larger than {most / MEGABYTE:g} MB")
        return file.read(most)


def read_json(path: str | Path, most: int = 64 * MEGABYTE) -> Any:
    """Return what a JSON file says. Raises: OSError; ValueError."""
    return parse_json(read_small(path, most).decode("utf-8"))


def parse_json(text: str) -> Any:
    """Return what a JSON text says. Raises: ValueError."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("lists or objects nested too deeply") from None
