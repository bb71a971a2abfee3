"""A file of records, whatever its format: what everything above asks of it.

Decides: that a record is a sample: a key, and members (its text as JSON or plain, images, clips)
by suffix, each with a place that only the format of the file understands; how many files are open.
Relies on: a class per format, which opens a file.
Leaves: formats to `tar_files` and others, which file has which to `file_formats`; the meaning of
members to `samples`.
"""

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from mimo_launch.data.sources.fetching import REQUESTS
from mimo_launch.data.sources.remote_files import DataPath, RemotePath
from mimo_launch.data.sources.shard_names import NamedShard
from mimo_launch.diag.frozen import frozen

# Open files, and bytes of records that were read last.
MAX_OPEN, KEPT = 64, 256 << 20
V = TypeVar("V")


@frozen
class MemberPlace:
    """Where a member is in its file: two numbers, the second of which is its size in bytes."""

    offset: int
    size: int


@dataclass(slots=True)
class Member:
    """A sample in a file: its key, and the places of its members by suffix.

    `fault` says why the sample cannot be used.
    """

    key: str
    places: dict[str, MemberPlace] = field(default_factory=dict)
    fault: str = ""


Places = Mapping[str, MemberPlace]


@frozen
class Part:
    """Consecutive records of a file, by the numbers of its format; `number` of them come before."""

    first: int = 0
    end: int = -1
    number: int = 0


class BrokenFile(Exception):
    """A file cannot be read past some position; the message says where and why."""


class SourceFile(Protocol):
    """An open file of records. Any number of threads may read members."""

    def parts(self) -> Sequence[Part]:
        """Return parts of the file that several processes may look at. Raises: OSError."""
        return (Part(),)

    def records(self, part: Part) -> Iterator[Member]:
        """Yield the samples of a part in order.

        If the end is damaged, the error is raised after the samples before it.
        Raises: BrokenFile, OSError.
        """
        ...

    def share(self, places: Places) -> float:
        """Return the share of the file up to the end of a sample. Raises: OSError."""
        ...

    def fetch(self, places: Places, suffixes: Collection[str]) -> None:
        """Fetch members from elsewhere, for a later `read`. Raises: SourceGone, OSError."""
        return

    def read(self, places: Places, suffix: str, limit: int | None = None) -> bytes:
        """Return the bytes of a member of a sample, given the places of all, or its first `limit`.

        Raises: OSError, EOFError, ValueError if the file is not as it was.
        """
        ...


class Recent:
    """Values that were used last, of limited cost together, for any number of threads."""

    def __init__(self, most: int) -> None:
        self._most, self._cost, self._lock = most, 0, threading.Lock()
        self._values: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], V], cost: Callable[[V], int]) -> V:
        """Return the value of a key, which is made if it is not there."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                found: V = self._values[key][0]
                return found
        value = make()
        self.keep(key, value, cost(value))
        return value

    def keep(self, key: Hashable, value: Any, cost: int) -> None:
        """Keep a value that was just made, alone if its cost is large."""
        with self._lock:
            self._cost += cost - self._values.pop(key, (None, 0))[1]
            self._values[key] = value, cost
            while self._cost > self._most and len(self._values) > 1:
                self._cost -= self._values.popitem(last=False)[1][1]


class OpenFiles:
    """Reads members of files for any number of threads, which share the open files."""

    def __init__(
        self, shards: Sequence[NamedShard], open_file: Callable[[NamedShard, Recent], SourceFile]
    ) -> None:
        self.shards, self._open_file = tuple(shards), open_file
        # All files share it: each of many would keep as much otherwise.
        self._recent = Recent(KEPT)
        self._lock = threading.Lock()
        self._files: OrderedDict[int, SourceFile] = OrderedDict()

    def path(self, shard: int) -> DataPath:
        """Return the path of a file by its number."""
        return self.shards[shard].path

    def read(self, shard: int, places: Places, suffix: str) -> bytes:
        """Return the bytes of a member, as `SourceFile.read` does."""
        return self._open(shard).read(places, suffix)

    def fetch(self, wanted: Sequence[tuple[int, Places, Collection[str]]]) -> None:
        """Fetch members of samples, as (file, places, suffixes), from elsewhere, in parallel.

        Raises: SourceGone, OSError.
        """
        away = [each for each in wanted if isinstance(self.shards[each[0]].path, RemotePath)]
        if away:
            from concurrent.futures import ThreadPoolExecutor

            with ThreadPoolExecutor(min(REQUESTS, len(away)), "fetcher") as threads:
                list(threads.map(lambda each: self._open(each[0]).fetch(*each[1:]), away))

    def _open(self, shard: int) -> SourceFile:
        """Return an open file, which stays open while the caller holds it."""
        with self._lock:
            if shard in self._files:
                self._files.move_to_end(shard)
                return self._files[shard]
        # Outside the lock: it may have to be fetched, and other threads go on meanwhile.
        file = self._open_file(self.shards[shard], self._recent)
        with self._lock:
            self._files[shard] = file
            if len(self._files) > MAX_OPEN:
                self._files.popitem(last=False)
        return file


class BytesByPlace(Protocol):
    """An open file from which bytes are read by their place."""

    def bytes_at(self, place: MemberPlace, limit: int | None = None) -> bytes:
        """Return bytes, or the first `limit`. Raises: OSError; EOFError if the file is shorter."""
        ...

    def fetch(self, places: Sequence[MemberPlace]) -> None:
        """Fetch bytes from elsewhere, for a later `bytes_at`. Raises: SourceGone, OSError."""
        return


def opened(path: DataPath) -> BytesByPlace:
    """Open a file. Raises: OSError."""
    return PlainFile(path) if isinstance(path, Path) else FetchedFile(path)


class FetchedFile(BytesByPlace):
    """A file from elsewhere."""

    def __init__(self, path: RemotePath) -> None:
        self._path = path

    def bytes_at(self, place: MemberPlace, limit: int | None = None) -> bytes:
        """Return bytes, or the first `limit`. Raises: EOFError, SourceGone."""
        wanted = place.size if limit is None else min(place.size, limit)
        found = self._path.read(place.offset, wanted)
        if len(found) < wanted:
            raise EOFError(f"the file ends {wanted - len(found)} bytes before its member does")
        return found

    def fetch(self, places: Sequence[MemberPlace]) -> None:
        """Fetch all bytes from the first of these places to the last. Raises: SourceGone."""
        begin = min(each.offset for each in places)
        self._path.fetch(begin, max(each.offset + each.size for each in places) - begin)


class PlainFile(BytesByPlace):
    """A file that is closed when its last reference is gone."""

    def __init__(self, path: Path) -> None:
        """Open it. Raises: OSError."""
        self.descriptor = os.open(path, os.O_RDONLY)

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):  # False if opening failed.
            os.close(self.descriptor)

    def bytes_at(self, place: MemberPlace, limit: int | None = None) -> bytes:
        """Return bytes, or the first `limit`. Raises: OSError; EOFError if the file is shorter."""
        wanted = place.size if limit is None else min(place.size, limit)
        found = os.pread(self.descriptor, wanted, place.offset)
        while len(found) < wanted:  # A call returns at most 2 GiB.
            rest = wanted - len(found)
            more = os.pread(self.descriptor, rest, place.offset + len(found))
            if not more:
                raise EOFError(f"the file ends {rest} bytes before its member does")
            found += more
        return found
