"""The samples of one split of shards, from their index.

Decides: which rows are samples; that samples of a shard count as often as the spec names it; that
errors name shard and key.
Relies on: `index_rows` for single rows, `row_facts` for many, and `sources` for the files.
Leaves: the meaning of members to `shard_samples`, words on what is left out to `split_report`.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable
from functools import cached_property
from itertools import pairwise
from typing import TypeVar
from zlib import crc32

import numpy as np
import numpy.typing as npt

from mimo_launch.data.dataset import (
    READ_ERRORS,
    BadSample,
    Contents,
    FileContents,
    SourceSamples,
    no_sample,
)
from mimo_launch.data.index.caption_rows import CaptionRows
from mimo_launch.data.index.columns import Column, Columns
from mimo_launch.data.index.index_rows import IndexRows
from mimo_launch.data.random_draws import Split
from mimo_launch.data.record_facts import RecordFacts
from mimo_launch.data.samples.media_rows import ShardInputs
from mimo_launch.data.samples.records import TEXT_SUFFIXES
from mimo_launch.data.sources.file_formats import in_set, open_file, split_files
from mimo_launch.data.sources.media_suffixes import COLUMN
from mimo_launch.data.sources.remote_files import RemotePath
from mimo_launch.data.sources.shard_names import NamedShard
from mimo_launch.data.sources.source_file import OpenFiles, Places
from mimo_launch.kinds.registry import kind_of
from mimo_launch.layout.step_data import ImageSpan, SampleData
from mimo_launch.spec.spec import Spec, UserData

T = TypeVar("T")


class OpenSplit:
    """The samples of one split.

    `row` is the place of a sample in the index. The index also holds samples that are too long, and
    it holds each sample once, however often its shard counts.

    Where records have lists of captions, the index has a row for each, and a sample is one of them
    (`CaptionRows`); `num_samples` counts records.
    """

    def __init__(
        self,
        spec: Spec,
        data: UserData,
        inputs: ShardInputs,
        split: Split,
        index: Columns,
        *,
        fetches: bool = True,
    ) -> None:
        """Take the samples of an index; with `fetches`, files from elsewhere may be fetched.

        Raises: ValueError if shards cannot be named.
        """
        self.split: Split = split
        self.index = index
        self.data, self.seq = data, spec.batch.seq
        loss = spec.language.loss
        self._counts = loss is not None and loss.counts is not None
        self._depths = kind_of(spec.language.model).depths
        self.rows = IndexRows(index, inputs, self.seq, cuts=data.too_long != "drop")
        self.shards = split_files(self.data, split, fetches=fetches)
        for shard, checksums in zip(self.shards, index.block_checksums(), strict=False):
            if fetches and isinstance(shard.path, RemotePath):
                shard.path.expect(checksums)
        self._reader = OpenFiles(self.shards, open_file)
        used: npt.NDArray[np.bool_] | None = None
        if self.rows.num_too_long and self.data.too_long == "drop":
            used = self.index.columns["tokens"] <= self.seq
        # The rows of samples, unless each is its own or `captions` has them.
        self._row_of: npt.NDArray[np.int64] | None = None
        self.captions: CaptionRows | None = None
        if 0 < len(self.index.columns["record_first"]) < self.index.num_rows:
            self.captions = CaptionRows.of(self.index.columns, used)
        elif used is not None:
            self._row_of = np.flatnonzero(used)
        times = np.array([each.times for each in self.shards])
        if (times > 1).any():
            times = times[self._of_samples("shard")]
            if self.captions is not None:
                self.captions = self.captions.repeated(times)
            else:
                self._row_of = np.repeat(self._rows_used(), times)

    def _rows_used(self) -> npt.NDArray[np.int64]:
        """Return the row of each sample, of its first caption if it has several."""
        if self.captions is not None:
            return self.captions.first_rows
        return np.arange(self.index.num_rows) if self._row_of is None else self._row_of

    def _of_samples(self, name: str) -> Column:
        """Return a column for each sample, of its first caption if it has several."""
        column = self.index.columns[name]
        if self.captions is None and self._row_of is None:
            return column
        found: Column = column[self._rows_used()]
        return found

    @property
    def num_samples(self) -> int:
        """Number of samples to train on or to evaluate."""
        if self.captions is not None:
            return len(self.captions.counts)
        return self.index.num_rows if self._row_of is None else len(self._row_of)

    @property
    def num_captions(self) -> npt.NDArray[np.uint32] | None:
        """The number of captions of each record that are used; None if no record has a list."""
        return None if self.captions is None else self.captions.counts

    def describe(self, sample: int) -> SampleData:
        """Return the lengths and positions of a sample, from the index alone."""
        row = self.row(sample)
        spans: dict[str, tuple[ImageSpan, ...]] = {}
        for name, _, span in self.rows.spans_used(row):
            spans[name] = (*spans.get(name, ()), span)
        ahead = tuple(self.rows.num_labels(row, depth) for depth in range(1, self._depths + 1))
        return SampleData(
            sample,
            self.rows.end(row),
            self.rows.num_labels(row),
            spans,
            labels_ahead=ahead,
            source=self.source_of(sample),
            counted=float(self.index.columns["counted"][row]) if self._counts else None,
        )

    def facts(self, samples: npt.NDArray[np.int64]) -> RecordFacts:
        """Return what `describe` says of many samples, as columns. Raises: IndexError."""
        columns, rows = self.index.columns, self.rows_at(samples)
        tokens = self.rows.lengths[rows].astype(np.int64)
        labels = columns["labels"][rows].astype(np.int64)
        is_cut = np.flatnonzero(columns["tokens"][rows] > self.seq)
        labels[is_cut] = self.rows.facts.labels(rows[is_cut], tokens[is_cut])
        depths = range(1, self._depths + 1)

        def ahead() -> npt.NDArray[np.int64]:
            found = [self.rows.facts.labels(rows, tokens, depth) for depth in depths]
            return np.array(found, dtype=np.int64).reshape(len(depths), len(rows))

        source = None
        if self.sources:
            records = samples % self.num_samples
            source = np.searchsorted(self._source_ends, records, side="right")
        return RecordFacts(
            tokens,
            labels,
            self.rows.facts.images(rows, tokens if self.rows.cuts else None),
            ahead,
            (lambda: columns["counted"][rows]) if self._counts else None,
            source,
            tuple(each.name for each in self.sources),
        )

    def num_rows(self, samples: npt.NDArray[np.int64]) -> dict[str, npt.NDArray[np.int64]]:
        """Return the rows of many samples by module, as `facts` has them. Raises: IndexError."""
        rows = self.rows_at(samples)
        ends = self.rows.lengths[rows].astype(np.int64) if self.rows.cuts else None
        return self.rows.facts.num_rows(rows, ends)

    def contents(self) -> Contents:
        """Return the samples of each shard that has any, in order."""
        shards, content = self._of_samples("shard"), self._of_samples("content")
        # The samples of a shard are consecutive.
        ends = np.searchsorted(shards, np.arange(len(self.shards)), side="right").tolist()
        found = []
        for shard, first, end in zip(self.shards, [0, *ends], ends, strict=False):
            if end > first:
                checksum = crc32(content[first:end].tobytes())
                checksum = crc32(self._lengths_of(first, end).tobytes(), checksum)
                found.append(FileContents(shard.path.name, end - first, checksum))
        return tuple(found)

    def _lengths_of(self, first: int, end: int) -> npt.NDArray[np.unsignedinteger]:
        """Return the tokens of consecutive samples, of each of their captions in turn."""
        if self.captions is not None:
            rows = self.captions.between(first, end)
        elif self._row_of is not None:
            rows = self._row_of[first:end]
        else:
            return self.rows.lengths[first:end]
        found: npt.NDArray[np.unsignedinteger] = self.rows.lengths[rows]
        return found

    def _tokens_of(self, first: int, end: int) -> int:
        """Return the tokens of consecutive samples in an epoch, of their captions the mean."""
        lengths = self._lengths_of(first, end)
        if self.captions is None:
            return int(lengths.sum(dtype=np.int64))
        counts = self.captions.counts[first:end]
        return round(float((lengths / np.repeat(counts, counts)).sum()))

    @cached_property
    def sources(self) -> tuple[SourceSamples, ...]:
        """The samples of each source, in order; empty if there is only one."""
        if len(self.data.source_names) < 2 or self.split != "train":
            return ()
        shards = self._of_samples("shard")
        of_shard = np.array([each.source for each in self.shards])
        numbers = range(len(self.data.source_names))
        # The samples of a source are consecutive, because its files are.
        ends = np.searchsorted(of_shard[shards], numbers, side="right").tolist()
        names, begins = self.data.source_names, [0, *ends]
        tokens = [self._tokens_of(a, b) for a, b in pairwise(begins)]
        return tuple(map(SourceSamples, names, begins, np.diff(begins).tolist(), tokens))

    @cached_property
    def _source_ends(self) -> list[int]:
        return [each.first + each.number for each in self.sources]

    def source_of(self, sample: int) -> str:
        """Return the name of the source of a sample, "" if there is only one."""
        if not self.sources:
            return ""
        return self.sources[bisect_right(self._source_ends, sample % self.num_samples)].name

    def samples_of(self, name: str) -> npt.NDArray[np.int64]:
        """Return the samples of a held-out set, each once."""
        is_other = ~np.array(self.files_in_set(name))
        rows = self._rows_used()
        # A shard that counts twice has each of its rows twice in a row.
        is_first = np.diff(rows, prepend=-1) != 0
        return np.flatnonzero(is_first & ~is_other[self.index.columns["shard"][rows]])

    def files_in_set(self, name: str) -> list[bool]:
        """Return which files belong to a held-out set."""
        return in_set(self.data, name, self.shards)

    def row(self, sample: int) -> int:
        """Return the place of a sample in the index. Raises: IndexError."""
        if self.captions is not None:
            return self.captions.row(sample)
        if not 0 <= sample < self.num_samples:
            raise no_sample(sample, self.num_samples, f"({self.split})")
        return sample if self._row_of is None else int(self._row_of[sample])

    def rows_at(self, samples: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the places of some samples in the index. Raises: IndexError."""
        if self.captions is not None:
            return self.captions.at(samples)
        if len(samples):
            self.row(int(samples.min())), self.row(int(samples.max()))
        return samples if self._row_of is None else self._row_of[samples]

    def fetch(self, texts: Iterable[int], media: Iterable[int]) -> None:
        """Fetch samples from elsewhere, in parallel: only the text of `texts`, all of `media`.

        Raises: SourceGone, OSError.
        """
        if not any(isinstance(each.path, RemotePath) for each in self.shards):
            return
        whole = {*map(self.row, media)}
        wanted = []
        for row in {*map(self.row, texts)} | whole:
            places = self.rows.members(row)
            texts_of = [each for each in places if each.startswith(COLUMN)]
            suffixes = places.keys() if row in whole else (*TEXT_SUFFIXES, *texts_of)
            wanted.append((int(self.index.columns["shard"][row]), places, tuple(suffixes)))
        self._reader.fetch(wanted)

    def shard_of(self, row: int) -> NamedShard:
        """Return the file that holds a row of the index."""
        return self.shards[int(self.index.columns["shard"][row])]

    def read(self, row: int, places: Places, suffix: str) -> bytes:
        """Return the bytes of a member of a sample. Raises: OSError, EOFError, ValueError."""
        return self._reader.read(int(self.index.columns["shard"][row]), places, suffix)

    def name(self, row: int) -> str:
        """Return shard and key of a sample, and which of its captions it is."""
        path = self._reader.path(int(self.index.columns["shard"][row]))
        words = f"{path.name} {self.index.key(row)}"
        if (number := self.index.num_captions(row)) > 1:
            words += f", caption {self.index.columns['caption'][row] + 1} of {number}"
        return words

    def named(self, row: int, read: Callable[[], T]) -> T:
        """Return what `read` returns. Raises: BadSample with shard and key if it is damaged."""
        try:
            return read()
        except BadSample as error:
            raise BadSample(f"{self.name(row)}: {error}") from error
        except READ_ERRORS as error:
            raise BadSample(f"{self.name(row)}: {type(error).__name__}: {error}") from error
