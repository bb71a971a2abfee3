"""Files at addresses such as `s3://bucket/x.tar`, read like local files.

Decides: that reading in order fetches further and further ahead; that wrong bytes
are fetched again, and that a run ends if they stay wrong.
Relies on: `fetching` for requests, `block_cache` for what has been fetched and its checksums.
Leaves: formats to the classes of files.
"""

import hashlib
import io
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from mimo_launch.data.sources.block_cache import MOST_BLOCKS, WrongBytes, held
from mimo_launch.data.sources.fetching import (
    FEW,
    REQUESTS,
    Fetching,
    NotFetched,
    SourceGone,
    file_system,
    in_time,
    known,
    patiently,
    pause,
)
from mimo_launch.diag.frozen import frozen

# Imported where needed: a spec is checked without numpy.
if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from mimo_launch.data.sources.cached_file import CachedFile

V = TypeVar("V")


@frozen
class State:
    """Size in bytes of a file, and a number that changes with it, as `Path.stat` gives them."""

    st_size: int
    st_mtime_ns: int


class RemotePath:
    """The address of a file, with the parts of `pathlib.Path` that readers use."""

    def __init__(self, url: str, fetching: Fetching) -> None:
        self.url, self.fetching = url, fetching

    def __str__(self) -> str:
        return self.url

    def __hash__(self) -> int:
        return hash(self.url)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemotePath) and other.url == self.url

    def __reduce__(self) -> tuple[type["RemotePath"], tuple[str, Fetching]]:
        return RemotePath, (self.url, self.fetching)

    @property
    def name(self) -> str:
        """The last part of the address, without a query."""
        return self.url.partition("?")[0].rpartition("/")[2]

    def absolute(self) -> "RemotePath":
        """Return the address."""
        return self

    def is_dir(self) -> bool:
        """Return False: a folder is named by a pattern."""
        return False

    @cached_property
    def _state(self) -> State:
        size, version = known(self.fetching, f"size of {self.url}", self.url, self._ask)
        number = int.from_bytes(hashlib.sha256(version.encode()).digest()[:6], "little")
        return State(size, number)

    def _ask(self) -> list[Any]:
        fs = file_system(self.url)
        found = in_time(fs, fs._info, self.url)
        names = ("ETag", "etag", "md5Hash", "LastModified", "Last-Modified")
        version = next((str(found[name]) for name in names if found.get(name)), "")
        if found.get("size") is None:
            raise ValueError("the server does not say its size")
        return [int(found["size"]), version]

    def stat(self) -> State:
        """Return size and version. Raises: SourceGone, NotFetched."""
        return self._state

    @cached_property
    def cached(self) -> "CachedFile":
        """What has been fetched of it."""
        return self._blocks(is_one=False)

    @cached_property
    def _table(self) -> "CachedFile":
        """The same, as one file."""
        return self._blocks(is_one=True)

    def _blocks(self, *, is_one: bool) -> "CachedFile":
        from mimo_launch.data.sources.cached_file import CachedFile

        state = self.stat()
        name = hashlib.sha256(f"{self.url} {state} {is_one}".encode()).hexdigest()[:24]
        cache = self.fetching.cache
        return CachedFile(cache, name, state.st_size, self._fetch, is_one=is_one)

    def checksums(self) -> "npt.NDArray[np.uint32]":
        """Return the checksum of each block. Raises: SourceGone, OSError of the disk."""
        found = self._table if self._table.is_known() else self.cached
        return self._checked(found.checksums)

    def expect(self, checksums: "npt.NDArray[np.uint32]") -> None:
        """Refuse other bytes than those with these checksums."""
        self.cached.expect(checksums)
        self._table.expect(checksums)

    def read(self, offset: int, size: int, ahead: int = 0) -> bytes:
        """Return bytes, fewer at the end. Raises: SourceGone, NotFetched, OSError of the disk."""
        size = max(0, min(size, self.stat().st_size - offset))
        if not size:
            return b""
        return self._checked(lambda: self.cached.read(offset, size, ahead))

    def fetch(self, offset: int, size: int) -> None:
        """Fetch bytes for a later `read`. Raises: SourceGone, NotFetched, OSError of the disk."""
        if not self.cached.is_here(offset, size):
            self.read(offset, size)

    def open(self, mode: str = "rb") -> io.BufferedReader:
        """Open it to read it from start to end."""
        del mode
        return io.BufferedReader(_Stream(self), 1 << 16)

    @contextmanager
    def whole(self) -> Iterator[Path]:
        """Fetch it whole, hold it, yield its path. Raises: SourceGone, NotFetched, OSError."""
        self._checked(self._table.complete)
        with held(self._table.path):
            # It may have been removed before it was held.
            self._checked(self._table.complete)
            yield self._table.path

    def _checked(self, read: Callable[[], V]) -> V:
        """Return what `read` returns; wrong bytes are fetched again. Raises: SourceGone."""
        for tries in range(FEW):
            try:
                return read()
            except WrongBytes as error:
                why = str(error)
                time.sleep(pause(tries))
        raise SourceGone(
            f"{self.url}: {why} are not those that were read first, in {FEW} requests: restore "
            "the file as it was, or remove its index to read it as it is now"
        )

    def _fetch(self, begin: int, end: int) -> bytes:
        def ask() -> bytes:
            fs = file_system(self.url)
            found: bytes = in_time(fs, fs._cat_file, self.url, start=begin, end=end)
            if len(found) != end - begin:
                raise OSError(f"{len(found):,} bytes came, {end - begin:,} were asked for")
            return found

        if not self.fetching.is_on:
            raise NotFetched(f"{self.url} has not been fetched")
        return patiently(self.fetching, self.url, ask)


class _Stream(io.RawIOBase):
    """Reads a file from start to end; each read fetches further ahead."""

    def __init__(self, path: RemotePath) -> None:
        self._path, self._at, self._ahead = path, 0, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        begin = {os.SEEK_SET: 0, os.SEEK_CUR: self._at}.get(whence)
        self._at = offset + (self._path.stat().st_size if begin is None else begin)
        return self._at

    def readinto(self, buffer: Any) -> int:
        found = self._path.read(self._at, len(buffer), self._ahead)
        buffer[: len(found)] = found
        self._at += len(found)
        self._ahead = min(MOST_BLOCKS - 1, 2 * self._ahead + 1)
        return len(found)


DataPath = Path | RemotePath


def remote_names(pattern: str, fetching: Fetching) -> list[str]:
    """Return the addresses that match a pattern. Raises: SourceGone, NotFetched."""

    def ask() -> list[str]:
        scheme = pattern.partition("://")[0]
        fs = file_system(pattern)
        found = in_time(fs, fs._glob, pattern)
        return sorted(f"{scheme}://{each}" for each in found)

    return list(known(fetching, f"names of {pattern}", pattern, ask))


def ask_for_states(paths: Sequence[object]) -> None:
    """Ask for size and version of all files from elsewhere, in parallel. Raises: SourceGone."""
    remote = [path for path in paths if isinstance(path, RemotePath)]
    if remote:
        # Imported here: most specs name no such files, and a command starts faster without it.
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(min(REQUESTS, len(remote)), "fetcher") as threads:
            list(threads.map(RemotePath.stat, remote))
