"""The samples of one split of shards, from their index.

Decides: which samples are too long and where they are cut; that samples of a shard count as often
as the spec names it; the report on samples that are left out; that errors name shard and key.
Relies on: `columns`, `row_facts` for facts about many rows, and `sources` for the files.
Leaves: the meaning of members to `shard_samples`.
"""

from bisect import bisect_right
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice, pairwise
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
from mimo_launch.data.index.columns import (
    BAD,
    LISTS,
    Column,
    Columns,
    SpanFields,
    placed_from,
)
from mimo_launch.data.index.row_facts import RowFacts
from mimo_launch.data.random_draws import Split
from mimo_launch.data.record_facts import RecordFacts
from mimo_launch.data.samples.decode_media import marker_of
from mimo_launch.data.samples.media_rows import PlacedMedium, ShardInputs
from mimo_launch.data.samples.records import TEXT_SUFFIXES
from mimo_launch.data.sources.file_formats import in_set, open_file, split_files
from mimo_launch.data.sources.media_suffixes import COLUMN
from mimo_launch.data.sources.remote_files import RemotePath
from mimo_launch.data.sources.shard_names import NamedShard
from mimo_launch.data.sources.source_file import MemberPlace, OpenFiles, Places
from mimo_launch.data.sources.tables import copied_bytes
from mimo_launch.kinds.registry import kind_of
from mimo_launch.layout.step_data import ImageSpan, SampleData, whole_video
from mimo_launch.spec.spec import FilesData, Spec, UserData

_MOST_LISTED = 5
T = TypeVar("T")


class NotTrainable(ValueError):
    """Shards hold no sample, too many bad records, or a too long one under `too_long: error`."""


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
        self._data, self._seq = data, spec.batch.seq
        loss = spec.language.loss
        self._counts = loss is not None and loss.counts is not None
        self._depths = kind_of(spec.language.model).depths
        self._inputs = inputs
        self._facts = RowFacts(index.columns, inputs.names)
        self._fields = SpanFields(
            gaps=[inputs.gap(name) for name in inputs.names],
            holds_text=[inputs.holds_text(name) for name in inputs.names],
            hears=[inputs.hears(name) for name in inputs.names],
            shares_bounds=[inputs.shares_bounds(name) for name in inputs.names],
        )
        self._shards = split_files(self._data, split, fetches=fetches)
        for shard, checksums in zip(self._shards, index.block_checksums(), strict=False):
            if fetches and isinstance(shard.path, RemotePath):
                shard.path.expect(checksums)
        self._reader = OpenFiles(self._shards, open_file)
        self.num_too_long = int((self.index.columns["tokens"] > self._seq).sum())
        used: npt.NDArray[np.bool_] | None = None
        if self.num_too_long and self._data.too_long == "drop":
            used = self.index.columns["tokens"] <= self._seq
        # The rows of samples, unless each is its own or `captions` has them.
        self._rows: npt.NDArray[np.int64] | None = None
        self.captions: CaptionRows | None = None
        if 0 < len(self.index.columns["record_first"]) < self.index.num_rows:
            self.captions = CaptionRows.of(self.index.columns, used)
        elif used is not None:
            self._rows = np.flatnonzero(used)
        times = np.array([each.times for each in self._shards])
        if (times > 1).any():
            times = times[self._of_samples("shard")]
            if self.captions is not None:
                self.captions = self.captions.repeated(times)
            else:
                self._rows = np.repeat(self._rows_used(), times)

    def _rows_used(self) -> npt.NDArray[np.int64]:
        """Return the row of each sample, of its first caption if it has several."""
        if self.captions is not None:
            return self.captions.first_rows
        return np.arange(self.index.num_rows) if self._rows is None else self._rows

    def _of_samples(self, name: str) -> Column:
        """Return a column for each sample, of its first caption if it has several."""
        column = self.index.columns[name]
        if self.captions is None and self._rows is None:
            return column
        found: Column = column[self._rows_used()]
        return found

    def check(self) -> None:
        """Raise NotTrainable if these samples must not be trained on."""
        index, data = self.index, self._data
        if index.num_bad > data.max_bad_samples:
            raise NotTrainable(
                f"{index.num_bad} records of the data ({self.split}) are bad, but "
                f"`data.max_bad_samples` allows {data.max_bad_samples}; {index.folder / BAD} lists "
                f"them, the first:\n{self.first_bad()}"
            )
        if self.num_too_long and data.too_long == "error":
            row = int(np.argmax(index.columns["tokens"] > self._seq))
            raise NotTrainable(
                f"{self.num_too_long} samples ({self.split}) are longer than `batch.seq` "
                f"{self._seq}; the first is {self.name(row)} with {index.columns['tokens'][row]} "
                f"tokens; raise `batch.seq`, or write `too_long: drop` or `truncate` in `data`"
            )
        if self.num_samples == 0:
            raise NotTrainable(
                f"the data ({self.split}) hold no usable sample: {index.num_bad} are bad, "
                f"{self.num_too_long} are longer than `batch.seq` {self._seq}\n{self.first_bad()}"
            )
        if isinstance(data, FilesData) and data.is_mixed:
            for number, source in enumerate(self.sources):
                if not source.number:
                    is_of = [each.source == number for each in self._shards]
                    raise self.none_usable(f"the source `{source.name}`", is_of)

    def none_usable(self, of: str, is_of: Sequence[bool]) -> NotTrainable:
        """Return the error that some of the files hold no usable sample, and why."""
        mine, others = (
            {each.path.name for each, own in zip(self._shards, is_of, strict=True) if own is wanted}
            for wanted in (True, False)
        )
        columns, why = self.index.columns, list[str]()
        is_long = (columns["tokens"] > self._seq) & np.array(is_of)[columns["shard"]]
        if too_long := int(is_long.sum()):
            records = "1 record is" if too_long == 1 else f"{too_long:,} records are"
            why.append(f"{records} longer than `batch.seq` {self._seq}")
        # Bad records have the name of a file, which files of other sources may have, too.
        if bad := self.first_bad(mine - others):
            why.append(f"{self.index.folder / BAD} lists bad records, the first:\n{bad}")
        if not why:
            is_bad = self.index.num_bad
            why = [f"{self.index.folder / BAD} lists bad records" if is_bad else "it has no record"]
        return NotTrainable(f"{of} holds no usable sample: {'; '.join(why)}")

    def first_bad(self, names: Container[str] | None = None) -> str:
        """Return the first bad records, one per line; with `names`, of files with these names."""
        found = (each for each in self.index.bad() if names is None or each["shard"] in names)
        first = islice(found, _MOST_LISTED)
        return "\n".join(f"{each['shard']} {each['key']}: {each['why']}" for each in first)

    def summary(self) -> str:
        """Return the number of samples and of records left out, in one line."""
        words = [f"{self.num_samples:,} samples ({self.split})"]
        if self.captions is not None:
            how = (
                "one of each learnt in an epoch" if self.split == "train" else "the first are used"
            )
            words[0] += f" with {self.captions.counts.sum():,} captions, {how}"
        if self.num_too_long:
            cut = "left out" if self._data.too_long == "drop" else "cut"
            if cut == "cut" and (bare := self._num_without_labels()):
                cut += f", nothing is learnt of {bare:,} of them"
            words.append(f"{self.num_too_long:,} longer than {self._seq} tokens, {cut}")
        if self.index.num_bad:
            words.append(f"{self.index.num_bad:,} bad, see {self.index.folder / BAD}")
        if kinds := len(self.index.ignored):
            what = "kinds of keys or members" if kinds > 1 else "kind of key or member"
            words.append(f"{kinds} {what} ignored, which `mimo-launch data` counts")
        if copied := sum(map(copied_bytes, self._shards)):
            words.append(f"{copied / 1e9:.1f} GB of large row groups copied beside the index")
        if repeats := self._repeats():
            words.append(repeats)
        return "; ".join(words)

    def _num_without_labels(self) -> int:
        """Return the number of cut samples that have neither a label left nor targets to make."""
        if self._inputs.makes:
            return 0
        rows = np.flatnonzero(self.index.columns["tokens"] > self._seq)
        labels = self._facts.labels(rows, self.lengths[rows].astype(np.int64))
        return int((labels == 0).sum())

    def _repeats(self) -> str:
        """Return a note on shards that are named more than once or under several names, or ""."""
        repeated = [each for each in self._shards if each.times > 1 or each.others]
        if not repeated:
            return ""
        first, more = repeated[0], len(repeated) - 1
        words = f"{first.path.name} counts {f'{first.times} times' if first.times > 1 else 'once'}"
        if first.others:
            names = ", ".join(each.name for each in islice(first.others, _MOST_LISTED))
            words += f" ({names} {'are' if len(first.others) > 1 else 'is'} the same file)"
        if more:
            is_ = "s are" if more > 1 else " is"
            words += f", and {more:,} more shard{is_} written more than once"
        return words

    @property
    def num_samples(self) -> int:
        """Number of samples to train on or to evaluate."""
        if self.captions is not None:
            return len(self.captions.counts)
        return self.index.num_rows if self._rows is None else len(self._rows)

    @property
    def num_captions(self) -> npt.NDArray[np.uint32] | None:
        """The number of captions of each record that are used; None if no record has a list."""
        return None if self.captions is None else self.captions.counts

    @property
    def _cuts(self) -> bool:
        """Whether samples are cut, so that some of their images may not be used."""
        return self.num_too_long > 0 and self._data.too_long != "drop"

    @cached_property
    def lengths(self) -> npt.NDArray[np.unsignedinteger]:
        """Number of tokens of every row of the index, rows of media included, after any cut."""
        lengths = self.index.columns["tokens"]
        if self._cuts:
            lengths = np.minimum(lengths, self._seq, dtype=lengths.dtype)
            for row in self._facts.perhaps_split(self._seq, self._fields.gaps).tolist():
                lengths[row] = self.end(row)
        return lengths

    def describe(self, sample: int) -> SampleData:
        """Return the lengths and positions of a sample, from the index alone."""
        row = self.row(sample)
        spans: dict[str, tuple[ImageSpan, ...]] = {}
        for name, _, span in self.spans_used(row):
            spans[name] = (*spans.get(name, ()), span)
        ahead = tuple(self.num_labels(row, depth) for depth in range(1, self._depths + 1))
        return SampleData(
            sample,
            self.end(row),
            self.num_labels(row),
            spans,
            labels_ahead=ahead,
            source=self.source_of(sample),
            counted=float(self.index.columns["counted"][row]) if self._counts else None,
        )

    def facts(self, samples: npt.NDArray[np.int64]) -> RecordFacts:
        """Return what `describe` says of many samples, as columns. Raises: IndexError."""
        columns, rows = self.index.columns, self.rows_at(samples)
        tokens = self.lengths[rows].astype(np.int64)
        labels = columns["labels"][rows].astype(np.int64)
        is_cut = np.flatnonzero(columns["tokens"][rows] > self._seq)
        labels[is_cut] = self._facts.labels(rows[is_cut], tokens[is_cut])
        depths = range(1, self._depths + 1)

        def ahead() -> npt.NDArray[np.int64]:
            found = [self._facts.labels(rows, tokens, depth) for depth in depths]
            return np.array(found, dtype=np.int64).reshape(len(depths), len(rows))

        source = None
        if self.sources:
            records = samples % self.num_samples
            source = np.searchsorted(self._source_ends, records, side="right")
        return RecordFacts(
            tokens,
            labels,
            self._facts.images(rows, tokens if self._cuts else None),
            ahead,
            (lambda: columns["counted"][rows]) if self._counts else None,
            source,
            tuple(each.name for each in self.sources),
        )

    def num_rows(self, samples: npt.NDArray[np.int64]) -> dict[str, npt.NDArray[np.int64]]:
        """Return the rows of many samples by module, as `facts` has them. Raises: IndexError."""
        rows = self.rows_at(samples)
        ends = self.lengths[rows].astype(np.int64) if self._cuts else None
        return self._facts.num_rows(rows, ends)

    def contents(self) -> Contents:
        """Return the samples of each shard that has any, in order."""
        shards, content = self._of_samples("shard"), self._of_samples("content")
        # The samples of a shard are consecutive.
        ends = np.searchsorted(shards, np.arange(len(self._shards)), side="right").tolist()
        found = []
        for shard, first, end in zip(self._shards, [0, *ends], ends, strict=False):
            if end > first:
                checksum = crc32(content[first:end].tobytes())
                checksum = crc32(self._lengths_of(first, end).tobytes(), checksum)
                found.append(FileContents(shard.path.name, end - first, checksum))
        return tuple(found)

    def _lengths_of(self, first: int, end: int) -> npt.NDArray[np.unsignedinteger]:
        """Return the tokens of consecutive samples, of each of their captions in turn."""
        if self.captions is not None:
            rows = self.captions.between(first, end)
        elif self._rows is not None:
            rows = self._rows[first:end]
        else:
            return self.lengths[first:end]
        found: npt.NDArray[np.unsignedinteger] = self.lengths[rows]
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
        if len(self._data.source_names) < 2 or self.split != "train":
            return ()
        shards = self._of_samples("shard")
        of_shard = np.array([each.source for each in self._shards])
        numbers = range(len(self._data.source_names))
        # The samples of a source are consecutive, because its files are.
        ends = np.searchsorted(of_shard[shards], numbers, side="right").tolist()
        names, begins = self._data.source_names, [0, *ends]
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
        return in_set(self._data, name, self._shards)

    def row(self, sample: int) -> int:
        """Return the place of a sample in the index. Raises: IndexError."""
        if self.captions is not None:
            return self.captions.row(sample)
        if not 0 <= sample < self.num_samples:
            raise no_sample(sample, self.num_samples, f"({self.split})")
        return sample if self._rows is None else int(self._rows[sample])

    def rows_at(self, samples: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the places of some samples in the index. Raises: IndexError."""
        if self.captions is not None:
            return self.captions.at(samples)
        if len(samples):
            self.row(int(samples.min())), self.row(int(samples.max()))
        return samples if self._rows is None else self._rows[samples]

    def end(self, row: int) -> int:
        """Return how many tokens of a sample are used; a cut never splits an image."""
        if (length := int(self.index.columns["tokens"][row])) <= self._seq:
            return length
        shown = [
            (each.member, each.span)
            for each in self.placed(row)
            if self._inputs.names[each.module] in self._inputs.in_text
        ]
        spans = [span for _, span in shown]
        # A cut separates no video from its sound, either.
        videos = [whole_video(each, spans) for each in spans if each.parts]
        whole = [*videos, *(range(each.position, each.end) for each in spans)]
        end = next((each.start for each in whole if each.start < self._seq < each.stop), self._seq)
        if self._inputs.cuts_images:
            # A cut does not separate the tiles of an image, either.
            split = {member for member, span in shown if span.end > end}
            images = range(sum(marker_of(suffix) == "image" for suffix in self.members(row)))
            begun = (s.position for m, s in shown if m in split and m in images)
            end = min([end, *begun])
        return end

    def num_labels(self, row: int, after: int = 0) -> int:
        """Return how many of the used tokens are learned.

        Counts only tokens with more than `after` tokens before them.
        """
        columns = self.index.columns
        if columns["tokens"][row] <= self._seq and not after:
            return int(columns["labels"][row])
        runs, end = self.index.range("run", row), self.end(row)
        first, last = (
            columns[name][runs].astype(np.int64).clip(min(after + 1, end), end)
            for name in ("run_first", "run_last")
        )
        return int((last - first).sum())

    def label_places(self, row: int) -> npt.NDArray[np.int64]:
        """Return the places of the labels of a sample: before each learnt token that is used."""
        runs, end = self.index.range("run", row), self.end(row)
        columns = (self.index.columns[name][runs].tolist() for name in ("run_first", "run_last"))
        found = [np.arange(first, min(last, end)) for first, last in zip(*columns, strict=True)]
        return np.concatenate([np.empty(0, np.int64), *found]) - 1

    def placed(self, row: int) -> tuple[PlacedMedium, ...]:
        """Return the rows of images, clips and targets, in the order of the sample."""
        columns, here = self.index.columns, self.index.range("span", row)
        numbers = zip(*(columns[name][here].tolist() for name in LISTS["span"]), strict=True)
        return placed_from(numbers, self._fields)

    def told(self, row: int, module: int) -> list[list[int]]:
        """Return `told` of each span, for each image and video of a module."""
        found: dict[int, list[int]] = {}
        for each in self.placed(row):
            if each.module == module:
                found.setdefault(each.member, []).append(each.told)
        return [found[member] for member in sorted(found)]

    def spans_used(self, row: int) -> Iterator[tuple[str, int, ImageSpan]]:
        """Yield the name of the module, the index and the span, for spans that are not cut off."""
        end = self.end(row)
        for each in self.placed(row):
            # A shown image is never split; a target is dropped if any of its tokens is cut off.
            if each.span.position + (each.span.reads or 1) <= end:
                yield self._inputs.names[each.module], each.member, each.span

    def members(self, row: int) -> dict[str, MemberPlace]:
        """Return the members of a sample by suffix, images and clips in order."""
        columns, here = self.index.columns, self.index.range("member", row)
        names = ("suffix", "offset", "size")
        values = zip(*(columns[f"member_{name}"][here].tolist() for name in names), strict=True)
        suffixes = self.index.meta["suffixes"]
        return {suffixes[suffix]: MemberPlace(offset, size) for suffix, offset, size in values}

    def fetch(self, texts: Iterable[int], media: Iterable[int]) -> None:
        """Fetch samples from elsewhere, in parallel: only the text of `texts`, all of `media`.

        Raises: SourceGone, OSError.
        """
        if not any(isinstance(each.path, RemotePath) for each in self._shards):
            return
        whole = {*map(self.row, media)}
        wanted = []
        for row in {*map(self.row, texts)} | whole:
            places = self.members(row)
            texts_of = [each for each in places if each.startswith(COLUMN)]
            suffixes = places.keys() if row in whole else (*TEXT_SUFFIXES, *texts_of)
            wanted.append((int(self.index.columns["shard"][row]), places, tuple(suffixes)))
        self._reader.fetch(wanted)

    def shard_of(self, row: int) -> NamedShard:
        """Return the file that holds a row of the index."""
        return self._shards[int(self.index.columns["shard"][row])]

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
