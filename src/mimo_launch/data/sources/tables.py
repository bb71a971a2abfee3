"""Tables of records: Parquet files, and Arrow files as `datasets` saves them.

Decides: that a record is a row, named by its number counted from 0; that of a Parquet file a whole
row group is read for a row, and kept for a while; that a damaged row group is one bad record.
Relies on: pyarrow, imported on first use; memory maps for Arrow files.
Leaves: what a row says to `record_shapes`, the files that it names to `media_folders`.
"""

import threading
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

from mimo_launch.data.sources.media_folders import ShapedRecords
from mimo_launch.data.sources.record_shapes import BadRecord, ShapedRecord, shaped
from mimo_launch.data.sources.shard_names import NamedShard
from mimo_launch.data.sources.source_file import (
    Member,
    MemberPlace,
    Part,
    Places,
    Recent,
    SourceFile,
)

# Bytes that one process looks at, and rows that are in memory at once.
PART, _ROWS = 32 << 20, 64
# The largest row group: it is in memory as a whole, several times.
MAX_GROUP = 2 << 30


class TableFile(SourceFile):
    """A table; the place of a record is the number of its row. A part is a range of groups."""

    def __init__(self, shard: NamedShard, recent: Recent) -> None:
        """Open it. Raises: OSError, ValueError."""
        self._records = ShapedRecords(shard, lambda place: self._row(place.offset), recent)
        self._begins: Sequence[int] = (0,)

    @abstractmethod
    def _group(self, group: int) -> Any:
        """Return a group of rows as a table. Raises: OSError, ValueError."""

    @abstractmethod
    def _size(self, group: int) -> int:
        """Return the bytes of a group of rows in the file, or in memory."""

    def parts(self) -> Sequence[Part]:
        """Return ranges of groups of rows."""
        found, size, first = list[Part](), 0, 0
        last = len(self._begins) - 1
        for group in range(last):
            size += self._size(group)
            if size >= PART or group + 1 == last:
                found.append(Part(first, group + 1, self._begins[first]))
                first, size = group + 1, 0
        return found or (Part(),)

    def records(self, part: Part) -> Iterator[Member]:
        """Yield the rows of a part; a group that cannot be read is one bad record."""
        end = len(self._begins) - 1 if part.end < 0 else part.end
        for group in range(part.first, end):
            first, last = self._begins[group : group + 2]
            try:
                table = self._group(group)
            except (OSError, ValueError) as error:
                yield Member(f"rows {first} to {last - 1}", fault=f"they cannot be read: {error}")
                continue
            for start in range(0, last - first, _ROWS):
                rows = table.slice(start, _ROWS).to_pylist()
                for number, row in enumerate(rows, start=first + start):
                    place = MemberPlace(number, 0)
                    yield self._records.member(f"row {number}", place, partial(shaped, row))

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
        rows = self._group(group).slice(number - self._begins[group], 1)
        return shaped(rows.to_pylist()[0])


class ParquetTable(TableFile):
    """A Parquet file, whose groups are row groups."""

    def __init__(self, shard: NamedShard, recent: Recent) -> None:
        """Open it. Raises: OSError, ValueError."""
        import pyarrow.parquet

        super().__init__(shard, recent)
        self._file = pyarrow.parquet.ParquetFile(shard.path)
        # A file is read by one thread at a time.
        self._lock = threading.Lock()
        self._recent, self._path = recent, shard.path
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
        key = self._path, "group", group
        return self._recent.get(key, lambda: self._read(group), lambda table: int(table.nbytes))

    def _read(self, group: int) -> Any:
        with self._lock:
            return self._file.read_row_group(group, use_threads=False)

    def _size(self, group: int) -> int:
        return int(self._sizes[group])


class ArrowTable(TableFile):
    """An Arrow file or stream in a memory map, whose groups are record batches."""

    def __init__(self, shard: NamedShard, recent: Recent) -> None:
        """Open it. Raises: OSError, ValueError."""
        import pyarrow

        super().__init__(shard, recent)
        mapped = pyarrow.memory_map(str(shard.path))
        is_file = mapped.read(6) == b"ARROW1"
        mapped.seek(0)
        reader = (pyarrow.ipc.open_file if is_file else pyarrow.ipc.open_stream)(mapped)
        self._batches = reader.read_all().to_batches()
        self._begins = list(accumulate(map(len, self._batches), initial=0))

    def _group(self, group: int) -> Any:
        return self._batches[group]

    def _size(self, group: int) -> int:
        return int(self._batches[group].nbytes)
