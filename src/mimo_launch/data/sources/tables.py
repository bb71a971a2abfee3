"""Tables of records: Parquet files, and Arrow files as `datasets` saves them.

Decides: that a record is a row, named by its number counted from 0; that a small row group of a
Parquet file is read whole for a row, and kept for a while, but a large one is copied once to an
Arrow file, because writers put all of its photographs into one page, which is decoded as a whole;
that a damaged row group is one bad record.
Relies on: pyarrow, imported on first use; memory maps for Arrow files; `kept_files` for folders.
Leaves: what a row says to `record_shapes`, the files that it names to `media_folders`.
"""

import errno
import hashlib
import os
import shutil
import threading
import weakref
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

from mimo_launch.data.sources.block_cache import held
from mimo_launch.data.sources.kept_files import locked, writable
from mimo_launch.data.sources.media_folders import ShapedRecords
from mimo_launch.data.sources.named_media import BadRecord
from mimo_launch.data.sources.record_shapes import ShapedRecord, shaped
from mimo_launch.data.sources.remote_files import RemotePath
from mimo_launch.data.sources.shard_names import NamedShard
from mimo_launch.data.sources.source_file import (
    Member,
    MemberPlace,
    Part,
    Places,
    Recent,
    SourceFile,
)

# Bytes and rows that one process looks at, and rows that are in memory at once.
PART, MOST_ROWS, _ROWS = 32 << 20, 1 << 14, 64
# The largest row group: it is in memory as a whole, several times. From `LARGE` bytes on, it takes
# longer to decode than a photograph.
MAX_GROUP, LARGE = 2 << 30, 8 << 20
# The folder of copies; the bytes that a memory-mapped copy counts among recent groups.
_COPIES, _MAP = "rows", 1 << 20


class TableFile(SourceFile):
    """A table; the place of a record is the number of its row. A part is a range of rows."""

    def __init__(self, shard: NamedShard, recent: Recent) -> None:
        """Open it. Raises: OSError, ValueError."""
        self._records = ShapedRecords(shard, lambda place: self._row(place.offset), recent)
        self._begins: Sequence[int] = (0,)

    def _here(self, shard: NamedShard) -> Path:
        """Return a local path; a file from elsewhere is fetched whole, because pyarrow reads it."""
        if isinstance(shard.path, Path):
            return shard.path
        self._held = ExitStack()
        weakref.finalize(self, self._held.close)
        return self._held.enter_context(shard.path.whole())

    @abstractmethod
    def _group(self, group: int) -> Any:
        """Return a group of rows as a table. Raises: OSError, ValueError."""

    @abstractmethod
    def _size(self, group: int) -> int:
        """Return the bytes of a group of rows in the file, or in memory."""

    def parts(self) -> Sequence[Part]:
        """Return ranges of rows: of whole groups, unless these have many rows."""
        found, size, first = list[Part](), 0, 0
        for group, end in enumerate(self._begins[1:]):
            size += self._size(group)
            while end - first > MOST_ROWS:
                found.append(Part(first, first + MOST_ROWS, first))
                first += MOST_ROWS
            if size >= PART or end == self._begins[-1]:
                found.append(Part(first, end, first))
                first, size = end, 0
        return found or (Part(),)

    def records(self, part: Part) -> Iterator[Member]:
        """Yield the rows of a part; a group that cannot be read is one bad record."""
        stop = self._begins[-1] if part.end < 0 else part.end
        for group, (begin, end) in enumerate(pairwise(self._begins)):
            first, last = max(begin, part.first), min(end, stop)
            if first >= last:
                continue
            try:
                table = self._group(group)
            except (OSError, ValueError) as error:
                yield Member(f"rows {first} to {last - 1}", fault=f"they cannot be read: {error}")
                continue
            for start in range(first, last, _ROWS):
                rows = _shaped(table.slice(start - begin, min(_ROWS, last - start)))
                for number, read in enumerate(rows, start=start):
                    yield self._records.member(f"row {number}", MemberPlace(number, 0), read)

    def share(self, places: Places) -> float:
        """Return the share of the rows up to a record."""
        return (places["json"].offset + 1) / self._begins[-1]

    def read(self, places: Places, suffix: str, limit: int | None = None) -> bytes:
        """Return the text of a row, or a medium. Raises: OSError, ValueError."""
        return self._records.read(places, suffix, limit)

    def _row(self, number: int) -> ShapedRecord:
        if not 0 <= number < self._begins[-1]:
            raise BadRecord("it is not in the file any more")
        group = bisect_right(self._begins, number) - 1
        return _shaped_row(self._group(group).slice(number - self._begins[group], 1))


def _shaped(rows: Any) -> list[Callable[[], ShapedRecord]]:
    """Return functions that return each row of a table as a record, and may raise BadRecord."""
    try:
        return [partial(shaped, row) for row in rows.to_pylist()]
    except Exception:  # As in `_shaped_row`, which says of which row.
        return [partial(_shaped_row, rows.slice(place, 1)) for place in range(len(rows))]


def _shaped_row(row: Any) -> ShapedRecord:
    """Return the only row of a table as a record. Raises: BadRecord."""
    found = {}
    for name, column in zip(row.schema.names, row.columns, strict=True):
        try:
            found[name] = column.to_pylist()[0]
        except Exception as error:  # Of text that is not UTF-8, or a date that Python cannot hold.
            raise BadRecord(f"its `{name}` cannot be read: {error}") from error
    return shaped(found)


class ParquetTable(TableFile):
    """A Parquet file, whose groups are row groups."""

    def __init__(self, shard: NamedShard, recent: Recent) -> None:
        """Open it. Raises: OSError, ValueError."""
        import pyarrow.parquet

        super().__init__(shard, recent)
        self._file = pyarrow.parquet.ParquetFile(self._here(shard))
        # A file is read by one thread at a time.
        self._lock = threading.Lock()
        self._recent, self._path, self._shard = recent, shard.path, shard
        found = self._file.metadata
        self._sizes = [found.row_group(n).total_byte_size for n in range(found.num_row_groups)]
        rows = (found.row_group(n).num_rows for n in range(found.num_row_groups))
        self._begins = list(accumulate(rows, initial=0))

    def _group(self, group: int) -> Any:
        if self._sizes[group] > MAX_GROUP:
            raise BadRecord(
                f"a row group of {self._sizes[group]:,} bytes; one may have {MAX_GROUP:,}: write "
                "the file with `row_group_size=100`"
            )
        if self._shard.kept and self._sizes[group] >= LARGE:
            # Where no copy can be written or read, the file has the rows, too.
            with suppress(OSError, ValueError):
                copy = self._copy(group)
                return self._recent.get(copy, lambda: _held_copy(copy), lambda _: _MAP)
        key = self._path, "group", group
        return self._recent.get(key, lambda: self._read(group), lambda table: int(table.nbytes))

    def _read(self, group: int) -> Any:
        with self._lock:
            return self._file.read_row_group(group, use_threads=False)

    def _copy(self, group: int) -> Path:
        """Return an Arrow file with the rows of a group, made if needed.

        Raises: OSError, also without room for it; ValueError if the group cannot be read.
        """
        found = self._path.stat()
        state = f"{found.st_size:x}-{found.st_mtime_ns:x}"
        places = [folder / f"{state}-{group}.arrow" for folder in copies_of(self._shard)]
        if (there := next(filter(Path.is_file, places), None)) is not None:
            return there
        path = writable(self._shard.kept) / places[0].relative_to(self._shard.kept[0])
        path.parent.mkdir(parents=True, exist_ok=True)
        for old in path.parent.glob("*.arrow"):
            if not old.name.startswith(state):
                old.unlink(missing_ok=True)
        if shutil.disk_usage(path.parent).free < 2 * self._sizes[group]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if isinstance(self._path, RemotePath):
            self._path.fetching.cache.make_room(self._sizes[group])
        with locked(path.with_suffix(".lock")):
            if not path.is_file():
                # Left by processes that were killed.
                for part in path.parent.glob(f"{path.stem}.*.part"):
                    part.unlink(missing_ok=True)
                self._write(group, path)
        return path

    def _write(self, group: int, path: Path) -> None:
        import pyarrow

        # A name of its own, because not all file systems have locks.
        made = path.with_suffix(f".{uuid4().hex[:12]}.part")
        try:
            with self._lock, pyarrow.ipc.new_file(str(made), self._file.schema_arrow) as file:
                for rows in self._file.iter_batches(_ROWS, row_groups=[group], use_threads=False):
                    file.write_batch(rows)
            made.rename(path)
        finally:
            made.unlink(missing_ok=True)

    def _size(self, group: int) -> int:
        return int(self._sizes[group])


class ArrowTable(TableFile):
    """An Arrow file or stream in a memory map, whose groups are record batches."""

    def __init__(self, shard: NamedShard, recent: Recent) -> None:
        """Open it. Raises: OSError, ValueError."""
        super().__init__(shard, recent)
        self._batches = _mapped(self._here(shard)).read_all().to_batches()
        self._begins = list(accumulate(map(len, self._batches), initial=0))

    def _group(self, group: int) -> Any:
        return self._batches[group]

    def _size(self, group: int) -> int:
        return int(self._batches[group].nbytes)


def _mapped(path: Path) -> Any:
    """Return a reader of an Arrow file or stream in a memory map. Raises: OSError, ValueError."""
    import pyarrow

    mapped = pyarrow.memory_map(str(path))
    is_file = mapped.read(6) == b"ARROW1"
    mapped.seek(0)
    return (pyarrow.ipc.open_file if is_file else pyarrow.ipc.open_stream)(mapped)


def _held_copy(path: Path) -> Any:
    """Return the rows of a copy, which no process removes while they are used."""
    stack = ExitStack()
    stack.enter_context(held(path))
    rows = _mapped(path).read_all()
    weakref.finalize(rows, stack.close)
    return rows


def copies_of(shard: NamedShard) -> tuple[Path, ...]:
    """Return the folders in which copies of the row groups of a file may be."""
    name = hashlib.sha256(str(shard.path.absolute()).encode()).hexdigest()[:16]
    return tuple(folder / _COPIES / name for folder in shard.kept)


def copied_bytes(shard: NamedShard) -> int:
    """Return the bytes of the copies of the row groups of a file."""
    copies = (each for folder in copies_of(shard) for each in folder.glob("*.arrow"))
    return sum(each.stat().st_size for each in copies)
