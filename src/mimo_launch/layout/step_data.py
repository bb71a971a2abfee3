"""The metadata of the samples of one step, known on every rank before any tensor exists.

Decides: which facts about a sample other files may use (rows, positions, label counts).
Relies on: the data set's index, from which every rank derives the same data without reading pixels.
Leaves: tokens and pixels to the loader on the ranks that need them.

A *row* is one embedding vector after the projector; a sample has one placeholder token for each row
of an encoder, in the same order.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from itertools import accumulate, zip_longest
from math import inf
from typing import TYPE_CHECKING, Any

from mimo_launch.diag.frozen import frozen
from mimo_launch.kinds.kind import ModelKind
from mimo_launch.kinds.tiles import Shown
from mimo_launch.spec.base import LANGUAGE


@frozen
class ImageSpan:
    """One image of a sample: `height x width` rows, from `position` on.

    A row is one patch, or with pixel shuffle one square of patches; see `VitModel.row_side`. A clip
    of sound is one row high. Between two lines of rows there are `gap` tokens of text. An image
    that is to be generated has no rows in the text; `reads` is then the number of tokens, from
    `position` on, that give the generator its rows.

    A video is one image per temporal patch. If language has a position axis for time, images after
    the first are `later` than it by this many positions and share its place on the other axes. Text
    continues after the longer side of the last image or, if that `holds_text`, after its time.

    After the tokens of its rows a clip may have `loose` tokens, which make no row. The rows of an
    image in tiles are one line; `shown` says what they are made of.

    The sound of a video is a clip in `parts`, each with the place and the number of its rows; the
    images of the video come between them. On position axes its first row is where the first image
    begins, and a row takes one place. With `shares_bounds` the two tokens before such a video share
    a place, and so do the two after it (Qwen2.5-Omni).

    An image that is `joined` is of the same file as the one before it: of a video, or cut from the
    same picture. They are one *medium*.
    """

    position: int
    height: int
    width: int
    reads: int | None = None
    gap: int = 0
    later: int | None = None
    holds_text: bool = False
    loose: int = 0
    shown: Shown = None
    parts: tuple[tuple[int, int], ...] = ()
    shares_bounds: bool = False
    joined: bool = False

    @property
    def rows(self) -> int:
        """Number of rows, which is the number of placeholder tokens."""
        return self.height * self.width

    def moved(self, by: int) -> "ImageSpan":
        """Return the image later in the text by some tokens."""
        return ImageSpan(
            self.position + by,
            *(self.height, self.width, self.reads, self.gap, self.later),
            *(self.holds_text, self.loose, self.shown),
            tuple((place + by, rows) for place, rows in self.parts),
            *(self.shares_bounds, self.joined),
        )

    @property
    def num_positions(self) -> int:
        """Number of tokens of the text that belong to the image."""
        return self.rows if self.reads is None else self.reads

    @property
    def length(self) -> int:
        """Distance from the image's first position to the text after it, on position axes."""
        last = (self.later or 0) if self.holds_text else 0
        return max(self.height, self.width, last + 1)

    @property
    def lines(self) -> tuple["ImageSpan", ...]:
        """Images without gaps in the text: this one, or one for each line of rows or part."""
        if self.parts:
            before = accumulate((rows for _, rows in self.parts), initial=0)
            parts = zip(self.parts, before, strict=False)
            return tuple(ImageSpan(at, 1, rows, later=late) for (at, rows), late in parts)
        if not self.gap:
            return (self,)
        step = self.width + self.gap
        places = range(self.position, self.position + self.height * step, step)
        return tuple(ImageSpan(place, 1, self.width) for place in places)

    @property
    def end(self) -> int:
        """The place after its last token."""
        last = self.lines[-1]
        return last.position + last.num_positions

    @property
    def covered(self) -> tuple[range, ...]:
        """The places of its rows and of the tokens between its lines."""
        if not self.parts:
            return (range(self.position, self.end),)
        return tuple(range(place, place + rows) for place, rows in self.parts)


def media(spans: Sequence[ImageSpan]) -> list[range]:
    """Return the places of the images of each medium."""
    firsts = [place for place, span in enumerate(spans) if not (place and span.joined)]
    return [*map(range, firsts, [*firsts[1:], len(spans)])]


def whole_video(sound: ImageSpan, spans: Iterable[ImageSpan]) -> range:
    """Return the places of a video with this sound, among all spans that language reads."""
    spans = list(spans)
    begins = [each.position for each in spans if each.later is None]
    first = max(place for place in begins if place < sound.position)
    after = min((place for place in begins if place > sound.position), default=inf)
    return range(first, max(each.end for each in spans if first <= each.position < after))


# numpy takes a tenth of a second to import, and `validate` does not need it.
if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Int64s = npt.NDArray[np.int64]

NO_RECORD = -1


def input_shape(kind: ModelKind, span: ImageSpan) -> tuple[int, ...]:
    """Return the shape of the array of an image or a clip.

    Raises: TypeError if models of this kind read no arrays.
    """
    if (clips := kind.clips) is not None:
        return clips.input_shape(span.height, span.width, span.loose)
    if (source := kind.input) is None:
        raise TypeError(f"a model of kind {kind.model.kind} reads no arrays")
    if (rule := kind.tokens.tiles) is not None:
        return rule.num_tiles(span.shown), *source.input_shape(rule.height, rule.width)
    return source.input_shape(span.height, span.width)


def is_array_of(kind: ModelKind, span: ImageSpan, shape: tuple[int, ...]) -> bool:
    """Return whether a shape is that of the image or clip of a span. Raises: TypeError."""
    wanted = input_shape(kind, span)
    return shape == wanted if kind.clips is None else kind.clips.fits(shape, wanted)


@frozen
class SampleData:
    """One sample: its number in the data set, its labels and, per encoder, its images in order.

    A *pack* is a sample made of several records of the data set, its `parts`. Each part is a sample
    with positions counted from `first`. The counts and spans of the pack cover all parts; its
    number is the number of its first part. A pack of no records is padding. `labels_ahead` counts
    the labels of each depth of multi-token prediction, from 1 on: at depth d, the labels d tokens
    further ahead in the same document. `source` is the name of its source, if
    the data have several. `counted` is the sum that a user's loss of language counts in place of
    labels, if it counts a column.
    """

    id: int
    num_tokens: int
    num_labels: int
    spans: Mapping[str, tuple[ImageSpan, ...]] = field(default_factory=dict)
    first: int = 0
    parts: tuple["SampleData", ...] | None = None
    labels_ahead: tuple[int, ...] = ()
    source: str = ""
    counted: float | None = None

    @property
    def terms(self) -> float:
        """What the loss of language counts: labels, unless a column says otherwise."""
        return self.num_labels if self.counted is None else self.counted

    @property
    def records(self) -> tuple["SampleData", ...]:
        """The records of the data set in the sample: itself, unless it is a pack."""
        return (self,) if self.parts is None else self.parts

    def rows(self, encoder: str) -> int:
        """Return the number of rows that `encoder` makes of this sample, 0 without an image."""
        return sum(span.rows for span in self.spans.get(encoder, ()))

    def span_lengths(self, seq: int) -> tuple[int, ...]:
        """Return the lengths of its spans of attention: records, the last one with padding."""
        *others, last = (record.num_tokens for record in self.records or (NO_TOKENS,))
        return (*others, max(last, seq - sum(others)))


def packed(records: Sequence[SampleData]) -> SampleData:
    """Return a sample made of records, one after another; padding if there are no records."""
    if len(records) == 1:
        return records[0]
    parts, first = [], 0
    for record in records:
        parts.append(replace(record, first=first))
        first += record.num_tokens
    return _joined(parts)


NO_TOKENS = SampleData(NO_RECORD, 0, 0)


def without_records(sample: SampleData, bad: Collection[int]) -> SampleData:
    """Return a sample with gaps for some of its records, given by their place in it."""
    left = [
        SampleData(record.id, 0, 0, first=record.first) if place in bad else record
        for place, record in enumerate(sample.records)
    ]
    return left[0] if sample.parts is None else _joined(left)


def _joined(parts: Sequence[SampleData]) -> SampleData:
    spans: dict[str, tuple[ImageSpan, ...]] = {}
    for part in parts:
        for encoder, images in part.spans.items():
            spans[encoder] = (*spans.get(encoder, ()), *(each.moved(part.first) for each in images))
    return SampleData(
        id=parts[0].id if parts else NO_RECORD,
        num_tokens=sum(part.num_tokens for part in parts),
        num_labels=sum(part.num_labels for part in parts),
        spans=spans,
        parts=tuple(parts),
        # An unreadable record has no labels.
        labels_ahead=tuple(
            map(sum, zip_longest(*(part.labels_ahead for part in parts), fillvalue=0))
        ),
        counted=None
        if all(part.counted is None for part in parts)
        else sum(part.terms for part in parts),
    )


@frozen(eq=False, slots=False)
class StepData:
    """The samples of one step, in global order. Compared by identity, because it is a cache key.

    If `samples` leaves out unreadable samples, `before_damage` has all samples as indexed. It
    decides which rank reads and encodes a sample, so damage does not move samples.
    """

    step: int
    samples: Sequence[SampleData]
    before_damage: Sequence[SampleData] | None = None
    heldout: bool = False
    # How samples are shared out, for all layouts that do it alike: see `step_views`.
    shares: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False)

    @property
    def indexed(self) -> Sequence[SampleData]:
        """The samples as indexed, including unreadable samples."""
        return self.samples if self.before_damage is None else self.before_damage

    def rows(self, module: str, samples: Sequence[int]) -> list[int]:
        """Return the number of rows that a module makes of each of these samples, as indexed."""
        return [self.indexed[sample].rows(module) for sample in samples]

    def rows_of_media(self, module: str, sample: int) -> list[int]:
        """Return the rows of each medium of a sample, the most first, as indexed."""
        spans = self.indexed[sample].spans.get(module, ())
        places = self.places_of_media(module, sample)
        return [sum(spans[place].rows for place in here) for here in places]

    def places_of_media(self, module: str, sample: int) -> list[range]:
        """Return the places of the images of each medium in the sample, in the same order."""
        spans = self.indexed[sample].spans.get(module, ())
        return sorted(media(spans), key=lambda here: -sum(spans[place].rows for place in here))

    def readable_places(self, module: str, sample: int) -> Sequence[int]:
        """Return the places, as indexed, of the images of a sample that are not left out."""
        here, now = self.indexed[sample], self.samples[sample]
        if here is now:
            return range(len(here.spans.get(module, ())))
        found, first = list[int](), 0
        for record, left in zip(here.records, now.records, strict=True):
            last = first + len(record.spans.get(module, ()))
            if left.spans.get(module):
                found += range(first, last)
            first = last
        return found

    def rows_of_samples(self, module: str) -> "Int64s":
        """Return the number of rows that a module makes of each sample, [samples], as indexed."""
        import numpy as np

        return np.array(self.rows(module, range(len(self.indexed))), dtype=np.int64)

    @cached_property
    def record_ends(self) -> Sequence[int]:
        """The number of records before each sample, and of all."""
        return list(accumulate((len(sample.records) for sample in self.samples), initial=0))

    @property
    def num_records(self) -> int:
        """Records of the data set in all samples."""
        return self.record_ends[-1]

    def numbers(self, sample: int) -> range:
        """Return the numbers of the records of a sample: records are numbered across the step."""
        return range(int(self.record_ends[sample]), int(self.record_ends[sample + 1]))

    def sample_of(self, number: int) -> int:
        """Return the sample that holds the record of a number."""
        return bisect_right(self.record_ends, number) - 1

    def record(self, number: int) -> SampleData:
        """Return a record as indexed."""
        sample = self.sample_of(number)
        return self.indexed[sample].records[number - self.numbers(sample).start]

    def without(self, bad: Collection[int]) -> "StepData":
        """Return the step without the records of some numbers, which cannot be read."""
        numbers = map(self.numbers, range(len(self.indexed)))
        samples = tuple(
            without_records(sample, [n - own.start for n in own if n in bad])
            for sample, own in zip(self.indexed, numbers, strict=True)
        )
        return replace(self, samples=samples, before_damage=self.indexed)

    @property
    def num_tokens(self) -> int:
        """Tokens of all samples."""
        return sum(sample.num_tokens for sample in self.samples)

    @cached_property
    def _counted(self) -> float:
        return sum(sample.terms for sample in self.samples)

    @cached_property
    def num_labels(self) -> int:
        """Number of valid labels of the step."""
        return sum(sample.num_labels for sample in self.samples)

    @property
    def most_labels(self) -> int:
        """The most labels of a sample."""
        return max(sample.num_labels for sample in self.samples)

    def num_images(self, module: str) -> int:
        """Return the number of images of a module."""
        return sum(len(sample.spans.get(module, ())) for sample in self.samples)

    def most_rows(self, module: str) -> int:
        """Return the most rows of an image of a module."""
        spans = (span for sample in self.samples for span in sample.spans.get(module, ()))
        return max((span.rows for span in spans), default=0)

    def span_lengths(self, seq: int) -> Counter[int]:
        """Return how many spans of attention in sequences of `seq` tokens have each length."""
        return Counter(length for sample in self.samples for length in sample.span_lengths(seq))

    @property
    def outline(self) -> "StepData":
        """The step with what work depends on: the sizes of images, but not their places."""
        return self

    def texts(self, samples: Sequence[int]) -> tuple[int, int]:
        """Return how many records some samples have, and tokens beside media."""
        found = [self.samples[each] for each in samples]
        tokens = sum(each.num_tokens for each in found)
        spans = (span for each in found for spans in each.spans.values() for span in spans)
        return sum(len(each.records) for each in found), tokens - sum(
            s.num_positions for s in spans
        )

    def alike(self, module: str, reads: Sequence[str]) -> list[tuple[SampleData, int]]:
        """Return samples that stand for all images of a module, and how many each stands for.

        A sample has the images of the modules in `reads`, too.
        """
        del module, reads
        each = {id(sample): sample for sample in self.samples}
        times = Counter(map(id, self.samples))
        return [(each[sample], number) for sample, number in times.items()]

    @cached_property
    def labels_by_source(self) -> dict[str, float]:
        """Number of valid labels of each source with a sample in the step, if data have several.

        If a user's loss counts a column, the sums of that column.
        """
        found: dict[str, float] = {}
        for sample in self.samples:
            for record in sample.records:
                if record.source:
                    found[record.source] = found.get(record.source, 0) + record.terms
        return found

    def num_terms(self, module: str, depth: int = 0) -> float:
        """Return N, the divisor of a module's loss: the labels, or the rows that it makes.

        A user's loss may count a column: then N is the sum of the column. With a `depth` of
        multi-token prediction, return the labels at that depth.
        """
        if depth:
            return sum(sum(sample.labels_ahead[depth - 1 : depth]) for sample in self.samples)
        if module == LANGUAGE:
            return self._counted
        return sum(sample.rows(module) for sample in self.samples)
