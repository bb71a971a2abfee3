"""The rows of the index of records that have lists of captions.

Decides: that samples 0 to `num_samples` are the first captions of all records, and caption k of
record n is the sample `n + k * num_samples`; of captions that are too long, no sample.
Relies on: the column `caption`: the rows of a record are consecutive, and its first has 0.
Leaves: which caption an epoch learns to `order.captions`.
"""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from mimo_launch.data.order.permutation import Int64s


@dataclass(frozen=True, slots=True)
class CaptionRows:
    """The captions of records: record n has `rows[firsts[n] : firsts[n] + counts[n]]`."""

    rows: Int64s
    firsts: Int64s
    counts: Int64s

    @classmethod
    def of(cls, captions: npt.NDArray[Any], used: Int64s) -> Self:
        """Return those among the `used` rows of the index, by its column of captions."""
        record = (captions == 0).cumsum()[used]
        firsts = np.flatnonzero(np.diff(record, prepend=0))
        return cls(used, firsts, np.diff(firsts, append=len(used)))

    def repeated(self, times: npt.NDArray[Any]) -> "CaptionRows":
        """Return each record as often as `times` says."""
        return CaptionRows(self.rows, *(each.repeat(times) for each in (self.firsts, self.counts)))

    def row(self, sample: int) -> int:
        """Return the row of a sample. Raises: IndexError."""
        turn, record = divmod(sample, len(self.counts))
        if not 0 <= turn < self.counts[record]:
            raise IndexError(f"sample {sample} of {len(self.counts)} with captions")
        return int(self.rows[self.firsts[record] + turn])

    def at(self, samples: Int64s) -> Int64s:
        """Return the rows of samples. Raises: IndexError."""
        turns, records = np.divmod(samples, len(self.counts))
        is_other = (turns < 0) | (turns >= self.counts[records])
        if is_other.any():
            raise IndexError(f"sample {samples[is_other][0]} of {len(self.counts)} with captions")
        found: Int64s = self.rows[self.firsts[records] + turns]
        return found

    def between(self, first: int, end: int) -> Int64s:
        """Return the rows of all captions of consecutive records."""
        counts = self.counts[first:end]
        starts = self.firsts[first:end] - (counts.cumsum() - counts)
        found: Int64s = self.rows[np.repeat(starts, counts) + np.arange(counts.sum())]
        return found
