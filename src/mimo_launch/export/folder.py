"""A folder that appears whole or not at all.

Decides: that it is written beside its place under another name and renamed at the end, and that
only a folder of an earlier export is ever replaced.
Relies on: renaming a folder being one step on the file systems that we know.
Leaves: what is in it to `export`.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mimo_launch.checkpoint.folder import sync_folder

# Says where an export comes from; with it, a folder is known to be one.
NOTE = "export.json"


class InTheWay(Exception):
    """There is something at the place of the folder; the message says what."""


def check_place(target: Path, *, force: bool) -> None:
    """Refuse a place that is taken. Raises: InTheWay."""
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return
    if not (target / NOTE).is_file():
        raise InTheWay(f"{target} exists and is no earlier export; it is not replaced")
    if not force:
        raise InTheWay(f"{target} exists; --force replaces it")


@contextmanager
def new_folder(target: Path, *, force: bool) -> Iterator[Path]:
    """Yield a folder to write to, which gets its name when the block ends without an error.

    Raises: InTheWay; OSError, after which nothing is left of what was written.
    """
    target = target.absolute()
    check_place(target, force=force)
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f".{target.name}.{os.getpid()}.partial")
    old = target.with_name(f".{target.name}.{os.getpid()}.old")
    unfinished.mkdir()
    try:
        yield unfinished
        for folder in {path.parent for path in unfinished.rglob("*")} | {unfinished}:
            sync_folder(folder)
        if target.exists():
            check_place(target, force=force)
            target.rename(old)
        try:
            unfinished.rename(target)
        except OSError:
            if old.exists():
                old.rename(target)
            raise
        sync_folder(target.parent)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
