"""Tar files: their samples, and the bytes of members.

Decides: that a sample is adjacent members with the same name up to the first dot of the file name,
the rule of the webdataset library
(https://github.com/webdataset/webdataset/blob/main/FAQ.md, "tar format"); the suffixes of media.
Relies on: plain tar files, in which a member is contiguous.
Leaves: the meaning of members to `records` and `decode_media`.
"""

import os
import re
import tarfile
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, cast

# The suffixes of images, with Pillow's names of their formats. Other formats are refused.
IMAGE_FORMATS = {
    "jpg": "JPEG",
    "jpeg": "JPEG",
    "png": "PNG",
    "webp": "WEBP",
    "avif": "AVIF",
    "bmp": "BMP",
    "gif": "GIF",
    "tif": "TIFF",
    "tiff": "TIFF",
    "jp2": "JPEG2000",
    "ppm": "PPM",
    "pgm": "PPM",
}
VIDEO_SUFFIXES = frozenset({"mp4", "m4v", "mov", "webm", "mkv", "avi", "mpg", "mpeg"})
# The end of the suffix of a video stored as a zip of images: `frames.zip`, `1.frames.zip`.
FRAMES_SUFFIX = "frames.zip"
AUDIO_SUFFIXES = frozenset({"wav", "flac", "ogg", "oga", "opus", "mp3", "aif", "aiff", "au", "caf"})
# The prefix of the suffixes of targets, which generators learn to make.
TARGET = "target."
# The suffix of codec tokens: a numpy file.
CODES_SUFFIX = "npy"


def target_of(suffix: str) -> tuple[str, int]:
    """Return the name and number in a target's suffix, such as `target.drawer.1.png`."""
    parts = suffix.split(".")[1:-1]
    number = int(parts.pop()) if parts and parts[-1].isdecimal() else 0
    return ".".join(parts), number


_KEY = re.compile(r"^((?:.*/)?[^./][^./]*)\.([^/]+)$")
_MAX_OPEN = 64
# Long names, times and attributes take a few kilobytes.
_MAX_HEADERS = 1 << 20


@dataclass(frozen=True, slots=True)
class MemberPlace:
    """Where a member's bytes are in its shard."""

    offset: int
    size: int


@dataclass(slots=True)
class Member:
    """A sample in a shard: its key, and the places of its members by suffix.

    `fault` says why the sample cannot be used.
    """

    key: str
    places: dict[str, MemberPlace] = field(default_factory=dict)
    fault: str = ""


class BrokenShard(Exception):
    """A shard cannot be read past some position; the message says where and why."""


def samples_of(path: Path) -> Iterator[Member]:
    """Yield the samples of a shard in order.

    If the end is damaged, the error is raised after the samples before it; the last of these
    samples has a `fault` if some of its bytes are missing.

    Raises: BrokenShard, OSError.
    """
    size, now, is_cut = path.stat().st_size, None, False
    try:
        for member in _headers(path):
            is_link = member.islnk() or member.issym()
            named = _KEY.match(member.name) if member.isreg() or is_link else None
            # The library reserves names like `__url__`. Folders and devices are not samples.
            if named is None or Path(named[1]).name.startswith("__"):
                continue
            key, suffix = named[1], named[2].lower()
            if now is not None and key != now.key:
                yield now
                now = None
            now = now or Member(key)
            if is_link or member.issparse():
                kind = "link" if is_link else "sparse file"
                now.fault = now.fault or f"its `.{suffix}` is a {kind}"
            if suffix in now.places:
                now.fault = f"it has two members `.{suffix}`"
            now.places[suffix] = MemberPlace(member.offset_data, member.size)
            if member.offset_data + member.size > size:
                is_cut = True
                now.fault = f"the shard ends inside its `.{suffix}`"
    except tarfile.TarError as error:
        if now is not None:
            yield now
        if not is_cut:  # Otherwise the fault of the last sample says it.
            raise BrokenShard(str(error)) from error
        return
    if now is not None:
        yield now


def _headers(path: Path) -> Iterator[tarfile.TarInfo]:
    """Yield the members of a tar. Raises: TarError, OSError."""
    end = 0
    try:
        with path.open("rb") as file:
            headers: Any = _Headers(file)
            tar = tarfile.TarFile(fileobj=headers)
            while (member := tar.next()) is not None:
                if member.size < 0 or tar.offset <= end:
                    # A header that points backwards would be read forever.
                    raise tarfile.ReadError(f"a member of {member.size} bytes after byte {end}")
                end, headers.read_bytes = tar.offset, 0
                # `tarfile` would keep all members, but each is read only once.
                cast(Any, tar).members.clear()
                most = sum(len(key) + len(value) for key, value in tar.pax_headers.items())
                if most > _MAX_HEADERS:
                    raise tarfile.ReadError(
                        f"headers of all members have {most:,} bytes; they may have "
                        f"{_MAX_HEADERS:,}"
                    )
                yield member
            # A tar ends with a block of zeros or at the end of the file. At a damaged header,
            # `tarfile` stops without an error.
            stop = tar.offset
            file.seek(stop)
            block = file.read(tarfile.BLOCKSIZE)
            if block.strip(b"\0") or len(block) % tarfile.BLOCKSIZE:
                raise tarfile.ReadError(
                    f"no header of a member at byte {stop}; the rest is not read"
                )
            while block := file.read(_MAX_HEADERS):
                if block.strip(b"\0"):
                    raise tarfile.ReadError(
                        f"there is more after the end of the archive at byte {stop}; join tar "
                        "files with `tar -A`, not with `cat`"
                    )
    except (ValueError, OverflowError, MemoryError, RecursionError) as error:
        raise tarfile.ReadError(f"a bad header after byte {end}: {error}") from error


class _Headers:
    """A file with a limit on the bytes read: the headers of a member may claim any size."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.read_bytes = file, 0
        self.tell, self.seek = file.tell, file.seek

    def read(self, size: int) -> bytes:
        """Return bytes. Raises: ReadError if too many were read since `read_bytes` was 0."""
        self.read_bytes += size
        if size < 0 or self.read_bytes > _MAX_HEADERS:
            raise tarfile.ReadError(
                f"a header of {size:,} bytes at byte {self._file.tell()}; those of a member may "
                f"have {_MAX_HEADERS:,}"
            )
        return self._file.read(size)


class ShardReader:
    """Reads members of shards for any number of threads, which share the open files."""

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
        while len(found) < wanted:  # A call returns at most 2 GiB.
            rest = wanted - len(found)
            more = os.pread(file.descriptor, rest, place.offset + len(found))
            if not more:
                raise EOFError(f"the shard ends {rest} bytes before its member does")
            found += more
        return found

    def _open(self, shard: int) -> "_File":
        """Return an open shard, which stays open while the caller holds it."""
        with self._lock:
            if shard not in self._files:
                self._files[shard] = _File(self.shards[shard])
                if len(self._files) > _MAX_OPEN:
                    self._files.popitem(last=False)
            self._files.move_to_end(shard)
            return self._files[shard]


class _File:
    """A file that is closed when its last reference is gone."""

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDONLY)

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):  # False if opening failed.
            os.close(self.descriptor)
