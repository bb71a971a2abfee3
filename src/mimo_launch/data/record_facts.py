"""Facts about many records as columns: what every rank has to know of a whole step.

Decides: which facts are columns. All else is a description of one record, made where it is needed.
Relies on: `layout.step_data` for the description of a record.
Leaves: making columns to the data sets, the records of a step to `step_of_records`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

import numpy as np
import numpy.typing as npt

from mimo_launch.diag.frozen import frozen
from mimo_launch.kinds.tiles import Frame, Shown, Tiling
from mimo_launch.layout.step_data import ImageSpan, SampleData

Int64s = npt.NDArray[np.int64]
Float64s = npt.NDArray[np.float64]
# The numbers of an image, as columns of an index name them; see `shape_of`.
TILING = tuple(f"tiling_{field}" for field in ("tall", "wide", "height", "width"))
SHAPE = ("height", "width", "reads", "loose", "joined", *TILING)
NO_SOURCE = -1
# Values so few are counted one by one, not sorted.
_MOST_COUNTED = 1 << 20


def tiling_of(shown: Shown) -> tuple[int, int, int, int]:
    """Return how an image is shown as numbers: of a frame only a height, 2 for the last one."""
    if isinstance(shown, Tiling):
        return (shown.tall, shown.wide, shown.height, shown.width)
    return (0, 0, 0 if shown is None else 1 + shown.is_last, 0)


def shown_from(tall: int, wide: int, height: int, width: int) -> Shown:
    """Return the inverse of `tiling_of`."""
    if tall:
        return Tiling(tall, wide, height, width)
    return Frame(height > 1) if height else None


def shape_of(span: ImageSpan) -> tuple[int, ...]:
    """Return the numbers of `SHAPE`: all of an image that work depends on, but not its place."""
    numbers = span.height, span.width, span.reads or 0, span.loose, int(span.joined)
    return (*numbers, *tiling_of(span.shown))


def span_from(
    height: int, width: int, reads: int, loose: int, joined: int, *tiling: int
) -> ImageSpan:
    """Return an image of a shape as `shape_of` has it, at no place."""
    shown = shown_from(*tiling)
    return ImageSpan(0, height, width, reads or None, loose=loose, shown=shown, joined=joined > 0)


@frozen(eq=False)
class ImageFacts:
    """The images of one module: the place of each one's record, in order, and its `shape_of`.

    Shapes: `record` [images], `shapes` [images, numbers of `SHAPE`]. The images of a record are in
    any order, which is the same for all modules that see them; those of a medium follow each other.
    """

    record: Int64s
    shapes: Int64s

    @property
    def rows(self) -> Int64s:
        """Rows of each image, [images]."""
        return self.shapes[:, 0] * self.shapes[:, 1]

    @property
    def joined(self) -> npt.NDArray[np.bool_]:
        """Whether each image is of the same medium as the one before it, [images]."""
        return self.shapes[:, SHAPE.index("joined")] > 0

    @property
    def num_positions(self) -> Int64s:
        """Tokens of the text that belong to each image, [images]; see `ImageSpan`."""
        reads = self.shapes[:, 2]
        return np.where(reads > 0, reads, self.rows)

    def take(self, places: Int64s, number: int) -> "ImageFacts":
        """Return the images of records at some places, of `number` records in all."""
        ends = np.searchsorted(self.record, np.arange(number), side="right")
        begins = np.concatenate([[0], ends])[places]
        record, at = spread_out(begins, ends[places])
        return ImageFacts(record, self.shapes[at])


@frozen(eq=False)
class RecordFacts:
    """Facts about records, each column [records]; `images` has those of a module by its name.

    `ahead` returns the labels of each depth of multi-token prediction, [depths, records]. `counted`
    returns what a user's loss counts in place of labels. Both may take longer than the rest.
    `source` is a number in `source_names`.
    """

    tokens: Int64s
    labels: Int64s
    images: Mapping[str, ImageFacts]
    ahead: Callable[[], Int64s]
    counted: Callable[[], Float64s] | None = None
    source: Int64s | None = None
    source_names: tuple[str, ...] = field(default=())

    @property
    def terms(self) -> Float64s | Int64s:
        """What the loss of language counts in each record."""
        return self.labels if self.counted is None else self.counted()

    def rows(self, module: str) -> Int64s:
        """Return the number of rows that a module makes of each record, [records]."""
        number = len(self.tokens)
        if (images := self.images.get(module)) is None:
            return np.zeros(number, dtype=np.int64)
        return np.bincount(images.record, weights=images.rows, minlength=number).astype(np.int64)

    def take(self, places: Int64s) -> "RecordFacts":
        """Return the facts about records at some places."""
        number, counted = len(self.tokens), self.counted
        return RecordFacts(
            self.tokens[places],
            self.labels[places],
            {name: images.take(places, number) for name, images in self.images.items()},
            lambda: self.ahead()[:, places],
            counted and (lambda: counted()[places]),
            None if self.source is None else self.source[places],
            self.source_names,
        )

    def without(self, bad: Sequence[int]) -> "RecordFacts":
        """Return the same if nothing of some records can be read."""
        kept, counted = np.ones(len(self.tokens), dtype=np.int64), self.counted
        kept[np.array(bad, dtype=np.int64)] = 0
        images = {}
        for name, each in self.images.items():
            left = kept[each.record] == 1
            images[name] = ImageFacts(each.record[left], each.shapes[left])
        return RecordFacts(
            self.tokens * kept,
            self.labels * kept,
            images,
            lambda: self.ahead() * kept,
            counted and (lambda: counted() * kept),
            None if self.source is None else np.where(kept == 1, self.source, NO_SOURCE),
            self.source_names,
        )

    def alike(self, module: str, reads: Sequence[str]) -> list[tuple[SampleData, int]]:
        """Return samples with one image of a module, all different, and how many images are so.

        Each has the rows that the image takes from the other modules of `reads`, too.
        """
        if (images := self.images.get(module)) is None or not len(images.record):
            return []
        others = [name for name in reads if name in self.images]
        # The place of an image in its record is the same in all modules that see it.
        place = np.arange(len(images.record)) - np.searchsorted(images.record, images.record)
        columns = [images.shapes]
        for name in others:
            other = self.images[name]
            at = np.searchsorted(other.record, images.record) + place
            columns.append(other.rows[at, None])
        found = []
        for *numbers, count in distinct_rows(np.concatenate(columns, axis=1)).tolist():
            spans = {module: (span_from(*numbers[: len(SHAPE)]),)}
            for name, rows in zip(others, numbers[len(SHAPE) :], strict=True):
                spans[name] = (ImageSpan(0, 1, rows),)
            found.append((SampleData(0, 0, 0, spans), count))
        return found


def facts_of(records: Sequence[SampleData]) -> RecordFacts:
    """Return the facts about records that are described."""
    images = {}
    for name in dict.fromkeys(name for record in records for name in record.spans):
        spans = [
            (place, *shape_of(span))
            for place, record in enumerate(records)
            for span in record.spans.get(name, ())
        ]
        table = np.array(spans, dtype=np.int64).reshape(-1, 1 + len(SHAPE))
        images[name] = ImageFacts(table[:, 0], table[:, 1:])
    names = tuple(dict.fromkeys(record.source for record in records if record.source))
    numbers = {name: number for number, name in enumerate(names)}
    ahead = np.array([record.labels_ahead for record in records], dtype=np.int64)
    ahead = ahead.reshape(len(records), -1 if records else 0).T
    terms = np.array([record.terms for record in records], dtype=np.float64)
    return RecordFacts(
        _column(records, lambda record: record.num_tokens),
        _column(records, lambda record: record.num_labels),
        images,
        lambda: ahead,
        (lambda: terms) if any(each.counted is not None for each in records) else None,
        _column(records, lambda each: numbers.get(each.source, NO_SOURCE)) if names else None,
        names,
    )


def _column(records: Sequence[SampleData], of: Callable[[SampleData], int]) -> Int64s:
    return np.array([of(record) for record in records], dtype=np.int64)


def spread_out(begins: Int64s, ends: Int64s) -> tuple[Int64s, Int64s]:
    """Return all places of ranges, one range after another, and before them the number of each."""
    begins, number = begins.astype(np.int64), (ends - begins).astype(np.int64)
    last = number.cumsum()
    total = int(last[-1]) if len(last) else 0
    which: Int64s = np.repeat(np.arange(len(number)), number)
    return which, (begins - last + number)[which] + np.arange(total)


def distinct_rows(table: Int64s) -> Int64s:
    """Return the different rows of a table of natural numbers, and how often each is there last."""
    sizes = [int(size) for size in table.max(axis=0) + 1]
    codes, space = np.zeros(len(table), dtype=np.int64), 1
    for column, size in zip(table.T, sizes, strict=True):
        space *= size
        if space >= 1 << 62:
            rows, counts = np.unique(table, axis=0, return_counts=True)
            return np.concatenate([rows, counts[:, None]], axis=1)
        if size > 1:
            codes = codes * size + column
    values, counts = distinct(codes, space)
    columns = []
    for size in reversed(sizes):
        columns.append(values % size)
        values = values // size
    return np.stack([*reversed(columns), counts], axis=1)


def distinct(codes: Int64s, space: int) -> tuple[Int64s, Int64s]:
    """Return the different numbers below `space`, in order, and how often each is there."""
    if space > _MOST_COUNTED:
        values, number = np.unique(codes, return_counts=True)
        return values, number.astype(np.int64)
    times = np.bincount(codes, minlength=space)
    there = np.flatnonzero(times)
    return there, times[there]
