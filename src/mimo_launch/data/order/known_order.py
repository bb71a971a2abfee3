"""The order of the first records of a run, packed or not, with their sizes and descriptions.

Decides: how many steps a plan looks at: those that the first records of a run fill. They stand for
the rest, because the order of records is random; most runs have no more.
Relies on: `sample_order` for the order and the packs of a run.
Leaves: which of these steps stand for the run to `expected_steps`.
"""

from dataclasses import field
from functools import cached_property

import numpy as np

from mimo_launch.data.order.packing import Packs, best_fit, joined_packs
from mimo_launch.data.order.sample_order import CHUNK, PackedOrder, record_order
from mimo_launch.data.record_facts import Int64s
from mimo_launch.data.run_records import MOST_PACKED, Records
from mimo_launch.data.step_of_records import step_of
from mimo_launch.diag.frozen import frozen
from mimo_launch.layout.step_data import StepData
from mimo_launch.spec.spec import Spec


@frozen(eq=False, slots=False)
class KnownOrder:
    """The samples of the first steps: sample n has the records `ids[ends[n] : ends[n + 1]]`.

    Steps and sizes are kept: the layouts of a search share them.
    """

    records: Records
    batch: int
    ids: Int64s
    ends: Int64s
    _steps: dict[int, StepData] = field(default_factory=dict, init=False)

    @property
    def num_steps(self) -> int:
        """Number of known steps."""
        return (len(self.ends) - 1) // self.batch

    def step(self, number: int) -> StepData:
        """Return a step, counted from 0."""
        if number not in self._steps:
            ends = self.ends[number * self.batch : (number + 1) * self.batch + 1]
            ids = self.ids[ends[0] : ends[-1]]
            self._steps[number] = step_of(self.records, number, ids, ends - ends[0])
        return self._steps[number]

    def part(self, samples: Int64s) -> StepData:
        """Return some samples, by their numbers, as a step that has no others."""
        part = Packs(self.ids, self.ends).at(samples)
        return step_of(self.records, 0, part.items, part.ends)

    @cached_property
    def tokens(self) -> Int64s:
        """Tokens of each sample, [steps, samples]."""
        return self._by_step(self.records.tokens(self.ids))

    @property
    def num_tokens(self) -> float:
        """Tokens of all known steps; by the mean of the records that a plan looks at, if fewer."""
        if (most := self.records.most) < len(self.ids):
            return float(self.records.tokens(self.ids[:most]).mean()) * len(self.ids)
        return int(self.tokens.sum())

    def rows(self, module: str) -> Int64s:
        """Return the rows that a module makes of each sample, [steps, samples]."""
        found = self._rows.get(module)
        return self._by_step(np.zeros_like(self.ids) if found is None else found)

    @cached_property
    def _rows(self) -> dict[str, Int64s]:
        """Rows of each record, by module."""
        ids, number = self.ids, self.records.number
        # Records that follow each other take less time, so all are counted if most of them come.
        if in_turn := self.records.captions is None and 3 * number <= 4 * len(ids):
            ids = np.arange(number)
        found: dict[str, Int64s] = {}
        for first in range(0, len(ids), _AT_ONCE):
            here = slice(first, first + _AT_ONCE)
            for module, rows in self.records.rows(ids[here]).items():
                if module not in found:
                    found[module] = np.zeros_like(ids)
                found[module][here] = rows
        if not in_turn:
            return found
        return {module: np.take(rows, self.ids) for module, rows in found.items()}

    def padding_with(self, *, packing: bool, seq: int) -> float:
        """Return the padding of some records in sequences of `seq` tokens, packed or not."""
        some = np.arange(min(self.records.number, self.records.most, CHUNK))
        lengths = self.records.tokens(some)
        sequences = len(best_fit(lengths, seq)) if packing else len(some)
        return float(1 - lengths.sum() / (sequences * seq))

    def _by_step(self, of_records: Int64s) -> Int64s:
        found = of_records
        if len(self.ends) <= len(of_records):
            found = np.add.reduceat(of_records, self.ends[:-1])  # No sample is without a record.
        return found.reshape(-1, self.batch)


def known_order(spec: Spec, records: Records) -> KnownOrder:
    """Return the order of the first records of a run."""
    return _packed_order(spec, records) if spec.data.packing else _plain_order(spec, records)


# Records of which facts are columns at once.
_AT_ONCE = 1 << 16
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
    steps, number, place = list[Packs](), 0, 0
    for _ in range(spec.train.steps):
        packs = order.packs(place)
        number += len(packs.items)
        if steps and number > most:
            break
        steps.append(packs)
        place = order.after(place)
    known = joined_packs(steps)
    return KnownOrder(records, spec.batch.global_, known.items, known.ends)
