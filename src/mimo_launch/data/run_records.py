"""The records of an epoch as a plan needs them: their sizes as columns, and each one described.

Decides: how many records of a run a plan looks at.
Relies on: a data set that describes generated records, or the columns of an index.
Leaves: the order and the packing of records to `expected_steps`.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from mimo_launch.data.dataset import Dataset, SourceSamples
from mimo_launch.data.fact_source import Source
from mimo_launch.data.record_facts import Int64s, RecordFacts, facts_of
from mimo_launch.data.step_of_records import KnownRecords
from mimo_launch.layout.step_data import SampleData

# Records of a run that a plan looks at: as they are, packed (some 1.5 microseconds each), and
# generated (some 30 microseconds each).
MOST, MOST_PACKED, MOST_DRAWN = 2**20, 2**17, 2**12


class Records(KnownRecords, Protocol):
    """The records of an epoch, `in_all`; a plan orders `number` of them, and looks at `most`.

    `basis` says in words where they come from; `sources` are those that the run mixes, if known;
    `captions` is the number of captions of each, None if each has one text (`Dataset.captions`).
    """

    source: Source
    basis: str
    in_all: int
    number: int
    most: int
    sources: tuple[SourceSamples, ...] = ()
    captions: npt.NDArray[np.integer] | None = None

    def __hash__(self) -> int:
        """Return a hash by identity: a process looks at data once."""
        return id(self)

    def tokens(self, ids: Int64s) -> Int64s:
        """Return the number of tokens of each of these records."""

    def rows(self, ids: Int64s) -> dict[str, Int64s]:
        """Return the rows that each module with images makes of each of these records."""
        facts = self.facts(ids)
        return {module: facts.rows(module) for module in facts.images}


class DrawnRecords(Records):
    """The records of generated data."""

    source, most = Source.DRAWN, MOST_DRAWN
    basis = "the run's own steps"

    def __init__(self, dataset: Dataset) -> None:
        # Records are independent of each other: a plan need not put more than these in order.
        self.in_all = dataset.num_samples("train")
        self.number = min(MOST, self.in_all)
        self._dataset = dataset

    def tokens(self, ids: Int64s) -> Int64s:
        """Return the number of tokens of each of these records."""
        return self._dataset.lengths("train", ids)

    def facts(self, ids: Int64s) -> RecordFacts:
        """Return facts about these records."""
        return self._dataset.facts("train", ids)

    def describe(self, index: int) -> SampleData:
        """Return a record as a run describes it."""
        return self._dataset.describe("train", index)


class GivenRecords(Records):
    """Records like the given ones; if an epoch has more, they repeat in turn."""

    most = MOST

    def __init__(
        self,
        source: Source,
        basis: str,
        given: Sequence[SampleData],
        in_all: int,
        sources: tuple[SourceSamples, ...],
    ) -> None:
        self.source, self.basis, self.in_all, self.sources = source, basis, in_all, sources
        # Records that repeat need not all be ordered.
        self.number = in_all if len(given) == in_all else min(MOST, in_all)
        self._given, self._facts = given, facts_of(given)

    def tokens(self, ids: Int64s) -> Int64s:
        """Return the number of tokens of each of these records."""
        return self._facts.tokens[ids % len(self._given)]

    def facts(self, ids: Int64s) -> RecordFacts:
        """Return facts about these records."""
        return self._facts.take(ids % len(self._given))

    def describe(self, index: int) -> SampleData:
        """Return a record as a run describes it."""
        return self._given[index % len(self._given)]


def records_like(
    source: Source,
    basis: str,
    given: Sequence[SampleData],
    number: int,
    sources: tuple[SourceSamples, ...] = (),
) -> Records:
    """Return an epoch of `number` records like the given ones, each as often as the others.

    `sources` says which of the given ones are of which source, for a mixture.
    """
    return GivenRecords(source, basis, given, number, sources)
