"""The index on disk: one flat file per column, mapped into memory.

Decides: the columns, and when a folder holds all of them; the column of each number of a sample;
how many kinds of ignored keys are counted.
Relies on: numpy's memory maps: ranks of a host share the pages that they touch.
Leaves: reading samples to `indexer`, whether columns are out of date to `open_index`.

A sample with a list of captions has a row for each of them, one after another, with equal members.
A row has any number of members, spans of images and learned runs. Their columns concatenate all
samples: a sample's part begins at the `*_end` of the sample before it and ends at its own `*_end`.
The columns of records say which rows a record has; on disk, they are empty if each has one.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt

from mimo_launch.data.record_facts import TILING, shown_from, tiling_of
from mimo_launch.data.samples.decode_media import Marker
from mimo_launch.data.samples.media_rows import PlacedMedium
from mimo_launch.data.samples.records import TEXT_SUFFIXES
from mimo_launch.data.sources.source_file import Member
from mimo_launch.diag.frozen import frozen
from mimo_launch.layout.step_data import ImageSpan

Column = npt.NDArray[Any]

META, BAD, BLOCKS = "index.json", "bad.jsonl", "blocks.npy"
VERSION = 18

# Per text of a sample; `content` is a checksum of its members, `counted` the sum of a column for a
# loss, `caption` the place of the text in a list of captions, 0 for the first or the only one.
SAMPLES = {
    **dict.fromkeys(("tokens", "labels", "shard", "content"), "u4"),
    "counted": "f8",
    "caption": "u4",
}
# Per member that training reads; per span of rows of one image or per target; per run of learned
# tokens; per byte of a key. Of a span, `reads` is the number of tokens from which a target is made,
# `later` is, for a video, 1 plus the places by which it is later, and `told` is the number from
# which its text is written. The sound of a video has a span for each part of its rows in the text:
# `before` is the number of its rows before this part, 0 for the first part and for all else.
LISTS = {
    "member": {"member_offset": "u8", "member_size": "u8", "member_suffix": "u4"},
    "span": {
        "span_module": "u2",
        "span_member": "u4",
        "span_position": "u4",
        "span_height": "u4",
        "span_width": "u4",
        "span_reads": "u4",
        "span_later": "u4",
        "span_told": "u8",
        "span_loose": "u4",
        # The fields of `Tiling` for an image in tiles; for a frame only a height, 2 for the last.
        **dict.fromkeys((f"span_{each}" for each in TILING), "u4"),
        "span_before": "u4",
    },
    "run": {"run_first": "u4", "run_last": "u4"},
    "key": {"key_byte": "u1"},
}
ENDS = {f"{name}_end": "u8" for name in LISTS}
TYPES = {
    **SAMPLES,
    **ENDS,
    **{name: kind for columns in LISTS.values() for name, kind in columns.items()},
}
# Per record: the row of its first caption, and the number of its captions.
RECORDS = {"record_first": "i8", "record_captions": "u4"}
_ALL = {**TYPES, **RECORDS}


def numbers_of(placed: PlacedMedium) -> Iterator[tuple[int, ...]]:
    """Yield the rows of a medium as the numbers of `LISTS["span"]`, part by part."""
    span, tiling = placed.span, tiling_of(placed.span.shown)
    later, before = 0 if span.later is None else span.later + 1, 0
    for position, width in span.parts or ((span.position, span.width),):
        size = position, span.height, width, span.reads or 0
        about = later, placed.told, span.loose
        yield (placed.module, placed.member, *size, *about, *tiling, before)
        before += width


@frozen
class SpanFields:
    """The fields of spans that are the same for all of a module, by the number of the module.

    `hears` says which modules hear the sound of videos.
    """

    gaps: Sequence[int]
    holds_text: Sequence[bool]
    hears: Sequence[bool]
    shares_bounds: Sequence[bool]


def placed_from(numbers: Iterable[Sequence[int]], fields: SpanFields) -> tuple[PlacedMedium, ...]:
    """Return the inverse of `numbers_of` for the media of a sample."""
    found: list[PlacedMedium] = []
    last: dict[int, int] = {}
    for each in numbers:
        module, member, position, height, width, reads, later, told, loose, *tiling, before = each
        is_sound = bool(later) and fields.hears[module]
        if before:
            first = found[-1].span
            parts = (*first.parts, (position, width))
            whole = replace(first, width=first.width + width, parts=parts)
            found[-1] = replace(found[-1], span=whole)
            continue
        span = ImageSpan(
            position,
            height,
            width,
            reads or None,
            gap=fields.gaps[module],
            later=later - 1 if later else None,
            holds_text=fields.holds_text[module],
            loose=loose,
            shown=shown_from(*tiling),
            parts=((position, width),) if is_sound else (),
            shares_bounds=is_sound and fields.shares_bounds[module],
            joined=last.get(module) == member,
        )
        last[module] = member
        found.append(PlacedMedium(module, member, span, told))
    return tuple(found)


def records_of(captions: Column) -> dict[str, Column]:
    """Return the columns of records, from the column `caption` of their rows."""
    firsts = np.flatnonzero(captions == 0)
    return {"record_first": firsts, "record_captions": np.diff(firsts, append=len(captions))}


class DamagedIndex(Exception):
    """The files of an index cannot be used; the message says why."""


@frozen
class Columns:
    """The columns of an open index, by name; `meta` says what it was made from."""

    folder: Path
    columns: Mapping[str, Column]
    meta: dict[str, Any]

    @property
    def num_rows(self) -> int:
        """Number of texts that can be trained on: of samples, or of each caption in a list."""
        return len(self.columns["tokens"])

    def range(self, name: str, sample: int) -> slice:
        """Return the slice of a sample in the columns of members, spans, runs or key bytes."""
        ends = self.columns[f"{name}_end"]
        return slice(int(ends[sample - 1]) if sample else 0, int(ends[sample]))

    def key(self, sample: int) -> str:
        """Return the key of a sample in its shard."""
        found = self.columns["key_byte"][self.range("key", sample)]
        return bytes(found).decode("utf-8", "surrogateescape")

    def num_captions(self, row: int) -> int:
        """Return the number of captions of the record that has this row."""
        captions = self.columns["caption"]
        end = next((n for n in range(row + 1, len(captions)) if not captions[n]), len(captions))
        return int(captions[end - 1]) + 1

    def block_checksums(self) -> list[Column]:
        """Return the checksums of the blocks of each file; none of a local file."""
        ends = self.meta.get("block_ends", [])
        return np.split(np.load(self.folder / BLOCKS), ends[:-1]) if ends else []

    @property
    def num_bad(self) -> int:
        """Number of records that are left out of the index."""
        return int(self.meta["num_bad"])

    @property
    def ignored(self) -> dict[str, int]:
        """Number of samples with each kind of ignored content, the most frequent first."""
        return dict(sorted(self.meta["ignored"].items(), key=lambda item: -item[1]))

    def bad(self) -> Iterator[dict[str, str]]:
        """Yield the records that are left out, as `shard`, `key` and `why`. Raises: OSError."""
        with (self.folder / BAD).open(encoding="utf-8") as file:
            yield from map(json.loads, file)


class ColumnWriter:
    """Appends the samples of shards, one after another, to the files of a new index."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._stack = folder, ExitStack()
        self._files = {name: self._stack.enter_context((folder / name).open("wb")) for name in _ALL}
        self._lengths = dict.fromkeys(_ALL, 0)

    def append(self, columns: Mapping[str, Column]) -> None:
        """Write the samples of one shard, with each `*_end` counted from 0. Raises: OSError."""
        # The length of each list before this shard.
        begins = {f"{name}_end": self._lengths[next(iter(LISTS[name]))] for name in LISTS}
        begins["record_first"] = self._lengths["caption"]
        columns = {**columns, **records_of(columns["caption"])}
        for name, kind in _ALL.items():
            column = np.ascontiguousarray(columns[name] + begins.get(name, 0), dtype=f"<{kind}")
            column.tofile(self._files[name])
            self._lengths[name] += len(column)

    def finish(self, meta: Mapping[str, Any]) -> None:
        """Write what the index was made from, which completes it. Raises: OSError."""
        if self._lengths["record_first"] == self._lengths["caption"]:
            for name in RECORDS:
                self._files[name].truncate(0)
                self._lengths[name] = 0
        self.close()
        text = json.dumps({**meta, "version": VERSION, "lengths": self._lengths})
        (self._folder / META).write_text(text, encoding="utf-8")

    def close(self) -> None:
        """Close the files."""
        self._stack.close()


def read_meta(folder: Path) -> dict[str, Any]:
    """Return what an index was made from. Raises: DamagedIndex, FileNotFoundError."""
    try:
        meta = json.loads((folder / META).read_text(encoding="utf-8"))
    except ValueError as error:
        raise DamagedIndex(f"{META} is not JSON") from error
    if not isinstance(meta, dict) or meta.get("version") != VERSION:
        raise DamagedIndex("another version wrote it")
    return meta


def open_columns(folder: Path, meta: dict[str, Any]) -> Columns:
    """Map the columns of an index. Raises: DamagedIndex."""
    columns: dict[str, Column] = {}
    for name, kind in _ALL.items():
        path, length, dtype = folder / name, meta["lengths"].get(name), np.dtype(f"<{kind}")
        try:
            size = path.stat().st_size
        except OSError as error:
            raise DamagedIndex(f"column {name} is missing") from error
        if length is None or size != length * dtype.itemsize:
            raise DamagedIndex(f"column {name} has {size} bytes for {length} values")
        # A plain view: indexing a `memmap` object is several times slower.
        columns[name] = (
            np.memmap(path, dtype=dtype, mode="r").view(np.ndarray)
            if length
            else np.empty(0, dtype=dtype)
        )
    return Columns(folder, columns, meta)


def write_bad(folder: Path, bad: Iterable[Mapping[str, str]]) -> None:
    """Write the list of bad records, one JSON object per line. Raises: OSError."""
    with (folder / BAD).open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(each) + "\n" for each in bad)


_MOST_IGNORED = 1000


@frozen
class Bad:
    """A record that is left out; an empty key means the rest of the shard."""

    shard: str
    key: str
    why: str


@frozen
class ShardIndex:
    """The samples of one shard as columns, with `*_end` counted from 0, and its bad records.

    `member_suffix` is an index into `suffixes`. `ignored` counts samples by ignored content.
    """

    columns: dict[str, Column]
    suffixes: tuple[str, ...]
    bad: tuple[Bad, ...]
    ignored: Counter[str]

    @property
    def num_samples(self) -> int:
        """Good samples."""
        return int((self.columns["caption"] == 0).sum())


@frozen
class IndexedSample:
    """The index entry of one sample.

    `runs` are start and end of each run of learned tokens, [runs, 2]. `members` are the suffixes of
    its images, clips and targets, in order. `ignored` is its content that is not read. `checksum`
    covers its text and the first bytes of its members. `columns` are the suffixes of those that a
    loss reads, `counted` the sum of the one that it counts. `caption` is its place among the
    captions of its record.
    """

    num_tokens: int
    runs: np.ndarray
    placed: list[PlacedMedium]
    members: dict[Marker, list[str]]
    ignored: tuple[str, ...] = ()
    checksum: int = 0
    columns: tuple[str, ...] = ()
    counted: float = 0.0
    caption: int = 0


def count_ignored(counts: Counter[str], more: Mapping[str, int]) -> None:
    """Add counts; after many kinds, count new ones together, as keys may differ by sample."""
    for name, number in more.items():
        known = name in counts or len(counts) < _MOST_IGNORED
        counts[name if known else "other keys"] += number


class ShardRows:
    """The columns of a shard with this number, to which samples are appended."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.values: dict[str, list[float]] = defaultdict(list)
        self.suffixes: dict[str, int] = {}
        self.ignored: Counter[str] = Counter()

    def add(self, member: Member, seen: IndexedSample) -> None:
        """Append one sample, or one caption of a sample, which is counted with the first."""
        runs = seen.runs
        if not seen.caption:
            count_ignored(self.ignored, dict.fromkeys(seen.ignored, 1))
        kept = [
            suffix
            for suffix in (
                *TEXT_SUFFIXES,
                *(s for found in seen.members.values() for s in found),
                *seen.columns,
            )
            if suffix in member.places
        ]
        places = [member.places[suffix] for suffix in kept]
        numbers = [self.suffixes.setdefault(suffix, len(self.suffixes)) for suffix in kept]
        num_labels = int((runs[:, 1] - runs[:, 0]).sum())
        content = crc32(str([place.size for place in places]).encode(), seen.checksum)
        sizes = seen.num_tokens, num_labels, self.number, content, seen.counted, seen.caption
        self._append(SAMPLES, [sizes])
        found: dict[str, Iterable[Sequence[int]]] = {
            "member": ((at.offset, at.size, n) for at, n in zip(places, numbers, strict=True)),
            "span": chain.from_iterable(map(numbers_of, seen.placed)),
            "run": runs.tolist(),
            "key": zip(member.key.encode("utf-8", "surrogateescape")),
        }
        for name, columns in LISTS.items():
            self._append(columns, found[name])
            self.values[f"{name}_end"].append(len(self.values[next(iter(columns))]))

    def _append(self, columns: Iterable[str], rows: Iterable[Sequence[float]]) -> None:
        for row in rows:
            for name, value in zip(columns, row, strict=True):
                self.values[name].append(value)

    def index(self, bad: Sequence[Bad]) -> ShardIndex:
        """Return the index of the shard, with the records that were left out."""
        columns = {name: np.array(self.values[name], dtype=TYPES[name]) for name in TYPES}
        return ShardIndex(columns, tuple(self.suffixes), tuple(bad), self.ignored)
