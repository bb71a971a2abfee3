"""Where files that are made from data are kept, and the lock for the process that makes them.

Decides: that they lie in the folder that the spec names, else beside the data, else in the user's
cache; that a process waits for the lock of another, which the kernel releases when its holder ends.
Relies on: renaming a file is atomic.
Leaves: what is kept to `index` and `tables`.
"""

import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

FOLDER = ".mimo-index"


def cache_folder(name: str) -> Path:
    """Return a folder of this name in the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "mimo-launch" / name


def kept_folders(asked: str | None, path: object) -> tuple[Path, ...]:
    """Return the folders that may keep files made from `path`; `asked` is `data.index`."""
    if asked is not None:
        return (Path(asked),)
    beside = (path.parent / FOLDER,) if isinstance(path, Path) else ()
    return (*beside, cache_folder("index"))


def writable(folders: Sequence[Path]) -> Path:
    """Return the first folder that can be written or made, or the last."""
    for folder in folders:
        if os.access(folder if folder.exists() else folder.parent, os.W_OK):
            return folder
    return folders[-1]


@contextmanager
def locked(path: Path, wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold a lock; the kernel releases it when this process ends in any way.

    `wait` is called if another process holds it. On a file system without locks, several processes
    make the same files, and one of each is kept.
    """
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            wait()
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            pass
        yield
