"""The parts of an index that is being made, kept on disk until it is whole.

Decides: that a process that is killed loses only the parts that it was at; that parts of other
files or settings, or of another version, are thrown away.
Relies on: the lock of the index, which one process holds where there are locks; renaming a file is
atomic.
Leaves: what a part is to `indexer`.
"""

import json
import shutil
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import astuple
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4
from zipfile import BadZipFile

import numpy as np

from mimo_launch.data.index.columns import VERSION, Bad, ShardIndex

_ABOUT = "about"


class KeptParts:
    """A folder with the index of each part that has been made, by the number of the part."""

    def __init__(self, folder: Path, identity: Mapping[str, Any]) -> None:
        """Open the folder, without parts of another identity."""
        text = json.dumps({**identity, "version": VERSION})
        self._all, self._own = folder, folder / sha256(text.encode()).hexdigest()[:16]
        for other in folder.glob("*"):
            if other != self._own:
                shutil.rmtree(other, ignore_errors=True)
        with suppress(OSError):
            self._own.mkdir(parents=True, exist_ok=True)

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
        """Write a part, unless there is no room for it, or another process removes the folder."""
        about = {
            "bad": [astuple(each) for each in made.bad],
            "suffixes": made.suffixes,
            "ignored": made.ignored,
        }
        beside = self._own / f"{number}.{uuid4().hex[:12]}.tmp"
        text = np.frombuffer(json.dumps(about).encode(), dtype=np.uint8)
        save: Any = np.savez  # Its type takes any name but `allow_pickle`, which no column has.
        with suppress(OSError):
            with beside.open("wb") as file:
                save(file, **{_ABOUT: text}, **made.columns)
            beside.rename(self._path(number))

    def remove(self) -> None:
        """Remove all parts."""
        shutil.rmtree(self._all, ignore_errors=True)

    def _path(self, number: int) -> Path:
        return self._own / f"{number}.npz"
