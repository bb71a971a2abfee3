"""Tar files: their samples, and the bytes of members.

Decides: that a sample is adjacent members with the same name up to the first dot of the file name,
the rule of the webdataset library
(https://github.com/webdataset/webdataset/blob/main/FAQ.md, "tar format").
Relies on: plain tar files, in which a member is contiguous.
Leaves: the meaning of members to `records` and `decode_media`.
"""

import re
import tarfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from mimo_launch.data.sources.remote_files import DataPath
from mimo_launch.data.sources.source_file import (
    BrokenFile,
    Member,
    MemberPlace,
    Part,
    Places,
    SourceFile,
    opened,
)

_KEY = re.compile(r"^((?:.*/)?[^./][^./]*)\.([^/]+)$")
# Long names, times and attributes take a few kilobytes.
_MAX_HEADERS = 1 << 20


def samples_of(path: DataPath) -> Iterator[Member]:
    """Yield the samples of a shard in order.

    If the end is damaged, the error is raised after the samples before it; the last of these
    samples has a `fault` if some of its bytes are missing.

    Raises: BrokenFile, OSError.
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
            raise BrokenFile(str(error)) from error
        return
    if now is not None:
        yield now


def _headers(path: DataPath) -> Iterator[tarfile.TarInfo]:
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


class TarFile(SourceFile):
    """A tar shard; the place of a member is its offset in the file."""

    def __init__(self, path: DataPath) -> None:
        """Open it. Raises: OSError."""
        self._path, self._file = path, opened(path)

    def records(self, part: Part) -> Iterator[Member]:
        """Yield the samples of the shard. Raises: BrokenFile, OSError."""
        del part  # A tar file has no table of contents, so it is one part.
        return samples_of(self._path)

    def share(self, places: Places) -> float:
        """Return the share of the shard up to the end of a sample. Raises: OSError."""
        ends = (each.offset + each.size for each in places.values())
        return max(ends) / self._path.stat().st_size

    def fetch(self, places: Places, suffixes: Collection[str]) -> None:
        """Fetch members, which are adjacent. Raises: SourceGone, OSError."""
        if found := [places[each] for each in suffixes if each in places]:
            self._file.fetch(found)

    def read(self, places: Places, suffix: str, limit: int | None = None) -> bytes:
        """Return the bytes of a member. Raises: OSError; EOFError if the shard is shorter now."""
        return self._file.bytes_at(places[suffix], limit)
