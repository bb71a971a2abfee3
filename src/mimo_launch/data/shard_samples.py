"""The data set of the user's files, such as tar shards: samples from their index.

Decides: how the members of a sample become tokens and pixels.
Relies on: `open_split` for the samples of a split; `sample_encoder` and `decode_media` for members.
Leaves: the order of samples to `data.order.sample_order`, threads to `loader`.
"""

import shutil
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mimo_launch.data.dataset import (
    BadSample,
    Contents,
    Dataset,
    KeyValues,
    Media,
    SourceSamples,
    TokenColumn,
    chosen,
)
from mimo_launch.data.index.indexer import SampleIndexer
from mimo_launch.data.index.open_index import Say, open_index
from mimo_launch.data.index.open_split import OpenSplit
from mimo_launch.data.index.split_report import check_trainable, none_usable
from mimo_launch.data.order.mixture import begun_phases
from mimo_launch.data.random_draws import Split
from mimo_launch.data.record_facts import Int64s, RecordFacts
from mimo_launch.data.samples.decode_media import Marker, marker_of
from mimo_launch.data.samples.key_values import key_values
from mimo_launch.data.samples.text_tokens import loss_mask_among
from mimo_launch.data.samples.token_columns import at_labels
from mimo_launch.kinds.vocabulary import IGNORE_LABEL, PAD, placeholder_id
from mimo_launch.layout.step_data import ImageSpan, SampleData
from mimo_launch.spec.spec import Spec, UserData


class ShardSamples(Dataset):
    """Samples by index; see `dataset.Dataset` for what the methods return."""

    def __init__(self, spec: Spec, data: UserData, say: Say = lambda progress: None) -> None:
        """Open the index, or make it; `say` gets the progress.

        Raises:
            NotTrainable: There is no sample, there are more bad records than `max_bad_samples`, or
                a sample is too long with `too_long: error`.
            OSError: A shard does not exist, or the index cannot be written anywhere.
            ValueError: The tokenizer, its chat template or a processor cannot be used.
        """
        indexer = SampleIndexer(spec, data)
        self._data, self._seq = data, spec.batch.seq
        self._sample_encoders, self._inputs = indexer.sample_encoders, indexer.inputs
        self._columns = indexer.columns
        self.notes = indexer.sample_encoders.notes
        self._placeholders = {name: placeholder_id(spec, name) for name in self._inputs.in_text}
        wanted: tuple[Split, ...] = ("train",) if spec.eval is None else ("train", "heldout")
        self.splits: dict[Split, OpenSplit] = {}
        for split in wanted:
            index = open_index(indexer, split, say)
            self.splits[split] = OpenSplit(spec, data, self._inputs, split, index)
            check_trainable(self.splits[split])
        begun_phases(spec, self.sources(), 0)  # Raises if a block would lack a source.
        self._sets = self._named_sets() if "heldout" in self.splits else {}

    def num_samples(self, split: Split) -> int:
        """Return the number of good samples that fit in a sequence, or are cut to fit."""
        return self.splits[split].num_samples

    def heldout_sets(self) -> dict[str, Sequence[int]]:
        """Return the held-out samples of each set by its name."""
        return self._sets

    def copy_index(self, folder: Path) -> None:
        """Copy the index of each split to a folder for `data.index`. Raises: OSError."""
        for split in self.splits.values():
            made = split.index.folder
            shutil.copytree(made, folder / made.name, dirs_exist_ok=True)

    def _named_sets(self) -> dict[str, Sequence[int]]:
        """Return the samples of each set. Raises: NotTrainable if one has none."""
        sets, found = self._data.heldout_names, self.splits["heldout"]
        if "" in sets:
            return {"": range(found.num_samples)}
        members = {name: found.samples_of(name).tolist() for name in sets}
        for name, samples in members.items():
            if not samples:
                raise none_usable(found, f"the held-out set `{name}`", found.files_in_set(name))
        return members

    def length(self, split: Split, index: int) -> int:
        """Return the number of tokens of a sample, rows included."""
        found = self.splits[split]
        return int(found.rows.lengths[found.row(index)])

    def num_cut(self, split: Split, index: int) -> int:
        """Return the number of tokens of a sample beyond the cut."""
        found = self.splits[split]
        row = found.row(index)
        return int(found.index.columns["tokens"][row]) - found.rows.end(row)

    def sources(self) -> tuple[SourceSamples, ...]:
        """Return the training samples of each source; empty if there is only one."""
        return self.splits["train"].sources

    def captions(self) -> npt.NDArray[np.integer] | None:
        """Return the number of captions of each training sample; None if each has one text."""
        return self.splits["train"].num_captions

    def contents(self, split: Split) -> Contents:
        """Return the contents of each shard that has samples."""
        return self.splits[split].contents()

    def name(self, split: Split, index: int) -> str:
        """Return shard and key of a sample."""
        found = self.splits[split]
        return found.name(found.row(index))

    def keys(self, split: Split, index: int) -> KeyValues:
        """Return what the record of a sample holds by key: what is read, and what is ignored."""
        found = self.splits[split]
        row = found.row(index)
        return found.named(row, partial(self._keys, found, row))

    def describe(self, split: Split, index: int) -> SampleData:
        """Return the lengths and positions of a sample, from the index alone."""
        return self.splits[split].describe(index)

    def facts(self, split: Split, ids: Int64s) -> RecordFacts:
        """Return what `describe` says of many samples, from the columns of the index."""
        return self.splits[split].facts(ids)

    def lengths(self, split: Split, ids: Int64s) -> Int64s:
        """Return the number of tokens of many samples."""
        found = self.splits[split]
        return found.rows.lengths[found.rows_at(ids)].astype(np.int64)

    def fetch(self, split: Split, texts: Iterable[int], media: Iterable[int]) -> None:
        """Fetch samples from elsewhere: only the text of `texts`, all of `media`."""
        self.splits[split].fetch(texts, media)

    def text(self, split: Split, index: int) -> tuple[Int64s, Int64s]:
        """Return tokens and labels, int64 [seq]; a row is the placeholder of its encoder."""
        found = self.splits[split]
        row = found.row(index)
        return found.named(row, partial(self._text, found, row))

    def columns(self, split: Split, index: int) -> dict[str, TokenColumn]:
        """Return the columns that the loss reads, at the places of labels."""
        found = self.splits[split]
        row = found.row(index)
        if not self._columns.suffixes:
            return {}
        members, places = found.rows.members(row), found.rows.label_places(row)
        number = int(found.index.columns["labels"][row])
        read = partial(found.read, row, members)
        made = found.named(row, lambda: self._columns.read(members, number, read))
        return at_labels(made, places, self._seq)

    def images(
        self, split: Split, index: int, encoder: str, only: Collection[int] | None = None
    ) -> list[Media]:
        """Return images [channels, height, width] or log-mel clips [mels, frames] of a sample.

        With `only`, other members are not read.
        """
        found = self.splits[split]
        row = found.row(index)
        of_member: dict[int, list[ImageSpan]] = {}
        for name, member, span in found.rows.spans_used(row):
            if name == encoder:
                of_member.setdefault(member, []).append(span)
        read = partial(self._arrays, found, row, encoder)
        arrays, first = list[Media](), 0
        # In the order of spans: the spans of a video are consecutive.
        for member, spans in of_member.items():
            mine = (
                None if only is None else {place - first for place in only} & {*range(len(spans))}
            )
            if mine is None or mine:
                arrays += chosen(found.named(row, partial(read, member, spans)), mine)
            first += len(spans)
        return arrays

    def documents(self, split: Split, index: int) -> Int64s:
        """Return zeros [seq]: a sample is one document."""
        self.splits[split].row(index)
        return np.zeros(self._seq, dtype=np.int64)

    def pixels(self, generator: str, image: Media) -> npt.NDArray[np.uint8] | None:
        """Return a target image as pixels, by reversing the last steps of its processor."""
        return self._inputs.readers[generator].pixels(image)

    def words(self, tokens: Sequence[int]) -> str:
        """Return tokens as text."""
        return self._sample_encoders.usual.decode(tokens)

    @property
    def answer_ends(self) -> frozenset[int]:
        """The special tokens."""
        return self._sample_encoders.usual.ends

    def answer(self, split: Split, index: int) -> tuple[int, ...]:
        """Return the tokens of the first answer, which end before a special one."""
        _, labels = self.text(split, index)
        wanted = labels[(labels != IGNORE_LABEL).argmax() :]
        over = (wanted == IGNORE_LABEL) | np.isin(wanted, list(self.answer_ends))
        return tuple(wanted[: over.argmax() if over.any() else None].tolist())

    def _keys(self, found: OpenSplit, row: int) -> KeyValues:
        members = found.rows.members(row)
        read = partial(found.read, row, members)
        record, *_ = self._sample_encoders.of(found.shard_of(row).template).read(
            lambda suffix: read(suffix) if suffix in members else None
        )
        number = int(found.index.columns["labels"][row])
        columns = self._columns.read(members, number, read)
        text = read("json") if record.member == "json" else None
        return key_values(record, text, members, columns)

    def _text(self, found: OpenSplit, row: int) -> tuple[Int64s, Int64s]:
        members = found.rows.members(row)
        encoder = self._sample_encoders.of(found.shard_of(row).template)
        records = encoder.read(
            lambda suffix: found.read(row, members, suffix) if suffix in members else None
        )
        if (caption := int(found.index.columns["caption"][row])) >= len(records):
            raise BadSample(f"it has {len(records)} captions, and more in the index")
        record = records[caption]
        counts = {marker: len(each) for marker, each in _by_marker(members).items()}
        told: dict[Marker, list[list[int]]] = {}
        for marker, module in self._inputs.tellers.items():
            # Videos come after the images.
            here = slice(counts["image"]) if marker == "image" else slice(counts["image"], None)
            told[marker] = found.rows.told(row, module)[here]
        encoded = encoder.encode(record, counts, told=told)
        spans = [(each.module, each.span) for each in found.rows.placed(row)]
        is_row = self._inputs.rows_among(len(encoded.tokens), spans)
        if len(is_row) != (expected := found.index.columns["tokens"][row]):
            raise BadSample(f"it has {len(is_row)} tokens, and {expected} in the index")
        all_tokens = np.empty(len(is_row), dtype=np.int64)
        all_tokens[~is_row] = encoded.tokens
        for module, span in spans:
            placeholder = self._placeholders.get(self._inputs.names[module])
            if placeholder is not None:
                if self._inputs.line_break is not None:
                    all_tokens[span.position : span.end] = self._inputs.line_break
                for line in span.lines:
                    all_tokens[line.position : line.end] = placeholder
        end = found.rows.end(row)
        loss_mask = np.flatnonzero(loss_mask_among(encoded.loss_mask, is_row)[:end])
        tokens = np.full(self._seq, PAD, dtype=np.int64)
        labels = np.full(self._seq, IGNORE_LABEL, dtype=np.int64)
        tokens[:end] = all_tokens[:end]
        labels[loss_mask - 1] = all_tokens[loss_mask]
        return tokens, labels

    def _arrays(
        self, found: OpenSplit, row: int, module: str, member: int, spans: Sequence[ImageSpan]
    ) -> list[Media]:
        """Return an image, clip or video of a sample as input of its module, by its index."""
        members, reader = found.rows.members(row), self._inputs.readers[module]
        suffix = reader.members(_by_marker(members))[member]
        return reader.arrays(suffix, found.read(row, members, suffix), spans)


def _by_marker(suffixes: Iterable[str]) -> dict[Marker, list[str]]:
    """Return the members other than the text, grouped by marker, in order."""
    found: dict[Marker, list[str]] = {"image": [], "audio": [], "video": [], "target": []}
    for suffix in suffixes:
        if (marker := marker_of(suffix)) is not None:
            found[marker].append(suffix)
    return found
