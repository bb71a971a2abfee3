"""Reads small files that other programs may have written.

Decides: that only regular files of a limited size are read: a FIFO would block the reader, a device
would never end; that JSON nested too deeply is an error.
Relies on: the standard library.
Leaves: the meaning of the files to their readers.
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
    # Without O_NONBLOCK, opening a FIFO blocks until a process opens it for writing.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        found = os.fstat(file.fileno())
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        if found.st_size > most:
            raise OSError(errno.EFBIG, f"it is larger than {most / MEGABYTE:g} MB")
        return file.read(most)


def read_json(path: str | Path, most: int = 64 * MEGABYTE) -> Any:
    """Return the content of a JSON file. Raises: OSError; ValueError."""
    return parse_json(read_small(path, most).decode("utf-8"))


def parse_json(text: str) -> Any:
    """Return the content of a JSON text. Raises: ValueError."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("lists or objects nested too deeply") from None
