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

_KEY = re.compile(r"^((?:.*/)?[^./][^./]*)\.([^/]+)$")
_MAX_OPEN = 64


@dataclass(frozen=True, slots=True)
class Place:
    """Where a member's bytes are in its shard."""

    offset: int
    size: int


@dataclass(slots=True)
class Member:
    """A sample as it stands in a shard: its key, and by suffix where its members are.

    `fault` says why it is no sample.
    """

    key: str
    places: dict[str, Place] = field(default_factory=dict)
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
        for key, suffix, place in _members(path):
            if now is not None and key != now.key:
                yield now
                now = None
            now = now or Member(key)
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


def _members(path: Path) -> Iterator[tuple[str, str, Place]]:
    """Yield key, suffix and place of the files of a tar. Raises: TarError, OSError."""
    with tarfile.open(path, "r:") as tar:
        while (member := tar.next()) is not None:
            # Names like `__url__` are the library's own.
            named = _KEY.match(member.name) if member.isreg() else None
            if named is not None and not Path(named[1]).name.startswith("__"):
                yield named[1], named[2].lower(), Place(member.offset_data, member.size)
        _look_at_end(path, tar.offset)


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
    """Reads members of shards; for any number of threads, each of which keeps some shards open."""

    def __init__(self, shards: Sequence[Path]) -> None:
        self.shards = tuple(shards)
        self._local = threading.local()

    def read(self, shard: int, place: Place, limit: int | None = None) -> bytes:
        """Return the bytes of a member, or its first `limit`.

        Raises: OSError; EOFError if the shard is shorter than it was.
        """
        wanted = place.size if limit is None else min(place.size, limit)
        found = os.pread(self._open(shard), wanted, place.offset)
        while len(found) < wanted:  # One call returns at most 2 GiB.
            more = os.pread(self._open(shard), wanted - len(found), place.offset + len(found))
            if not more:
                raise EOFError(f"the shard ends {wanted - len(found)} bytes before the member does")
            found += more
        return found

    def _open(self, shard: int) -> int:
        """Return the descriptor of an open shard of this thread."""
        files: OrderedDict[int, _File] | None = getattr(self._local, "files", None)
        if files is None:
            files = self._local.files = OrderedDict()
        if shard not in files:
            files[shard] = _File(self.shards[shard])
            if len(files) > _MAX_OPEN:
                files.popitem(last=False)
        files.move_to_end(shard)
        return files[shard].descriptor


class _File:
    """A file that is closed when nobody holds it any more."""

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDONLY)

    def __del__(self) -> None:
        os.close(self.descriptor)
