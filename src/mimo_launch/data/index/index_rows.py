"""The rows of an index: where a record is cut, and what is used of it.

Decides: that a cut separates no image, no video from its sound, and no tile from its image.
Relies on: `columns` for what each column means, `row_facts` for facts about many rows.
Leaves: which rows are samples to `open_split`.
"""

from collections.abc import Iterator
from functools import cached_property

import numpy as np
import numpy.typing as npt

from mimo_launch.data.index.columns import LISTS, Columns, SpanFields, placed_from
from mimo_launch.data.index.row_facts import RowFacts
from mimo_launch.data.samples.decode_media import marker_of
from mimo_launch.data.samples.media_rows import PlacedMedium, ShardInputs
from mimo_launch.data.sources.source_file import MemberPlace
from mimo_launch.layout.step_data import ImageSpan, whole_video


class IndexRows:
    """The rows of an index, those of records that are too long included."""

    def __init__(self, index: Columns, inputs: ShardInputs, seq: int, *, cuts: bool) -> None:
        """Take the rows of an index; of each, `seq` tokens are used at most.

        Without `cuts`, no longer row is used, and `lengths` leaves them as they are.
        """
        self.index = index
        self.facts = RowFacts(index.columns, inputs.names)
        self.num_too_long = int((index.columns["tokens"] > seq).sum())
        # Whether a row may be cut, so that some of its images are not used.
        self.cuts = cuts and self.num_too_long > 0
        self._inputs, self._seq = inputs, seq
        self._fields = SpanFields(
            gaps=[inputs.gap(name) for name in inputs.names],
            holds_text=[inputs.holds_text(name) for name in inputs.names],
            hears=[inputs.hears(name) for name in inputs.names],
            shares_bounds=[inputs.shares_bounds(name) for name in inputs.names],
        )

    @cached_property
    def lengths(self) -> npt.NDArray[np.unsignedinteger]:
        """Number of tokens of every row of the index, rows of media included, after any cut."""
        lengths = self.index.columns["tokens"]
        if self.cuts:
            lengths = np.minimum(lengths, self._seq, dtype=lengths.dtype)
            for row in self.facts.perhaps_split(self._seq, self._fields.gaps).tolist():
                lengths[row] = self.end(row)
        return lengths

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

    def num_without_labels(self) -> int:
        """Return the number of cut records that have neither a label left nor targets to make."""
        if self._inputs.makes:
            return 0
        rows = np.flatnonzero(self.index.columns["tokens"] > self._seq)
        labels = self.facts.labels(rows, self.lengths[rows].astype(np.int64))
        return int((labels == 0).sum())

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
