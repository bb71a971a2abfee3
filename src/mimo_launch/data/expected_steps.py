"""The steps that a plan expects: real steps of the run where its data are known, or a guess.

Decides: where the facts about samples come from (`Source`), which steps stand for the run, and how
many records are looked at.
Relies on: `sample_order` and `packing`, which deal out records as a run does; `heaviest_steps` for
the largest step; `nominal_samples` for the guess.
Leaves: what a step costs to `estimate`, dealing samples to replicas to `layout`.

The first records of a run stand for all of them: their order is random. The looked-at steps are the
run's own first steps, all of them in most runs.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import chain
from typing import Protocol, overload

import numpy as np
import numpy.typing as npt

from mimo_launch.data.build import build_dataset
from mimo_launch.data.dataset import Dataset
from mimo_launch.data.heaviest_steps import heaviest_steps
from mimo_launch.data.nominal_samples import nominal_step_data
from mimo_launch.data.sample_order import (
    GlobalOrder,
    PackedOrder,
    Sample,
    SampleOrder,
    records_of,
)
from mimo_launch.layout.layout import Layout, build_layout
from mimo_launch.layout.step_data import SampleData, StepData, packed
from mimo_launch.spec.spec import Spec, WebdatasetData

Int64s = npt.NDArray[np.int64]

# Steps that stand for the run.
MOST_SAMPLED = 8
# Generated records that are looked at: each takes some 30 microseconds.
_MOST_DRAWN = 4096


class Source(StrEnum):
    """Where the facts about samples come from.

    DRAWN: generated data, whose steps are known. INDEX: the index of the shards. HEADERS: some
    records of shards without an index. EXPECT: what the spec says to expect. GUESS: the spec says
    nothing, and there are no shards.
    """

    DRAWN = "drawn"
    INDEX = "index"
    HEADERS = "headers"
    EXPECT = "expect"
    GUESS = "guess"


class Records(Protocol):
    """The records of an epoch: their sizes as columns, and each described."""

    source: Source
    most: int

    @property
    def number(self) -> int:
        """Records of an epoch."""

    def length(self, index: int) -> int:
        """Return the number of tokens of a record."""

    def tokens(self, ids: Int64s) -> Int64s:
        """Return the number of tokens of each of these records."""

    def rows(self, module: str, ids: Int64s) -> Int64s:
        """Return the number of rows that a module makes of each of these records."""

    def describe(self, index: int) -> SampleData:
        """Return a record as a run describes it."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ExpectedSteps:
    """The steps of a run on a layout.

    The first `looked_at` of the `num_steps` steps are known; none for a guess. `sampled` stand for
    the run: evenly spaced steps of the known ones, or the nominal step. `heaviest` holds, for every
    module, the known step with the most rows or tokens of a replica at once (`heaviest_steps`).
    `tokens` and `positions` are for the whole run, without and with padding.
    """

    source: Source
    num_steps: int
    looked_at: int
    sampled: tuple[StepData, ...]
    heaviest: tuple[StepData, ...]
    tokens: int
    positions: int

    @property
    def padding(self) -> float:
        """The share of positions that hold no token."""
        return 1 - self.tokens / self.positions


def expected_steps(spec: Spec, layout: Layout | None = None) -> ExpectedSteps:
    """Return the steps of a checked spec, dealt out on a layout, by default its own."""
    if isinstance(spec.data, WebdatasetData):
        return _guess(spec)
    return _steps_of(spec, layout or build_layout(spec), DrawnRecords(build_dataset(spec)))


@dataclass(frozen=True, eq=False)
class DrawnRecords:
    """The records of generated data."""

    dataset: Dataset
    source = Source.DRAWN
    most = _MOST_DRAWN

    @property
    def number(self) -> int:
        """Records of an epoch."""
        return self.dataset.num_samples("train")

    def length(self, index: int) -> int:
        """Return the number of tokens of a record."""
        return self.describe(index).num_tokens

    def tokens(self, ids: Int64s) -> Int64s:
        """Return the number of tokens of each of these records."""
        return self._numbers(ids, lambda record: record.num_tokens)

    def rows(self, module: str, ids: Int64s) -> Int64s:
        """Return the number of rows that a module makes of each of these records."""
        return self._numbers(ids, lambda record: record.rows(module))

    def describe(self, index: int) -> SampleData:
        """Return a record as a run describes it."""
        if index not in self._described:
            self._described[index] = self.dataset.describe("train", index)
        return self._described[index]

    @cached_property
    def _described(self) -> dict[int, SampleData]:
        return {}

    def _numbers(self, ids: Int64s, of: Callable[[SampleData], int]) -> Int64s:
        return np.array([of(self.describe(index)) for index in ids.tolist()], dtype=np.int64)


@dataclass(frozen=True, eq=False)
class DescribedSamples(Sequence[SampleData]):
    """The samples of a step, each described on demand."""

    records: Records
    ids: tuple[Sample, ...]

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, index: int) -> SampleData: ...
    @overload
    def __getitem__(self, index: slice) -> "DescribedSamples": ...
    def __getitem__(self, index: int | slice) -> "SampleData | DescribedSamples":
        if isinstance(index, slice):
            return DescribedSamples(self.records, self.ids[index])
        sample = self.ids[index]
        if sample not in self._made:
            self._made[sample] = packed([self.records.describe(i) for i in records_of(sample)])
        return self._made[sample]

    @cached_property
    def _made(self) -> dict[Sample, SampleData]:
        return {}


def _steps_of(spec: Spec, layout: Layout, records: Records) -> ExpectedSteps:
    """Return the steps of a run over these records."""
    steps = list(_looked_at(spec, records))

    def data(number: int) -> StepData:
        return StepData(number, DescribedSamples(records, steps[number]))

    sampled = {round(each) for each in np.linspace(0, len(steps) - 1, MOST_SAMPLED)}
    of_run = tuple(data(number) for number in sorted(sampled))
    # A step of very many generated samples is looked at in part.
    samples = [*chain.from_iterable(steps)][: records.most]
    ids = np.array([*chain.from_iterable(map(records_of, samples))], dtype=np.int64)
    ends = np.cumsum([len(records_of(sample)) for sample in samples])
    heaviest = of_run
    shape = len(steps), spec.batch.global_
    if len(samples) == shape[0] * shape[1]:

        def by_sample(numbers: Int64s) -> Int64s:
            sums = np.concatenate([[0], np.cumsum(numbers)])[ends]
            of_samples: Int64s = np.diff(sums, prepend=0).reshape(shape)
            return of_samples

        others = [module.name for module in layout.modules if not module.is_language]
        rows = {name: by_sample(records.rows(name, ids)) for name in others}
        found = heaviest_steps(layout, by_sample(records.tokens(ids)), rows, data)
        heaviest = tuple(data(number) for number in found)
    sequences = spec.train.steps * spec.batch.global_
    return ExpectedSteps(
        source=records.source,
        num_steps=spec.train.steps,
        looked_at=len(steps),
        sampled=of_run,
        heaviest=heaviest,
        tokens=round(int(records.tokens(ids).sum()) / len(samples) * sequences),
        positions=sequences * spec.batch.seq,
    )


def _looked_at(spec: Spec, records: Records) -> Iterator[tuple[Sample, ...]]:
    """Yield the samples of the first steps: all steps, or as many as `most` records fill."""
    in_order = GlobalOrder(records.number, spec.batch.global_, spec.train.seed)
    order: SampleOrder = in_order
    if spec.data.packing:
        order = PackedOrder(in_order, records.length, spec.batch.seq)
    place = seen = 0
    for number in range(spec.train.steps):
        samples = order.take(place)
        seen += sum(len(records_of(sample)) for sample in samples)
        if number and seen > records.most:
            return
        yield samples
        place = order.after(place)


def _guess(spec: Spec) -> ExpectedSteps:
    step = nominal_step_data(spec)
    sequences = spec.train.steps * spec.batch.global_
    return ExpectedSteps(
        source=Source.GUESS,
        num_steps=spec.train.steps,
        looked_at=0,
        sampled=(step,),
        heaviest=(step,),
        tokens=sequences * step.samples[0].num_tokens,
        positions=sequences * spec.batch.seq,
    )
