"""The records of an epoch as a plan needs them: their sizes as columns, and each one described.

Decides: how many records of a run a plan looks at.
Relies on: a data set that describes generated records, or the columns of an index.
Leaves: the order and the packing of records to `expected_steps`.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from mimo_launch.data.dataset import Dataset, SourceSamples
from mimo_launch.data.fact_source import Source
from mimo_launch.layout.step_data import SampleData

Int64s = npt.NDArray[np.int64]

# Records of a run that a plan looks at: as they are, packed (some 1.5 microseconds each), and
# generated (some 30 microseconds each).
MOST, MOST_PACKED, MOST_DRAWN = 2**20, 2**17, 2**12


class Records(Protocol):
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
    captions: Int64s | None = None

    def __hash__(self) -> int:
        """Return a hash by identity: a process looks at data once."""
        return id(self)

    def tokens(self, ids: Int64s) -> Int64s:
        """Return the number of tokens of each of these records."""

    def rows(self, module: str, ids: Int64s) -> Int64s:
        """Return the number of rows that a module makes of each of these records."""

    def describe(self, index: int) -> SampleData:
        """Return a record as a run describes it."""


class DrawnRecords(Records):
    """The records of generated data."""

    source, most = Source.DRAWN, MOST_DRAWN
    basis = "the run's own steps"

    def __init__(self, dataset: Dataset) -> None:
        # Records are independent of each other: a plan need not put more than these in order.
        self.in_all = dataset.num_samples("train")
        self.number = min(MOST, self.in_all)
        self._dataset = dataset
        self._known: dict[int, SampleData] = {}

    def tokens(self, ids: Int64s) -> Int64s:
        """Return the number of tokens of each of these records."""
        return self._numbers(ids, lambda record: record.num_tokens)

    def rows(self, module: str, ids: Int64s) -> Int64s:
        """Return the number of rows that a module makes of each of these records."""
        return self._numbers(ids, lambda record: record.rows(module))

    def describe(self, index: int) -> SampleData:
        """Return a record as a run describes it."""
        if index not in self._known:
            self._known[index] = self._dataset.describe("train", index)
        return self._known[index]

    def _numbers(self, ids: Int64s, of: Callable[[SampleData], int]) -> Int64s:
        return np.array([of(self.describe(index)) for index in ids.tolist()], dtype=np.int64)


class ColumnRecords(Records):
    """Records whose sizes are columns; if an epoch has more records, they repeat in turn."""

    def __init__(
        self,
        source: Source,
        basis: str,
        in_all: int,
        tokens: Int64s,
        rows_of: Callable[[str], Int64s],
        describe: Callable[[int], SampleData],
        sources: tuple[SourceSamples, ...] = (),
    ) -> None:
        """Take the columns: `tokens`, and `rows_of` a module; `in_all` records are an epoch."""
        self.sources = sources
        self.source, self.basis, self.in_all, self.most = source, basis, in_all, MOST
        # Those of an index are in order as they are; others need not all be ordered.
        self.number = in_all if len(tokens) == in_all else min(MOST, in_all)
        self._tokens, self._rows_of, self._describe = tokens, rows_of, describe

    def tokens(self, ids: Int64s) -> Int64s:
        """Return the number of tokens of each of these records."""
        return self._tokens[ids % len(self._tokens)]

    def rows(self, module: str, ids: Int64s) -> Int64s:
        """Return the number of rows that a module makes of each of these records."""
        return self._rows_of(module)[ids % len(self._tokens)]

    def describe(self, index: int) -> SampleData:
        """Return a record as a run describes it."""
        return self._describe(index % len(self._tokens))


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

    def column(of: Callable[[SampleData], int]) -> Int64s:
        return np.array([of(record) for record in given], dtype=np.int64)

    return ColumnRecords(
        source,
        basis,
        number,
        column(lambda record: record.num_tokens),
        lambda module: column(lambda record: record.rows(module)),
        given.__getitem__,
        sources,
    )
