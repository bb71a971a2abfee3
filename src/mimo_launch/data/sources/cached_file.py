"""The fetched part of a file from elsewhere: blocks on the local disk, with checksums.

Decides: that a file is kept in segments, each a sparse file of which only fetched blocks take room;
that every block has a checksum once it has been fetched; that a block is fetched once.
Relies on: `block_cache` for the folder.
Leaves: fetching, and repeating it, to `remote_files`.

A segment has two files: its bytes, `NAME.data`, and a number per block, `NAME.marks`, which remains
when the bytes are removed.
"""

import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mimo_launch.data.sources.block_cache import (
    BLOCK,
    HERE,
    KNOWN,
    MOST_BLOCKS,
    BlockCache,
    WrongBytes,
    held,
)
from mimo_launch.data.sources.kept_files import locked

# Lock files for all requests: a hash of the first block of a run picks one.
_LOCKS = 1024
Marks = npt.NDArray[np.uint64]


class CachedFile:
    """The blocks of a file of `size` bytes with this name. Any thread or process may read.

    `fetch` returns the bytes from one offset to another, and may raise any error. With `is_one`
    there is one segment, a plain file once it is complete.
    """

    def __init__(
        self,
        cache: BlockCache,
        name: str,
        size: int,
        fetch: Callable[[int, int], bytes],
        *,
        is_one: bool = False,
    ) -> None:
        self._each = max(size, 1) if is_one else BLOCK * MOST_BLOCKS
        begins = range(0, size, self._each)
        self._segments = [
            _Segment(cache, f"{name}-{n}", begin, min(self._each, size - begin), fetch)
            for n, begin in enumerate(begins)
        ]

    @property
    def path(self) -> Path:
        """The local file of a file with one segment."""
        (only,) = self._segments
        return only.path

    def expect(self, checksums: npt.NDArray[np.uint32]) -> None:
        """Refuse blocks with other checksums than these, from an index."""
        at = 0
        for each in self._segments:
            each.wanted = checksums[at : (at := at + each.num_blocks)]

    def read(self, offset: int, size: int, ahead: int = 0) -> bytes:
        """Return bytes, and fetch up to `ahead` more blocks if any of these is not here.

        Raises: WrongBytes, OSError, what `fetch` raises.
        """
        parts = list(self._parts(offset, size))
        return b"".join(segment.read(*place, ahead) for segment, place in parts)

    def is_here(self, offset: int, size: int) -> bool:
        """Return whether bytes need not be fetched."""
        return all(segment.is_here(*place) for segment, place in self._parts(offset, size))

    def is_known(self) -> bool:
        """Return whether any of it has been fetched."""
        return any(each.marks.exists() for each in self._segments)

    def checksums(self) -> npt.NDArray[np.uint32]:
        """Return the checksum of each block; those that are not known are fetched."""
        return np.concatenate([np.zeros(0, np.uint32), *(s.checksums() for s in self._segments)])

    def complete(self) -> None:
        """Fetch all blocks that are not here."""
        for each in self._segments:
            each.complete()

    def _parts(self, offset: int, size: int) -> Iterator[tuple["_Segment", tuple[int, int]]]:
        """Yield the segments of a range, and offset and size in each."""
        while size > 0:
            number, begin = divmod(offset, self._each)
            here = min(size, self._each - begin)
            yield self._segments[number], (begin, here)
            offset, size = offset + here, size - here


class _Segment:
    """The blocks of a file from `begin` on; `wanted` are checksums from an index.

    Offsets count from the start of the segment, except those for `fetch`.
    """

    def __init__(
        self,
        cache: BlockCache,
        name: str,
        begin: int,
        size: int,
        fetch: Callable[[int, int], bytes],
    ) -> None:
        self._cache, self._begin, self._size, self._fetch = cache, begin, size, fetch
        self.path = cache.folder / f"{name}.data"
        self.marks, self._name = cache.folder / f"{name}.marks", name
        self.num_blocks = -(-size // BLOCK)
        self.wanted: npt.NDArray[np.uint32] | None = None

    def read(self, offset: int, size: int, ahead: int = 0) -> bytes:
        """Return bytes, and fetch up to `ahead` more blocks if any of these is not here.

        Raises: WrongBytes, OSError, what `fetch` raises.
        """
        first, last = offset // BLOCK, min(self.num_blocks, -(-(offset + size) // BLOCK))
        self._cache.folder.mkdir(parents=True, exist_ok=True)
        with held(self.path, makes=True) as data, held(self.marks, makes=True) as marks:
            for is_again in (False, True):
                self._complete(data, marks, first, last, ahead)
                found = _read(data, first * BLOCK, min(last * BLOCK, self._size) - first * BLOCK)
                damaged = self._damaged(found, first, self._numbers(marks, first, last))
                if not damaged:
                    break
                if is_again:
                    raise WrongBytes(f"the bytes of block {damaged[0]:,} in {self.path}")
                for block in damaged:  # By the disk, or by a process that was killed.
                    _write(marks, block, [int(self._numbers(marks, block, block + 1)[0]) & ~HERE])
        return found[offset - first * BLOCK :][:size]

    def checksums(self) -> npt.NDArray[np.uint32]:
        """Return the checksum of each block; those that are not known are fetched."""
        self._cache.folder.mkdir(parents=True, exist_ok=True)
        with held(self.marks, makes=True) as marks:
            numbers = self._numbers(marks, 0, self.num_blocks)
            for block in np.flatnonzero((numbers & np.uint64(KNOWN)) == 0).tolist():
                self.read(block * BLOCK, 1, MOST_BLOCKS)
            return self._numbers(marks, 0, self.num_blocks).astype(np.uint32)

    def complete(self) -> None:
        """Fetch all blocks that are not here."""
        for first in range(0, self.num_blocks, MOST_BLOCKS):
            size = min(MOST_BLOCKS * BLOCK, self._size - first * BLOCK)
            self.read(first * BLOCK, size)

    def is_here(self, offset: int, size: int) -> bool:
        """Return whether bytes need not be fetched."""
        if not self.path.exists():
            return False
        first, last = offset // BLOCK, min(self.num_blocks, -(-(offset + size) // BLOCK))
        with held(self.marks, makes=True) as marks:
            return bool(np.all(self._numbers(marks, first, last) & np.uint64(HERE)))

    def _complete(self, data: int, marks: int, first: int, last: int, ahead: int) -> None:
        """Fetch the blocks that are not here, in runs."""
        more = min(self.num_blocks, last + ahead)
        if not _runs(self._numbers(marks, first, last)):
            return
        for begin, end in _runs(self._numbers(marks, first, more)):
            for start in range(first + begin, first + end, MOST_BLOCKS):
                stop = min(first + end, start + MOST_BLOCKS)
                place = zlib.crc32(f"{self._name} {start}".encode()) % _LOCKS
                with locked(self._cache.folder / f"{place}.lock"):
                    # Another process may have fetched some of them.
                    for a, b in _runs(self._numbers(marks, start, stop)):
                        self._keep(data, marks, start + a, start + b)

    def _keep(self, data: int, marks: int, first: int, last: int) -> None:
        begin, end = first * BLOCK, min(last * BLOCK, self._size)
        self._cache.make_room(end - begin)
        found = self._fetch(self._begin + begin, self._begin + end)
        numbers = self._numbers(marks, first, last)
        if wrong := self._damaged(found, first, numbers):
            at = self._begin + wrong[0] * BLOCK
            raise WrongBytes(f"bytes {at:,} to {at + BLOCK - 1:,}")
        _write_all(data, found, begin)
        new = [KNOWN | HERE | each for each in _checksums(found)]
        _write(marks, first, new)

    def _damaged(self, found: bytes, first: int, numbers: Marks) -> list[int]:
        """Return the blocks that differ from the index, or from what was fetched before."""
        new = np.array(_checksums(found), dtype=np.uint32)
        is_known, known = (numbers & np.uint64(KNOWN)) != 0, numbers.astype(np.uint32)
        if self.wanted is not None:
            is_known, known = np.ones_like(is_known), self.wanted[first : first + len(new)]
        damaged: list[int] = (first + np.flatnonzero(is_known & (known != new))).tolist()
        return damaged

    def _numbers(self, marks: int, first: int, last: int) -> Marks:
        found = np.zeros(last - first, dtype=np.uint64)
        there = np.frombuffer(os.pread(marks, 8 * (last - first), 8 * first), dtype=np.uint64)
        found[: len(there)] = there
        return found


def _runs(numbers: Marks) -> list[tuple[int, int]]:
    """Return begin and end of each run of blocks that are not here."""
    is_here = (numbers & np.uint64(HERE)) != 0
    edges = np.flatnonzero(np.diff(~is_here, prepend=False, append=False)).reshape(-1, 2)
    return [(a, b) for a, b in edges.tolist()]


def _checksums(found: bytes) -> list[int]:
    view = memoryview(found)
    return [zlib.crc32(view[at : at + BLOCK]) for at in range(0, len(found), BLOCK)]


def _write(marks: int, first: int, numbers: list[int]) -> None:
    os.pwrite(marks, np.array(numbers, dtype=np.uint64).tobytes(), 8 * first)


def _write_all(data: int, found: bytes, offset: int) -> None:
    view = memoryview(found)
    while view:
        done = os.pwrite(data, view, offset)
        view, offset = view[done:], offset + done


def _read(data: int, offset: int, size: int) -> bytes:
    """Return bytes of a sparse file, zeros after its end."""
    found = b""
    while len(found) < size and (more := os.pread(data, size - len(found), offset + len(found))):
        found += more
    return found.ljust(size, b"\0")
