"""The rows of the index of records that have lists of captions.

Decides: that samples 0 to `num_samples` are the first captions of all records, and caption k of
record n is the sample `n + k * num_samples`; of captions that are too long, no sample.
Relies on: the columns of records, which are mapped: private memory is only for a record that counts
several times, or if captions are left out.
Leaves: which caption an epoch learns to `order.captions`.
"""

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from mimo_launch.data.dataset import no_sample
from mimo_launch.data.order.permutation import Int64s
from mimo_launch.diag.frozen import frozen

WITH_CAPTIONS = "with captions"


@frozen
class CaptionRows:
    """The captions of records: record n has those at `firsts[n]` to `firsts[n] + counts[n]`.

    These are rows of the index, or places in `rows` if captions are left out.
    """

    rows: Int64s | None
    firsts: Int64s
    counts: npt.NDArray[np.uint32]

    @classmethod
    def of(
        cls, columns: Mapping[str, npt.NDArray[Any]], used: npt.NDArray[np.bool_] | None
    ) -> Self:
        """Return the captions of the `used` rows of an index, of all rows by default."""
        firsts, counts = columns["record_first"], columns["record_captions"]
        if used is None:
            return cls(None, firsts, counts)
        counts = np.add.reduceat(used, firsts, dtype=np.uint32)
        counts = counts[counts > 0]
        return cls(np.flatnonzero(used), counts.cumsum(dtype=np.int64) - counts, counts)

    def repeated(self, times: npt.NDArray[Any]) -> "CaptionRows":
        """Return each record as often as `times` says."""
        return CaptionRows(self.rows, self.firsts.repeat(times), self.counts.repeat(times))

    @property
    def first_rows(self) -> Int64s:
        """The row of the first caption of each record."""
        return self._rows_at(self.firsts)

    def row(self, sample: int) -> int:
        """Return the row of a sample. Raises: IndexError."""
        turn, record = divmod(sample, len(self.counts))
        if not 0 <= turn < self.counts[record]:
            raise no_sample(sample, len(self.counts), WITH_CAPTIONS)
        place = int(self.firsts[record]) + turn
        return place if self.rows is None else int(self.rows[place])

    def at(self, samples: Int64s) -> Int64s:
        """Return the rows of samples. Raises: IndexError."""
        turns, records = np.divmod(samples, len(self.counts))
        is_other = (turns < 0) | (turns >= self.counts[records])
        if is_other.any():
            raise no_sample(samples[is_other][0], len(self.counts), WITH_CAPTIONS)
        return self._rows_at(self.firsts[records] + turns)

    def between(self, first: int, end: int) -> Int64s:
        """Return the rows of all captions of consecutive records."""
        counts = self.counts[first:end].astype(np.int64)
        before: Int64s = counts.cumsum() - counts
        starts: Int64s = self.firsts[first:end] - before
        return self._rows_at(np.repeat(starts, counts) + np.arange(counts.sum()))

    def _rows_at(self, places: Int64s) -> Int64s:
        return places if self.rows is None else self.rows[places]
