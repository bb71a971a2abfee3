"""Reads the samples of a step, on demand or ahead of the step.

Decides: that padding replaces a record that cannot be read.
Relies on: `data.order.sample_order` for the ids.
Leaves: decoding to the data set, agreeing on unreadable samples to `prefetch`.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from operator import setitem
from typing import Any, TypeVar

import numpy as np

from mimo_launch.data.dataset import BadSample, Dataset, chosen
from mimo_launch.data.order.packing import joined_columns, joined_documents, joined_texts
from mimo_launch.data.order.record_order import Sample
from mimo_launch.data.order.sample_order import make_step_data
from mimo_launch.data.random_draws import Noise, Split, noises_of
from mimo_launch.kinds.kind import ModelKind
from mimo_launch.kinds.registry import kind_of
from mimo_launch.layers.parallel_context import torch_type
from mimo_launch.layout.step_data import (
    SampleData,
    StepData,
    input_shape,
    is_array_of,
)
from mimo_launch.layout.step_views import Imbalance, Reads, StepViews
from mimo_launch.models.kept_rows import KeptRows, RowCache
from mimo_launch.models.patches import Patches, reader
from mimo_launch.spec.spec import Spec
from mimo_launch.train.events import Reading

# The errors of damaged samples; decoders do not raise BadSample. Other errors are bugs.
BAD = (BadSample, OSError, EOFError, ValueError)
MAX_REASON = 200

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class UnreadStep:
    """The samples of one step by their position in it; each is read on demand."""

    dataset: Dataset
    split: Split
    data: StepData
    views: StepViews | None = None
    seed: int = 0

    def text(self, sample: int) -> tuple[np.ndarray, np.ndarray]:
        """Return tokens and labels, int64 [seq] each."""
        found = self._answers(self.dataset.text, sample)
        return joined_texts(found, len(found[0][1][0]))

    def columns(self, sample: int) -> dict[str, np.ndarray]:
        """Return the columns that a user's loss reads, [seq] or [seq, width] each, by name."""
        return joined_columns(self._answers(self.dataset.columns, sample))

    def documents(self, sample: int) -> np.ndarray:
        """Return the document of each position, int64 [seq]."""
        found = self._answers(self.dataset.documents, sample)
        return joined_documents(found, len(found[0][1]))

    def images(self, sample: int, encoder: str) -> list[np.ndarray]:
        """Return the images of a sample for one encoder."""
        found = self._answers(lambda split, id_: self.dataset.images(split, id_, encoder), sample)
        return [image for _, images in found for image in images]

    @property
    def from_cache(self) -> frozenset[str]:
        """Nothing is read from a cache."""
        return frozenset()

    def kept(self, sample: int, encoder: str) -> list[KeptRows]:
        """Return nothing."""
        return []

    def noises(self, sample: int, generator: str, numbers: int) -> list[Noise]:
        """Return the noise of each image that a generator makes for a sample."""
        records = self.data.samples[sample].records
        found = (noises_of(self.seed, self.data, each, generator, numbers) for each in records)
        return [noise for noises in found for noise in noises]

    def answer(self, sample: int) -> tuple[int, ...]:
        """Return the tokens of the true answer, without the end token."""
        return self.dataset.answer(self.split, self.data.samples[sample].id)

    def _answers(
        self, ask: Callable[[Split, int], Answer], sample: int
    ) -> list[tuple[SampleData, Answer]]:
        records = self.data.samples[sample].records
        return [(record, ask(self.split, record.id)) for record in records]


def step_inputs(dataset: Dataset, split: Split, ids: Sequence[Sample], step: int) -> UnreadStep:
    """Return the inputs of a step with the given samples."""
    return UnreadStep(dataset, split, make_step_data(dataset, split, ids, step))


@dataclass(frozen=True, slots=True)
class ReadStep:
    """The part of a step that one rank has read: the content of `UnreadStep`, in memory.

    Records are numbered across the step. Records `left_out` are empty in `data`: padding, no label,
    no image, no answer. `imbalance` is for encoders with several replicas; `peak_memory` is the
    largest of any rank of each module at the time of reading. `stop` is the signal that any rank
    had got before it read held-out samples, or 0.
    """

    data: StepData
    seq: int
    texts: dict[int, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    column_rows: dict[int, Mapping[str, np.ndarray]] = field(default_factory=dict)
    document_rows: dict[int, np.ndarray] = field(default_factory=dict)
    pixels: dict[tuple[int, str], list[Patches | None]] = field(default_factory=dict)
    noise: dict[tuple[int, str], list[Noise]] = field(default_factory=dict)
    rows: dict[tuple[int, str], list[KeptRows | None]] = field(default_factory=dict)
    from_cache: frozenset[str] = frozenset()
    seed: int = 0
    answers: dict[int, tuple[int, ...]] = field(default_factory=dict)
    left_out: frozenset[int] = frozenset()
    imbalance: dict[str, Imbalance] = field(default_factory=dict)
    reading: Reading | None = None
    peak_memory: dict[str, int] = field(default_factory=dict)
    stop: int = 0
    views: StepViews | None = None

    def text(self, sample: int) -> tuple[np.ndarray, np.ndarray]:
        """Return tokens and labels, int64 [seq] each."""
        return joined_texts(((r, self.texts[n]) for n, r in self._readable(sample)), self.seq)

    def columns(self, sample: int) -> dict[str, np.ndarray]:
        """Return the columns that a user's loss reads, [seq] or [seq, width] each, by name."""
        return joined_columns((r, self.column_rows[n]) for n, r in self._readable(sample))

    def documents(self, sample: int) -> np.ndarray:
        """Return the document of each position, int64 [seq]."""
        found = ((r, self.document_rows[n]) for n, r in self._readable(sample))
        return joined_documents(found, self.seq)

    def images(self, sample: int, encoder: str) -> list[Patches | None]:
        """Return the images of a sample for one encoder, cut into patches; None if not read."""
        return [image for n, _ in self._readable(sample) for image in self.pixels[n, encoder]]

    def kept_of(self, encoder: str) -> Iterator[KeptRows]:
        """Yield what is kept of all images that this rank has read."""
        for (_, name), images in self.rows.items():
            if name == encoder:
                yield from (each for each in images if each is not None)

    def kept(self, sample: int, encoder: str) -> list[KeptRows | None]:
        """Return what is kept of each image, None if not read; nothing without kept rows."""
        found = (self.rows.get((n, encoder), ()) for n, _ in self._readable(sample))
        return [image for images in found for image in images]

    def noises(self, sample: int, generator: str, numbers: int) -> list[Noise]:
        """Return the noise of each image that a generator makes, drawn here unless read ahead."""
        found: list[Noise] = []
        for number, record in self._readable(sample):
            read = self.noise.get((number, generator))
            if read is None:
                read = noises_of(self.seed, self.data, record, generator, numbers)
            found += read
        return found

    def answer(self, sample: int) -> tuple[int, ...]:
        """Return the tokens of the true answer, without the end token."""
        return next((self.answers[n] for n, _ in self._readable(sample)), ())

    def record(self, number: int) -> SampleData:
        """Return a record as in the index."""
        return self.data.record(number)

    def without(self, bad: Collection[int]) -> "ReadStep":
        """Return the step without some records."""
        return replace(self, data=self.data.without(bad), left_out=frozenset(bad), views=None)

    def _readable(self, sample: int) -> list[tuple[int, SampleData]]:
        """Return the records of a sample that can be read, with their numbers."""
        records = zip(self.data.numbers(sample), self.data.samples[sample].records, strict=True)
        return [(number, record) for number, record in records if number not in self.left_out]


def read_step(
    source: UnreadStep,
    reads: Reads,
    spec: Spec,
    beat: Callable[[], None],
    *,
    pinned: bool = False,
    threads: ThreadPoolExecutor | None = None,
    caches: Mapping[str, RowCache] = {},
) -> tuple[ReadStep, dict[int, str]]:
    """Read one rank's part of a step; return it with the bad records and their reasons.

    `beat` is called for every record. With `pinned`, patches are in pinned memory for copies to a
    GPU. With `threads`, records are read in parallel. `caches` are those of the encoders with rows
    that this rank keeps. Raises: errors of a data set except damage.
    """
    made = ReadStep(source.data, spec.batch.seq, seed=spec.train.seed)
    reasons: dict[int, str] = {}
    texts = {*reads.texts, *reads.documents, *reads.answers}
    source.dataset.fetch(
        source.split, _ids(source, texts), _ids(source, chain(*reads.images.values()))
    )
    records: Iterable[Record] = _records(source, reads, spec, made, caches, pinned=pinned)
    if threads is not None:  # Start all reads before waiting for the first one.
        records = [(number, threads.submit(read).result, keep) for number, read, keep in records]
    for number, read, keep in records:
        beat()
        if number not in reasons:
            try:
                keep(read())
            except BAD as error:
                # Make one line of limited length.
                kind, words = type(error).__name__, " ".join(str(error).split())
                named = words and not isinstance(error, BadSample)
                text = f"{kind}: {words}" if named else words or kind
                short = text[: MAX_REASON - 3] + "..."
                reasons[number] = text if len(text) <= MAX_REASON else short
    return made, reasons


def _ids(source: UnreadStep, positions: Iterable[int]) -> list[int]:
    """Return the ids of the records of samples of a step."""
    return [each.id for position in positions for each in source.data.samples[position].records]


Record = tuple[int, Callable[[], Any], Callable[[Any], None]]


def _records(
    source: UnreadStep,
    reads: Reads,
    spec: Spec,
    into: ReadStep,
    caches: Mapping[str, RowCache],
    *,
    pinned: bool,
) -> Iterator[Record]:
    """Yield for each read the record's number, a function that reads, and one that stores it."""
    dataset, split = source.dataset, source.split

    def records(positions: Iterable[int]) -> Iterator[tuple[int, SampleData]]:
        for position in positions:
            yield from zip(
                source.data.numbers(position), source.data.samples[position].records, strict=True
            )

    loss = spec.language.loss
    columns = () if loss is None or not loss.columns else reads.columns
    for asked, ask, answers in (
        (reads.texts, dataset.text, into.texts),
        (columns, dataset.columns, into.column_rows),
        (reads.documents, dataset.documents, into.document_rows),
        (reads.answers, dataset.answer, into.answers),
    ):
        for number, record in records(asked):
            yield number, partial(ask, split, record.id), partial(setitem, answers, number)
    for encoder, positions in reads.images.items():
        model = spec.modules[encoder].model
        how, kind = reader(model), kind_of(model)
        cut = partial(how.cut, dtype=torch_type(spec.train.numbers.computed), pinned=pinned)
        read = partial(_read_images, source, encoder, kind, cut, caches.get(encoder))
        apart = reads.split.get(encoder, {})
        for number, record, only in _places(source.data, positions, encoder, apart):
            yield number, partial(read, record, only), partial(_store, into, (number, encoder))
            if encoder in spec.generators:
                draw = partial(noises_of, into.seed, into.data, record, encoder, how.row_width)
                yield number, draw, partial(setitem, into.noise, (number, encoder))


def _read_images(
    source: UnreadStep,
    encoder: str,
    kind: ModelKind,
    cut: Callable[[np.ndarray], Patches],
    cache: RowCache | None,
    record: SampleData,
    only: Collection[int] | None,
) -> tuple[list[Patches | None], list[KeptRows | None]]:
    """Return the images of a record, and what `cache` keeps of each; None for others than `only`.

    Raises: BadSample if they differ from the index.
    """
    every = record.spans.get(encoder, ())
    images = source.dataset.images(source.split, record.id, encoder, only)
    spans = chosen(every, only)
    if len(images) != len(spans):
        raise BadSample(f"{len(images)} images for {encoder}, the index has {len(spans)}")
    for image, span in zip(images, spans, strict=True):
        if not is_array_of(kind, span, image.shape):
            shape = input_shape(kind, span)
            raise BadSample(f"an array {image.shape} for {encoder}, the index has {shape}")
    cuts = iter([cut(image) for image in images])
    placed = [next(cuts) if only is None or at in only else None for at in range(len(every))]
    if cache is None:
        return placed, []
    return placed, [
        None if each is None else cache.look_up(each, span)
        for each, span in zip(placed, every, strict=True)
    ]


def _places(
    data: StepData, positions: Iterable[int], encoder: str, split: Mapping[int, Collection[int]]
) -> Iterator[tuple[int, SampleData, Collection[int] | None]]:
    """Yield the records of samples and their numbers, with the places of the images to read.

    None stands for all of them.
    """
    for position in positions:
        first, mine = 0, split.get(position)
        records = data.samples[position].records
        for number, record in zip(data.numbers(position), records, strict=True):
            here = range(first, first := first + len(record.spans.get(encoder, ())))
            only = None if mine is None else {at - here.start for at in mine if at in here}
            yield number, record, only


def _store(
    into: ReadStep,
    key: tuple[int, str],
    found: tuple[list[Patches | None], list[KeptRows | None]],
) -> None:
    into.pixels[key], into.rows[key] = found
