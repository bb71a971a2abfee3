"""The samples of a step, read when they are asked for or ahead of the step.

Decides: what stands in the place of a sample that cannot be read: nothing but padding.
Relies on: `data.order` for the ids.
Leaves: decoding to the data set, agreeing on what cannot be read to `reading`.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from operator import setitem
from typing import Any

import numpy as np

from mimo_launch.layout.data_plan import DataPlan, SamplePlan
from mimo_launch.layout.owners import Imbalance
from mimo_launch.layout.reads import Reads
from mimo_launch.layout.tokens import IGNORE_LABEL, PAD
from mimo_launch.modules.build import compute_dtype
from mimo_launch.modules.inputs import reader
from mimo_launch.modules.patches import Patches
from mimo_launch.spec.model import EncoderModel, Spec
from mimo_launch.train.data.dataset import BadSample, Dataset
from mimo_launch.train.data.draws import Split
from mimo_launch.train.data.order import make_data_plan

# What damage looks like in decoders that know nothing of BadSample. Other errors are bugs.
BAD = (BadSample, OSError, EOFError, ValueError)
MAX_REASON = 200


@dataclass(frozen=True, slots=True)
class DatasetInputs:
    """The samples of one step by their position in it, each read when it is asked for."""

    dataset: Dataset
    split: Split
    plan: DataPlan

    def text(self, sample: int) -> tuple[np.ndarray, np.ndarray]:
        """Return tokens and labels, int64 [seq] each."""
        return self.dataset.text(self.split, self.plan.samples[sample].id)

    def documents(self, sample: int) -> np.ndarray:
        """Return the document of each position, int64 [seq]."""
        return self.dataset.documents(self.split, self.plan.samples[sample].id)

    def images(self, sample: int, encoder: str) -> list[np.ndarray]:
        """Return the images of a sample for one encoder."""
        return self.dataset.images(self.split, self.plan.samples[sample].id, encoder)

    def answer(self, sample: int) -> tuple[int, ...]:
        """Return the tokens of the true answer, without the end token."""
        return self.dataset.answer(self.split, self.plan.samples[sample].id)


def step_inputs(dataset: Dataset, split: Split, ids: tuple[int, ...], step: int) -> DatasetInputs:
    """Return the inputs of one step made of the given samples."""
    return DatasetInputs(dataset, split, make_data_plan(dataset, split, ids, step))


@dataclass(frozen=True, slots=True)
class ReadInputs:
    """What one rank has read of a step: the answers of `DatasetInputs`, from memory.

    The samples `left_out` are empty in `plan`: padding, no label, no image, no answer. `imbalance`
    is that of the encoders with several replicas.
    """

    plan: DataPlan
    seq: int
    texts: dict[int, tuple[np.ndarray, np.ndarray]]
    document_rows: dict[int, np.ndarray]
    pixels: dict[tuple[int, str], list[Patches]]
    answers: dict[int, tuple[int, ...]]
    left_out: frozenset[int] = frozenset()
    imbalance: dict[str, Imbalance] = field(default_factory=dict)

    def text(self, sample: int) -> tuple[np.ndarray, np.ndarray]:
        """Return tokens and labels, int64 [seq] each."""
        if sample in self.left_out:
            return np.full(self.seq, PAD), np.full(self.seq, IGNORE_LABEL)
        return self.texts[sample]

    def documents(self, sample: int) -> np.ndarray:
        """Return the document of each position, int64 [seq]."""
        if sample in self.left_out:
            return np.zeros(self.seq, dtype=np.int64)
        return self.document_rows[sample]

    def images(self, sample: int, encoder: str) -> list[Patches]:
        """Return the images of a sample for one encoder, cut into patches."""
        return [] if sample in self.left_out else self.pixels[sample, encoder]

    def answer(self, sample: int) -> tuple[int, ...]:
        """Return the tokens of the true answer, without the end token."""
        return () if sample in self.left_out else self.answers[sample]

    def without(self, bad: Collection[int]) -> "ReadInputs":
        """Return the step with some samples left out of it, at these positions."""
        samples = tuple(
            SamplePlan(sample.id, num_tokens=0, num_labels=0) if position in bad else sample
            for position, sample in enumerate(self.plan.samples)
        )
        return replace(
            self,
            plan=replace(self.plan, samples=samples, planned=self.plan.indexed),
            left_out=frozenset(bad),
        )


def read_step(
    source: DatasetInputs,
    reads: Reads,
    spec: Spec,
    beat: Callable[[], None],
    *,
    pinned: bool = False,
) -> tuple[ReadInputs, dict[int, str]]:
    """Read what one rank needs of a step; return it, and by position why a sample is bad.

    `beat` is called for every record. With `pinned`, patches lie in memory from which a GPU copies.
    Raises: what a data set raises that is no sign of damage.
    """
    made = ReadInputs(source.plan, spec.batch.seq, {}, {}, {}, {})
    reasons: dict[int, str] = {}
    for position, read, keep in _records(source, reads, spec, made, pinned=pinned):
        beat()
        if position not in reasons:
            try:
                keep(read())
            except BAD as error:
                reasons[position] = _reason(error)
    return made, reasons


Record = tuple[int, Callable[[], Any], Callable[[Any], None]]


def _records(
    source: DatasetInputs, reads: Reads, spec: Spec, into: ReadInputs, *, pinned: bool
) -> Iterator[Record]:
    """Yield what to read: the position of the sample, how to read it, how to keep it."""
    for position in reads.texts:
        yield position, partial(source.text, position), partial(setitem, into.texts, position)
    for position in reads.documents:
        keep = partial(setitem, into.document_rows, position)
        yield position, partial(source.documents, position), keep
    for position in reads.answers:
        yield position, partial(source.answer, position), partial(setitem, into.answers, position)
    for encoder, positions in reads.images.items():
        model = spec.encoders[encoder].model
        if not isinstance(model, EncoderModel):
            raise TypeError(f"encoder {encoder} has a model of unknown kind {model!r}")
        cut = partial(reader(model).cut, dtype=compute_dtype(spec.train.precision), pinned=pinned)
        for position in positions:
            read = partial(_read_images, source, position, encoder, model, cut)
            yield position, read, partial(setitem, into.pixels, (position, encoder))


def _read_images(
    source: DatasetInputs,
    position: int,
    encoder: str,
    model: EncoderModel,
    cut: Callable[[np.ndarray], Patches],
) -> list[Patches]:
    """Return the images of a sample. Raises: BadSample if they are not those of the index."""
    images = source.images(position, encoder)
    spans = source.plan.samples[position].spans.get(encoder, ())
    if len(images) != len(spans):
        raise BadSample(f"{len(images)} images for {encoder}, the index has {len(spans)}")
    for image, span in zip(images, spans, strict=True):
        shape = model.input_shape(span.height, span.width)
        if image.shape != shape:
            raise BadSample(f"an array {image.shape} for {encoder}, the index has {shape}")
    return [cut(image) for image in images]


def _reason(error: BaseException) -> str:
    """Return why a sample cannot be read, in one line of bounded length."""
    words = " ".join(str(error).split())
    named = words and not isinstance(error, BadSample)
    text = f"{type(error).__name__}: {words}" if named else words or type(error).__name__
    return text if len(text) <= MAX_REASON else text[: MAX_REASON - 3] + "..."
