"""The order of the first records of a run, packed or not, with their sizes and descriptions.

Decides: how many steps a plan looks at: those that the first records of a run fill. They stand for
the rest, because the order of records is random; most runs have no more.
Relies on: `sample_order` for the order and the packs of a run.
Leaves: which of these steps stand for the run to `expected_steps`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import overload

import numpy as np

from mimo_launch.data.order.packing import best_fit
from mimo_launch.data.order.sample_order import CHUNK, PackedOrder, record_order, records_of
from mimo_launch.data.run_records import MOST_PACKED, Int64s, Records
from mimo_launch.layout.step_data import SampleData, StepData, packed
from mimo_launch.spec.spec import Spec


@dataclass(frozen=True, eq=False)
class KnownOrder:
    """The samples of the first steps: sample n has the records `ids[ends[n] : ends[n + 1]]`.

    Steps, samples and sizes are kept: the layouts of a search share them.
    """

    records: Records
    batch: int
    ids: Int64s
    ends: Int64s
    _steps: dict[int, StepData] = field(default_factory=dict, init=False)
    _samples: dict[int, SampleData] = field(default_factory=dict, init=False)
    _rows: dict[str, Int64s] = field(default_factory=dict, init=False)

    @property
    def has_sizes(self) -> bool:
        """Whether the sizes of all samples are known in little time."""
        return len(self.ids) <= self.records.most

    @property
    def num_steps(self) -> int:
        """Number of known steps."""
        return (len(self.ends) - 1) // self.batch

    def step(self, number: int) -> StepData:
        """Return a step, counted from 0."""
        if number not in self._steps:
            samples = range(number * self.batch, (number + 1) * self.batch)
            self._steps[number] = KnownStep(number, DescribedSamples(self, samples), order=self)
        return self._steps[number]

    def sample(self, number: int) -> SampleData:
        """Return a sample as a run describes it."""
        if number not in self._samples:
            first, end = self.ends[number : number + 2].tolist()
            ids = self.ids[first:end].tolist()
            self._samples[number] = packed([self.records.describe(each) for each in ids])
        return self._samples[number]

    @cached_property
    def tokens(self) -> Int64s:
        """Tokens of each sample, [steps, samples]."""
        return self._by_step(self.records.tokens(self.ids))

    def rows(self, module: str) -> Int64s:
        """Return the rows that a module makes of each sample, [steps, samples]."""
        if module not in self._rows:
            self._rows[module] = self._by_step(self.records.rows(module, self.ids))
        return self._rows[module]

    def padding_with(self, *, packing: bool, seq: int) -> float:
        """Return the padding of some records in sequences of `seq` tokens, packed or not."""
        some = np.arange(min(self.records.number, self.records.most, CHUNK))
        lengths = self.records.tokens(some)
        sequences = len(best_fit(lengths.tolist(), seq)) if packing else len(some)
        return float(1 - lengths.sum() / (sequences * seq))

    def _by_step(self, of_records: Int64s) -> Int64s:
        sums = np.concatenate([[0], np.cumsum(of_records)])[self.ends]
        found: Int64s = np.diff(sums).reshape(-1, self.batch)
        return found


@dataclass(frozen=True, eq=False)
class DescribedSamples(Sequence[SampleData]):
    """Samples `numbers` of an order, each described on demand."""

    order: KnownOrder
    numbers: range

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, index: int) -> SampleData: ...
    @overload
    def __getitem__(self, index: slice) -> "DescribedSamples": ...
    def __getitem__(self, index: int | slice) -> "SampleData | DescribedSamples":
        number = self.numbers[index]
        if isinstance(number, range):
            return DescribedSamples(self.order, number)
        return self.order.sample(number)


@dataclass(frozen=True, eq=False, kw_only=True)
class KnownStep(StepData):
    """A step of an order: most of its samples need not be described."""

    order: KnownOrder

    def rows(self, module: str, samples: Sequence[int]) -> list[int]:
        """Return the number of rows that a module makes of each of these samples, as indexed."""
        if not self.order.has_sizes:
            return super().rows(module, samples)
        found: list[int] = self.order.rows(module)[self.step, samples].tolist()
        return found

    @cached_property
    def num_records(self) -> int:
        """Records in all samples."""
        first, ends = self.step * self.order.batch, self.order.ends
        return int(ends[first + self.order.batch] - ends[first])


def known_order(spec: Spec, records: Records) -> KnownOrder:
    """Return the order of the first records of a run."""
    return _packed_order(spec, records) if spec.data.packing else _plain_order(spec, records)


# A small data set is walked through so many times at most.
_MOST_EPOCHS = 64


def _plain_order(spec: Spec, records: Records) -> KnownOrder:
    """Return the order of the first steps, a record each sample."""
    batch = spec.batch.global_
    most = min(records.most, _MOST_EPOCHS * records.number)
    wanted = min(spec.train.steps, max(1, most // batch)) * batch
    order = record_order(spec, records.number, records.sources, captions=records.captions)
    return KnownOrder(records, batch, order.between(0, wanted), np.arange(wanted + 1))


def _packed_order(spec: Spec, records: Records) -> KnownOrder:
    """Return the order of the first steps, a pack each sample."""
    in_order = record_order(spec, records.number, records.sources, captions=records.captions)
    order = PackedOrder(in_order, records.tokens, spec.batch.seq)
    most = min(records.most, MOST_PACKED, _MOST_EPOCHS * records.number)
    ids, ends = list[int](), [0]
    place = 0
    for step in range(spec.train.steps):
        packs = [records_of(sample) for sample in order.take(place)]
        if step and len(ids) + sum(map(len, packs)) > most:
            break
        for pack in packs:
            ids += pack
            ends.append(len(ids))
        place = order.after(place)
    return KnownOrder(records, spec.batch.global_, np.array(ids, dtype=np.int64), np.array(ends))
