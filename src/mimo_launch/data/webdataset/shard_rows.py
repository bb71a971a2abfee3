"""The index of one shard: its samples as growing columns.

Decides: the column of each number of a sample; how many kinds of ignored keys are counted.
Relies on: `index_columns` for the names and types of columns.
Leaves: reading samples to `indexer`, files of the index to `index_columns`.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np

from mimo_launch.data.webdataset.decode_media import Marker
from mimo_launch.data.webdataset.index_columns import (
    LISTS,
    SAMPLES,
    TILING,
    TYPES,
    Column,
    numbers_of,
)
from mimo_launch.data.webdataset.media_rows import PlacedMedium
from mimo_launch.data.webdataset.records import TEXT_SUFFIXES
from mimo_launch.data.webdataset.tar_files import Member

_MOST_IGNORED = 1000


@dataclass(frozen=True, slots=True)
class Bad:
    """A record that is left out; an empty key means the rest of the shard."""

    shard: str
    key: str
    why: str


@dataclass(frozen=True, slots=True)
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
        return len(self.columns["tokens"])


@dataclass(frozen=True, slots=True)
class IndexedSample:
    """The index entry of one sample.

    `runs` are start and end of each run of learned tokens, [runs, 2]. `members` are the suffixes of
    its images, clips and targets, in order. `ignored` is its content that is not read. `checksum`
    covers its text and the first bytes of its members.
    """

    num_tokens: int
    runs: np.ndarray
    placed: list[PlacedMedium]
    members: dict[Marker, list[str]]
    ignored: tuple[str, ...] = ()
    checksum: int = 0


def count_ignored(counts: Counter[str], more: Mapping[str, int]) -> None:
    """Add counts; after many kinds, count new ones together, as keys may differ by sample."""
    for name, number in more.items():
        known = name in counts or len(counts) < _MOST_IGNORED
        counts[name if known else "other keys"] += number


class ShardRows:
    """The columns of a shard with this number, to which samples are appended."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.values: dict[str, list[int]] = defaultdict(list)
        self.suffixes: dict[str, int] = {}
        self.ignored: Counter[str] = Counter()

    def add(self, member: Member, seen: IndexedSample) -> None:
        """Append one sample."""
        rows, runs = self.values, seen.runs
        count_ignored(self.ignored, dict.fromkeys(seen.ignored, 1))
        kept = [
            suffix
            for suffix in (*TEXT_SUFFIXES, *(s for found in seen.members.values() for s in found))
            if suffix in member.places
        ]
        num_labels = int((runs[:, 1] - runs[:, 0]).sum())
        sizes = str([member.places[suffix].size for suffix in kept])
        content = crc32(sizes.encode(), seen.checksum)
        per_sample = (seen.num_tokens, num_labels, self.number, content)
        for name, value in zip(SAMPLES, per_sample, strict=True):
            rows[name].append(value)
        for suffix in kept:
            rows["member_offset"].append(member.places[suffix].offset)
            rows["member_size"].append(member.places[suffix].size)
            rows["member_suffix"].append(self.suffixes.setdefault(suffix, len(self.suffixes)))
        for each in seen.placed:
            rows["span_module"].append(each.module)
            rows["span_member"].append(each.member)
            rows["span_position"].append(each.span.position)
            rows["span_height"].append(each.span.height)
            rows["span_width"].append(each.span.width)
            rows["span_reads"].append(each.span.reads or 0)
            rows["span_later"].append(0 if each.span.later is None else each.span.later + 1)
            rows["span_told"].append(each.told)
            rows["span_loose"].append(each.span.loose)
            for name, value in zip(TILING, numbers_of(each.span.shown), strict=True):
                rows[name].append(value)
        for first, last in runs.tolist():
            rows["run_first"].append(first)
            rows["run_last"].append(last)
        rows["key_byte"] += member.key.encode("utf-8", "surrogateescape")
        for name, columns in LISTS.items():
            rows[f"{name}_end"].append(len(rows[next(iter(columns))]))

    def index(self, bad: Sequence[Bad]) -> ShardIndex:
        """Return the index of the shard, with the records that were left out."""
        columns = {name: np.array(self.values[name], dtype=TYPES[name]) for name in TYPES}
        return ShardIndex(columns, tuple(self.suffixes), tuple(bad), self.ignored)
