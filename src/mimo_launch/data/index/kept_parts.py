"""The parts of an index that is being made, kept on disk until it is whole.

Decides: that a process that is killed loses only the parts that it was at; that parts of other
files or settings, or of another version, are thrown away.
Relies on: the lock of the index, which one process holds; renaming a file is atomic.
Leaves: what a part is to `indexer`.
"""

import json
import os
import shutil
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import astuple
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from mimo_launch.data.index.columns import VERSION, Bad, ShardIndex

_IDENTITY, _ABOUT = "identity.json", "about"


class KeptParts:
    """A folder with the index of each part that has been made, by the number of the part."""

    def __init__(self, folder: Path, identity: Mapping[str, Any]) -> None:
        """Open the folder, without parts of another identity. Raises: OSError."""
        self._folder, text = folder, json.dumps({**identity, "version": VERSION})
        path = folder / _IDENTITY
        with suppress(OSError, ValueError):
            if path.read_text(encoding="utf-8") == text:
                return
        self.remove()
        folder.mkdir()
        path.write_text(text, encoding="utf-8")

    def load(self, number: int) -> ShardIndex | None:
        """Return a part; None if it has not been made, or cannot be read."""
        try:
            with np.load(self._path(number), allow_pickle=False) as found:
                columns = {name: found[name] for name in found.files}
            about = json.loads(columns.pop(_ABOUT).tobytes())
            bad = tuple(Bad(*each) for each in about["bad"])
            return ShardIndex(columns, tuple(about["suffixes"]), bad, Counter(about["ignored"]))
        except (OSError, ValueError, KeyError, TypeError, EOFError, BadZipFile):
            return None

    def keep(self, number: int, made: ShardIndex) -> None:
        """Write a part. Raises: OSError."""
        about = {
            "bad": [astuple(each) for each in made.bad],
            "suffixes": made.suffixes,
            "ignored": made.ignored,
        }
        beside = self._folder / f"{number}.{os.getpid()}.tmp"
        with beside.open("wb") as file:
            text = np.frombuffer(json.dumps(about).encode(), dtype=np.uint8)
            save: Any = np.savez  # Its type takes any name but `allow_pickle`, which no column has.
            save(file, **{_ABOUT: text}, **made.columns)
        beside.rename(self._path(number))

    def remove(self) -> None:
        """Remove all parts."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _path(self, number: int) -> Path:
        return self._folder / f"{number}.npz"
