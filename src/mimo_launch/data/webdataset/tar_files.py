"""Shards: which tar files a pattern names, which samples they hold, and bytes out of them.

Decides: what a sample is: neighbouring members with one name up to the first dot of the file name,
the rule of the webdataset library
(https://github.com/webdataset/webdataset/blob/main/FAQ.md, "tar format").
Relies on: plain tar files, in which a member stands in one piece at an offset.
Leaves: what members mean to `records` and `decode`.
"""

import os
import re
import tarfile
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

_KEY = re.compile(r"^((?:.*/)?[^./][^./]*)\.([^/]+)$")
_MAX_OPEN = 64


@dataclass(frozen=True, slots=True)
class MemberPlace:
    """Where a member's bytes are in its shard."""

    offset: int
    size: int


@dataclass(slots=True)
class Member:
    """A sample as it stands in a shard: its key, and by suffix where its members are.

    `fault` says why it is no sample.
    """

    key: str
    places: dict[str, MemberPlace] = field(default_factory=dict)
    fault: str = ""


class BrokenShard(Exception):
    """A shard cannot be read on from some place; the message says where and why."""


def samples_of(path: Path) -> Iterator[Member]:
    """Yield the samples of a shard in order.

    A damaged end is raised behind the samples before it; the last of these has a `fault` if its
    bytes are not all there.

    Raises: BrokenShard, OSError.
    """
    size, now = path.stat().st_size, None
    try:
        for key, suffix, place, fault in _members(path):
            if now is not None and key != now.key:
                yield now
                now = None
            now = now or Member(key)
            now.fault = now.fault or fault
            if suffix in now.places:
                now.fault = f"it has two members `.{suffix}`"
            now.places[suffix] = place
            if place.offset + place.size > size:
                now.fault = f"the shard ends inside its `.{suffix}`"
    except tarfile.TarError as error:
        if now is not None:
            yield now
        if now is None or not now.fault:
            raise BrokenShard(str(error)) from error
        return
    if now is not None:
        yield now


def _members(path: Path) -> Iterator[tuple[str, str, MemberPlace, str]]:
    """Yield key, suffix, place and fault of the files of a tar. Raises: TarError, OSError."""
    for member in _headers(path):
        # Names like `__url__` are the library's own. Folders and devices are no samples.
        is_link = member.islnk() or member.issym()
        named = _KEY.match(member.name) if member.isreg() or is_link else None
        if named is None or Path(named[1]).name.startswith("__"):
            continue
        suffix, fault = named[2].lower(), ""
        if is_link or member.issparse():
            fault = f"its `.{suffix}` is a {'link' if is_link else 'sparse file'}"
        yield named[1], suffix, MemberPlace(member.offset_data, member.size), fault


def _headers(path: Path) -> Iterator[tarfile.TarInfo]:
    """Yield the members of a tar. Raises: TarError, OSError."""
    end = 0
    try:
        with tarfile.open(path, "r:") as tar:
            while (member := tar.next()) is not None:
                if member.size < 0 or tar.offset <= end:
                    # A header that sends its reader back would be read for ever.
                    raise tarfile.ReadError(f"a member of {member.size} bytes behind byte {end}")
                end = tar.offset
                cast(
                    Any, tar
                ).members.clear()  # It keeps all it has seen, for questions nobody asks here.
                yield member
            _look_at_end(path, tar.offset)
    except (ValueError, OverflowError, MemoryError) as error:
        raise tarfile.ReadError(f"a header behind byte {end} makes no sense: {error}") from error


def _look_at_end(path: Path, offset: int) -> None:
    """Raise TarError if what ended a tar is no end: tarfile stops at a damaged header in silence.

    A tar ends with a block of zeros, or where the file does.
    """
    with path.open("rb") as file:
        file.seek(offset)
        block = file.read(tarfile.BLOCKSIZE)
    if block.strip(b"\0") or len(block) % tarfile.BLOCKSIZE:
        raise tarfile.ReadError(f"no header of a member at byte {offset}; what follows is not read")


class ShardReader:
    """Reads members of shards; for any number of threads, which share the shards it keeps open."""

    def __init__(self, shards: Sequence[Path]) -> None:
        self.shards = tuple(shards)
        self._lock = threading.Lock()
        self._files: OrderedDict[int, _File] = OrderedDict()

    def read(self, shard: int, place: MemberPlace, limit: int | None = None) -> bytes:
        """Return the bytes of a member, or its first `limit`.

        Raises: OSError; EOFError if the shard is shorter than it was.
        """
        wanted = place.size if limit is None else min(place.size, limit)
        file = self._open(shard)
        found = os.pread(file.descriptor, wanted, place.offset)
        while len(found) < wanted:  # One call returns at most 2 GiB.
            rest = wanted - len(found)
            more = os.pread(file.descriptor, rest, place.offset + len(found))
            if not more:
                raise EOFError(f"the shard ends {rest} bytes before the member does")
            found += more
        return found

    def _open(self, shard: int) -> "_File":
        """Return an open shard, which stays open for as long as its caller holds it."""
        with self._lock:
            if shard not in self._files:
                self._files[shard] = _File(self.shards[shard])
                if len(self._files) > _MAX_OPEN:
                    self._files.popitem(last=False)
            self._files.move_to_end(shard)
            return self._files[shard]


class _File:
    """A file that is closed when nobody holds it any more."""

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDONLY)

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):  # It could be opened.
            os.close(self.descriptor)
