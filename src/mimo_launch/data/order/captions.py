"""Which caption of a record an epoch learns, where records have lists of captions.

Decides: that a record takes its captions in turn, from one that the seed draws: each epoch learns
one of them, and as many epochs as it has captions learn each of them once. It follows from (seed,
epoch, record) alone, whatever the layout and the place where a run resumed.
Relies on: SplitMix64 (Steele et al., 2014, "Fast splittable pseudorandom number generators") for
the random word of any record, from one word of `random_draws`.
Leaves: the order of records to `sample_order` and `mixture`, the rows of captions to the index.

A record is a number from 0 to `number`. Its caption k is the sample `record + k * number`, so the
first captions are the samples 0 to `number`.
"""

import numpy as np
import numpy.typing as npt

from mimo_launch.data.order.permutation import Int64s
from mimo_launch.data.random_draws import Purpose, Words, generator, split_key

_STEP, _FIRST, _SECOND = map(
    np.uint64, (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
_SHIFTS = tuple(map(np.uint64, (30, 27, 31)))


class Captions:
    """The captions of the records of a run, by their number in each record."""

    def __init__(self, counts: npt.NDArray[np.integer], seed: int) -> None:
        """Take the number of captions of each record, at least 1, and `train.seed`."""
        self._counts = counts
        word = generator(split_key(seed, "train", Purpose.CAPTION)).random_raw()
        self._word = np.uint64(word)

    def drawn(self, records: Int64s, epochs: Int64s) -> Int64s:
        """Return the samples of records in epochs, which count from 0; arrays of one shape."""
        counts = self._counts[records].astype(np.uint64)
        first = _mixed(self._word + records.astype(np.uint64) * _STEP) % counts
        turn = (first + epochs.astype(np.uint64)) % counts
        return records + len(self._counts) * turn.astype(np.int64)


def first_epoch(counts: npt.NDArray[np.integer] | None, seed: int, records: Int64s) -> Int64s:
    """Return the samples that the first epoch has of records; `counts` is None without lists."""
    return records if counts is None else Captions(counts, seed).drawn(records, 0 * records)


def _mixed(words: Words) -> Words:
    """Return the random words of places in a stream of SplitMix64."""
    words = (words ^ (words >> _SHIFTS[0])) * _FIRST
    words = (words ^ (words >> _SHIFTS[1])) * _SECOND
    found: Words = words ^ (words >> _SHIFTS[2])
    return found
