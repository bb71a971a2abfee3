"""Statistics from the index: lengths, rows, padding, and the balance of encoder replicas.

Decides: the samples that represent the data set: the first ones of the first epoch, in the order of
training.
Relies on: the index of the data set; no record is read.
Leaves: reading records to `survey` and `shown_samples`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from mimo_launch.data.dataset import Dataset
from mimo_launch.data.order.block_counts import BLOCK
from mimo_launch.data.order.mixture import MixedOrder, schedule_of
from mimo_launch.data.order.packing import best_fit
from mimo_launch.data.order.record_order import Sample, SampleOrder
from mimo_launch.data.order.sample_order import CHUNK, global_order, make_step_data, record_order
from mimo_launch.layout.layout import Layout
from mimo_launch.layout.step_data import StepData
from mimo_launch.layout.step_views import Imbalance, StepViews
from mimo_launch.spec.base import LANGUAGE
from mimo_launch.spec.spec import FilesData, Spec

# Number of steps to measure the balance: enough for a mean, few enough to take at most a second.
MOST_STEPS = 32


@dataclass(frozen=True, slots=True)
class SampleSpread:
    """Percentiles of some numbers; each percentile is one of the numbers."""

    min: int
    p5: int
    p50: int
    p95: int
    max: int


@dataclass(frozen=True, slots=True)
class Modality:
    """The inputs of one encoder or generator in the surveyed records.

    `rows` is for all of its images or clips together, `per_item` for one; `without` is the number
    of records without any. `in_text`: the rows are tokens of language, which reads them.
    """

    items: int
    rows: int
    without: int
    per_item: SampleSpread | None
    in_text: bool


@dataclass(frozen=True, slots=True)
class Filling:
    """The share of tokens that are not padding: with one record per sequence, and packed.

    `is_packed` says whether training packs records.
    """

    is_packed: bool
    alone: float
    packed: float
    records_per_pack: float


@dataclass(frozen=True, slots=True)
class Evenness:
    """The `imbalance` of an encoder over some steps: the mean, and the worst step."""

    steps: int
    mean: Imbalance
    worst: Imbalance

    @classmethod
    def of(cls, seen: Sequence[Imbalance]) -> "Evenness":
        """Return the evenness over steps, given the imbalance of each step."""
        before = [each.before for each in seen]
        after = [each.after for each in seen]
        mean = Imbalance(sum(before) / len(seen), sum(after) / len(seen))
        return cls(len(seen), mean, Imbalance(max(before), max(after)))


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """A source of several: its records and tokens; its shares of both in a run, and its epochs.

    Shares and epochs are None if no weights mix the sources.
    """

    records: int
    tokens: int
    share: float | None = None
    token_share: float | None = None
    epochs: float | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts from the index about the first `surveyed` of the `records` of an epoch.

    `captions` are those of all records, None if each has one text.
    """

    records: int
    surveyed: int
    tokens: int
    labels: int
    lengths: SampleSpread
    modalities: dict[str, Modality]
    filling: Filling
    evenness: dict[str, Evenness]
    sources: dict[str, SourceFacts] = field(default_factory=dict)
    captions: int | None = None


def source_facts(spec: Spec, dataset: Dataset) -> dict[str, SourceFacts]:
    """Return the facts about each source; empty if there is only one."""
    sources = dataset.sources()
    found = {each.name: SourceFacts(each.number, each.tokens) for each in sources}
    if not sources or not isinstance(spec.data, FilesData) or not spec.data.is_mixed:
        return found
    schedule = schedule_of(spec, spec.data, sources)
    order = MixedOrder(sources, schedule.phases, spec.batch.global_, spec.train.seed)
    blocks = max(1, schedule.end // BLOCK)
    # A run of less than a block has the shares of one.
    taken = np.array(order.taken(blocks))
    tokens = taken * [each.tokens / each.number for each in sources]
    shares, of_tokens = taken / taken.sum(), tokens / tokens.sum()
    epochs = shares * schedule.end / [each.number for each in sources]
    return {
        each.name: replace(
            found[each.name],
            share=float(shares[n]),
            token_share=float(of_tokens[n]),
            epochs=float(epochs[n]),
        )
        for n, each in enumerate(sources)
    }


def find_facts(spec: Spec, layout: Layout, dataset: Dataset, most: int) -> Facts:
    """Survey at most `most` records of an epoch."""
    num_records, captions = dataset.num_samples("train"), dataset.captions()
    order = record_order(spec, num_records, dataset.sources(), captions=captions)
    first = order.between(0, min(most, num_records))
    samples = [dataset.describe("train", index) for index in first.tolist()]
    modalities = {}
    for name in (*spec.encoders, *spec.generators):
        sizes = [span.rows for sample in samples for span in sample.spans.get(name, ())]
        without = sum(not sample.spans.get(name) for sample in samples)
        per_item = _spread(sizes) if sizes else None
        in_text = name in spec.sources_of(LANGUAGE)
        modalities[name] = Modality(len(sizes), sum(sizes), without, per_item, in_text)
    lengths = [sample.num_tokens for sample in samples]
    seq, tokens = spec.batch.seq, sum(lengths)
    steps = [data for *_, data in first_steps(spec, dataset, MOST_STEPS, min(most, num_records))]
    evenness = {
        module.name: Evenness.of([StepViews(layout, data).imbalance(module) for data in steps])
        for module in layout.moving
    }
    chunks = (lengths[first : first + CHUNK] for first in range(0, len(lengths), CHUNK))
    num_packs = sum(len(best_fit(np.array(chunk), seq)) for chunk in chunks)
    return Facts(
        records=num_records,
        surveyed=len(samples),
        tokens=tokens,
        labels=sum(sample.num_labels for sample in samples),
        lengths=_spread(lengths),
        modalities=modalities,
        filling=Filling(
            is_packed=spec.data.packing,
            alone=tokens / (len(lengths) * seq),
            packed=tokens / (num_packs * seq),
            records_per_pack=len(lengths) / num_packs,
        ),
        evenness=evenness,
        sources=source_facts(spec, dataset),
        captions=None if captions is None else int(captions.sum()),
    )


def first_steps(
    spec: Spec, dataset: Dataset, num_steps: int, end: int
) -> Iterator[tuple[int, tuple[Sample, ...], StepData]]:
    """Yield number, samples and data of the first steps up to `end`, and of at least one step.

    `end` is a place in the order of samples.
    """
    order: SampleOrder = global_order(spec, dataset)
    place = 0
    for step in range(num_steps):
        ids, after = order.take(place), order.after(place)
        if step and after > end:
            return
        yield step, ids, make_step_data(dataset, "train", ids, step)
        place = after


def _spread(numbers: Sequence[int]) -> SampleSpread:
    found = np.percentile(numbers, (0, 5, 50, 95, 100), method="nearest")
    return SampleSpread(*(int(number) for number in found))
