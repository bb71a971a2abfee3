"""The `webdataset` data set: samples of the user's shards, from their index.

Decides: which samples are too long, what the user learns of samples that are left out, and that
errors name the shard and the key; how the members of a sample become tokens and pixels.
Relies on: `index_columns` and `tar_files`; `sample_encoder` and `decode_media` for members.
Leaves: the order of samples to `data.sample_order`, threads to `loader`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from itertools import islice
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from mimo_launch.data.dataset import BadSample, Media
from mimo_launch.data.random_draws import Split
from mimo_launch.data.webdataset.decode_media import Marker, marker_of
from mimo_launch.data.webdataset.index import Say, open_index, split_files
from mimo_launch.data.webdataset.index_columns import BAD
from mimo_launch.data.webdataset.indexer import SampleIndexer
from mimo_launch.data.webdataset.member_readers import ImageReader
from mimo_launch.data.webdataset.records import read_record
from mimo_launch.data.webdataset.sample_encoder import loss_mask_among
from mimo_launch.data.webdataset.tar_files import MemberPlace, ShardReader
from mimo_launch.kinds.vocabulary import IGNORE_LABEL, PAD, placeholder_id
from mimo_launch.layout.step_data import ImageSpan, SampleData
from mimo_launch.spec.spec import Spec, WebdatasetData

_MOST_LISTED = 5
T = TypeVar("T")
Int64s = npt.NDArray[np.int64]


class NotTrainable(ValueError):
    """Shards hold no sample, too many bad ones, or one that is too long under `too_long: error`."""


class OpenSplit:
    """The samples of one split.

    `row` is the place of a sample in the index, which also holds samples that are too long.
    """

    def __init__(self, indexer: SampleIndexer, split: Split, say: Say) -> None:
        """Open the index, or make it; `say` gets the progress.

        Raises: NotTrainable, OSError, ValueError.
        """
        self.split: Split = split
        self.index = open_index(indexer, split, say)
        self._data, self._seq = indexer.data, indexer.spec.batch.seq
        self._inputs = indexer.inputs
        self._reader = ShardReader(split_files(self._data, split))
        too_long = np.flatnonzero(self.index.columns["tokens"] > self._seq)
        self.num_too_long = len(too_long)
        self._rows: npt.NDArray[np.int64] | None = None
        if self.num_too_long and self._data.too_long == "drop":
            self._rows = np.flatnonzero(self.index.columns["tokens"] <= self._seq)
        self._check(too_long)

    def _check(self, too_long: npt.NDArray[np.int64]) -> None:
        """Raise NotTrainable if these samples must not be trained on."""
        index, data = self.index, self._data
        if index.num_bad > data.max_bad_samples:
            raise NotTrainable(
                f"{index.num_bad} records of the shards ({self.split}) are bad, but "
                f"`data.max_bad_samples` allows {data.max_bad_samples}; {index.folder / BAD} lists "
                f"them, the first:\n{self.first_bad()}"
            )
        if self.num_too_long and data.too_long == "error":
            row = int(too_long[0])
            raise NotTrainable(
                f"{self.num_too_long} samples ({self.split}) are longer than `batch.seq` "
                f"{self._seq}; the first is {self.name(row)} with {index.columns['tokens'][row]} "
                f"tokens; raise `batch.seq`, or write `too_long: drop` or `truncate` in `data`"
            )
        if self.num_samples == 0:
            raise NotTrainable(
                f"the shards ({self.split}) hold no usable sample: {index.num_bad} are bad, "
                f"{self.num_too_long} are longer than `batch.seq` {self._seq}\n{self.first_bad()}"
            )

    def first_bad(self) -> str:
        """Return the first bad records, a line each."""
        first = islice(self.index.bad(), _MOST_LISTED)
        return "\n".join(f"{each['shard']} {each['key']}: {each['why']}" for each in first)

    def summary(self) -> str:
        """Return in one line the number of samples and what was left out."""
        words = [f"{self.num_samples:,} samples ({self.split})"]
        if self.num_too_long:
            cut = "left out" if self._data.too_long == "drop" else "cut"
            words.append(f"{self.num_too_long:,} longer than {self._seq} tokens, {cut}")
        if self.index.num_bad:
            words.append(f"{self.index.num_bad:,} bad, see {self.index.folder / BAD}")
        return "; ".join(words)

    @property
    def num_samples(self) -> int:
        """Samples to train on, or to evaluate with."""
        return self.index.num_samples if self._rows is None else len(self._rows)

    @cached_property
    def lengths(self) -> npt.NDArray[np.unsignedinteger]:
        """Tokens of every sample, rows included, after any cut."""
        lengths = self.index.columns["tokens"]
        if self._rows is not None:
            return lengths[self._rows]
        if self.num_too_long:
            lengths = lengths.copy()
            for row in np.flatnonzero(lengths > self._seq).tolist():
                lengths[row] = self.end(row)
        return lengths

    def row(self, sample: int) -> int:
        """Return the place of a sample in the index. Raises: IndexError."""
        if not 0 <= sample < self.num_samples:
            raise IndexError(f"sample {sample} of {self.num_samples} ({self.split})")
        return sample if self._rows is None else int(self._rows[sample])

    def end(self, row: int) -> int:
        """Return how many tokens of a sample are used: all, or as many as cut no image."""
        if (length := int(self.index.columns["tokens"][row])) <= self._seq:
            return length
        for module, _, span in self.spans(row):
            in_text = self._inputs.names[module] in self._inputs.in_text
            if in_text and span.position < self._seq < span.end:
                return span.position
        return self._seq

    def num_labels(self, row: int) -> int:
        """Return how many of the tokens that are used are learned."""
        columns = self.index.columns
        if columns["tokens"][row] <= self._seq:
            return int(columns["labels"][row])
        runs, end = self.index.range("run", row), self.end(row)
        first, last = (columns[name][runs].astype(np.int64) for name in ("run_first", "run_last"))
        return int((np.minimum(last, end) - np.minimum(first, end)).sum())

    def spans(self, row: int) -> tuple[tuple[int, int, ImageSpan], ...]:
        """Return module, index of the image or clip, and rows, in the order of the sample."""
        columns, here = self.index.columns, self.index.range("span", row)
        names = ("module", "member", "position", "height", "width", "reads", "later")
        values = zip(*(columns[f"span_{name}"][here].tolist() for name in names), strict=True)
        gaps = [self._inputs.gap(name) for name in self._inputs.names]
        return tuple(
            (
                module,
                member,
                ImageSpan(
                    position,
                    height,
                    width,
                    reads or None,
                    gap=gaps[module],
                    later=later - 1 if later else None,
                ),
            )
            for module, member, position, height, width, reads, later in values
        )

    def tenths(self, row: int, module: int, first: int) -> list[list[int]]:
        """Return, for each video of a sample, the time of its spans in tenths of a second.

        `module` reads it, and its videos are numbered from `first` on.
        """
        columns, here = self.index.columns, self.index.range("span", row)
        names = ("module", "member", "tenths")
        values = zip(*(columns[f"span_{name}"][here].tolist() for name in names), strict=True)
        found: dict[int, list[int]] = {}
        for of, member, tenths in values:
            if of == module and member >= first:
                found.setdefault(member, []).append(tenths)
        return [found[member] for member in sorted(found)]

    def spans_used(self, row: int) -> Iterator[tuple[str, int, ImageSpan]]:
        """Yield the name of the module, and the same, for what the end of the sample leaves."""
        end = self.end(row)
        for module, member, span in self.spans(row):
            # An image that is shown is never cut; a target is left out with any of its tokens.
            if span.position + (span.reads or 1) <= end:
                yield self._inputs.names[module], member, span

    def members(self, row: int) -> dict[str, MemberPlace]:
        """Return the members of a sample by suffix, images and clips in order."""
        columns, here = self.index.columns, self.index.range("member", row)
        names = ("suffix", "offset", "size")
        values = zip(*(columns[f"member_{name}"][here].tolist() for name in names), strict=True)
        suffixes = self.index.meta["suffixes"]
        return {suffixes[suffix]: MemberPlace(offset, size) for suffix, offset, size in values}

    def read(self, row: int, place: MemberPlace) -> bytes:
        """Return the bytes of a member of a sample. Raises: OSError, EOFError."""
        return self._reader.read(int(self.index.columns["shard"][row]), place)

    def name(self, row: int) -> str:
        """Return shard and key of a sample."""
        shard = self._reader.shards[int(self.index.columns["shard"][row])]
        return f"{shard.name} {self.index.key(row)}"

    def named(self, row: int, read: Callable[[], T]) -> T:
        """Return what `read` returns. Raises: BadSample with shard and key if it is damaged."""
        try:
            return read()
        except BadSample as error:
            raise BadSample(f"{self.name(row)}: {error}") from error
        except (OSError, EOFError, ValueError) as error:
            raise BadSample(f"{self.name(row)}: {type(error).__name__}: {error}") from error


class ShardSamples:
    """Samples by index; see `dataset.Dataset` for what the methods return."""

    answer_end = None
    judges = False

    def __init__(self, spec: Spec, data: WebdatasetData, say: Say = lambda progress: None) -> None:
        """Open the index, or make it; `say` gets the progress.

        Raises:
            NotTrainable: There is no sample, or there are more bad ones than `max_bad_samples`, or
                one is too long and `too_long: error`.
            OSError: A shard is not there, or the index can be written nowhere.
            ValueError: The tokenizer, its chat template or a processor cannot be used.
        """
        indexer = SampleIndexer(spec, data)
        self._data, self._seq = data, spec.batch.seq
        self._sample_encoder, self._inputs = indexer.sample_encoder, indexer.inputs
        self.notes = indexer.sample_encoder.notes
        self._placeholders = {name: placeholder_id(spec, name) for name in self._inputs.in_text}
        wanted: tuple[Split, ...] = ("train",) if spec.eval is None else ("train", "heldout")
        self.splits = {split: OpenSplit(indexer, split, say) for split in wanted}

    def num_samples(self, split: Split) -> int:
        """Return the number of good samples that fit in a sequence, or are cut to fit."""
        return self.splits[split].num_samples

    def length(self, split: Split, index: int) -> int:
        """Return the number of tokens of a sample, rows included."""
        found = self.splits[split]
        found.row(index)
        return int(found.lengths[index])

    def name(self, split: Split, index: int) -> str:
        """Return shard and key of a sample."""
        found = self.splits[split]
        return found.name(found.row(index))

    def describe(self, split: Split, index: int) -> SampleData:
        """Return the lengths and places of a sample, from the index alone."""
        found = self.splits[split]
        row = found.row(index)
        spans: dict[str, tuple[ImageSpan, ...]] = {}
        for name, _, span in found.spans_used(row):
            spans[name] = (*spans.get(name, ()), span)
        return SampleData(index, found.end(row), found.num_labels(row), spans)

    def text(self, split: Split, index: int) -> tuple[Int64s, Int64s]:
        """Return tokens and labels, int64 [seq]; rows are placeholders of their encoders."""
        found = self.splits[split]
        row = found.row(index)
        return found.named(row, partial(self._text, found, row))

    def images(self, split: Split, index: int, encoder: str) -> list[Media]:
        """Return images [channels, height, width] or log-mel clips [mels, frames] of a sample."""
        found = self.splits[split]
        row = found.row(index)
        of_member: dict[int, list[ImageSpan]] = {}
        for name, member, span in found.spans_used(row):
            if name == encoder:
                of_member.setdefault(member, []).append(span)
        read = partial(self._arrays, found, row, encoder)
        # In the order of spans: those of a video follow each other.
        return [
            array
            for member, spans in of_member.items()
            for array in found.named(row, partial(read, member, spans))
        ]

    def documents(self, split: Split, index: int) -> Int64s:
        """Return zeros [seq]: a sample is one document."""
        self.splits[split].row(index)
        return np.zeros(self._seq, dtype=np.int64)

    def recognised(self, split: Split, index: int, images: Sequence[Media]) -> tuple[int, int]:
        """Judge nothing: nobody says what an image should show."""
        self.describe(split, index)
        return 0, 0

    def pixels(self, generator: str, image: Media) -> npt.NDArray[np.uint8] | None:
        """Return a target image as pixels: the reverse of its processor's last steps."""
        reader = self._inputs.readers[generator]
        return reader.pixels(image) if isinstance(reader, ImageReader) else None

    def words(self, tokens: Sequence[int]) -> str:
        """Return tokens as text."""
        return self._sample_encoder.decode(tokens)

    def answer(self, split: Split, index: int) -> tuple[int, ...]:
        """Return nothing: answers in free text are not scored."""
        self.splits[split].row(index)
        return ()

    def _text(self, found: OpenSplit, row: int) -> tuple[Int64s, Int64s]:
        members = found.members(row)
        record = read_record(
            self._data,
            lambda suffix: found.read(row, members[suffix]) if suffix in members else None,
            videos=self._inputs.reads_videos,
        )
        counts = {marker: len(each) for marker, each in _by_marker(members).items()}
        tenths: list[list[int]] = []
        if counts["video"]:
            module = self._inputs.names.index(self._inputs.video_reader)
            tenths = found.tenths(row, module, counts["image"])
        encoded = self._sample_encoder.encode(record, counts, tenths=tenths)
        spans = found.spans(row)
        is_row = self._inputs.rows_among(
            len(encoded.tokens), [(module, span) for module, _, span in spans]
        )
        if len(is_row) != (expected := found.index.columns["tokens"][row]):
            raise BadSample(f"it has {len(is_row)} tokens, and {expected} in the index")
        all_tokens = np.empty(len(is_row), dtype=np.int64)
        all_tokens[~is_row] = encoded.tokens
        for module, _, span in spans:
            placeholder = self._placeholders.get(self._inputs.names[module])
            if placeholder is not None:
                if self._inputs.line_break is not None:
                    all_tokens[span.position : span.end] = self._inputs.line_break
                for line in span.lines:
                    all_tokens[line.position : line.end] = placeholder
        end = found.end(row)
        loss_mask = np.flatnonzero(loss_mask_among(encoded.loss_mask, is_row)[:end])
        tokens = np.full(self._seq, PAD, dtype=np.int64)
        labels = np.full(self._seq, IGNORE_LABEL, dtype=np.int64)
        tokens[:end] = all_tokens[:end]
        labels[loss_mask - 1] = all_tokens[loss_mask]
        return tokens, labels

    def _arrays(
        self, found: OpenSplit, row: int, module: str, member: int, spans: Sequence[ImageSpan]
    ) -> list[Media]:
        """Return an image, clip or video of a sample, by its index, as its module takes it."""
        members, reader = found.members(row), self._inputs.readers[module]
        suffix = reader.members(_by_marker(members))[member]
        return reader.arrays(suffix, found.read(row, members[suffix]), spans)


def _by_marker(suffixes: Iterable[str]) -> dict[Marker, list[str]]:
    """Return the members that are not the text by what they are, in order."""
    found: dict[Marker, list[str]] = {"image": [], "audio": [], "video": [], "target": []}
    for suffix in suffixes:
        if (marker := marker_of(suffix)) is not None:
            found[marker].append(suffix)
    return found
