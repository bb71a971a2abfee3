"""A random order of any number of items, of which each place is computed by itself.

Decides: a Feistel network over the next power of two, walked until it lands on an item (Black and
Rogaway, 2002, "Ciphers with arbitrary finite domains"): a bijection for any number of items, whose
memory is that of the places asked for.
Relies on: random words from `random_draws`.
Leaves: which items and places to `sample_order`.
"""

import numpy as np
import numpy.typing as npt

from mimo_launch.data.random_draws import Words
from mimo_launch.diag.frozen import frozen

Int64s = npt.NDArray[np.int64]

# An even number of rounds: after each two, both halves have their own width again.
ROUNDS = 8
_MIX, _HALF = np.uint64(0x9E3779B97F4A7C15), np.uint64(32)
# Places that are computed at once: their passes stay in a cache.
_AT_ONCE = 1 << 16


@frozen(eq=False, slots=False)
class Permutation:
    """A permutation of `number` items by `ROUNDS` random words."""

    number: int
    words: Words

    def __getitem__(self, here: slice) -> Int64s:
        """Return the items at consecutive places."""
        first, end, _ = here.indices(self.number)
        parts = (
            self._items(np.arange(begin, min(begin + _AT_ONCE, end), dtype=np.uint64))
            for begin in range(first, end, _AT_ONCE)
        )
        return np.concatenate([np.empty(0, dtype=np.int64), *parts])

    def _items(self, places: Words) -> Int64s:
        items = self._network(places)
        # Fewer than half of all numbers are no items, so few places walk far.
        while len(outside := np.flatnonzero(items >= np.uint64(self.number))):
            items[outside] = self._network(items[outside])
        return items.astype(np.int64)

    def _network(self, numbers: Words) -> Words:
        """Return a bijection of the numbers of so many bits."""
        bits = max(2, (self.number - 1).bit_length())
        low, high = np.uint64(bits // 2), np.uint64(bits - bits // 2)
        # The left part has the high bits; each round mixes one part into the other.
        left, right = numbers >> low, numbers & _ones(low)
        for number, word in enumerate(self.words):
            mask = _ones(high if number % 2 == 0 else low)
            left, right = right, left ^ (_mixed(right, word) & mask)
        found: Words = left << low | right
        return found


def _ones(bits: np.uint64) -> np.uint64:
    return np.uint64((1 << int(bits)) - 1)


def _mixed(numbers: Words, word: np.uint64) -> Words:
    """Return a hash of numbers, by a random word."""
    mixed = (numbers + word) * _MIX
    mixed ^= mixed >> _HALF
    mixed *= _MIX | np.uint64(1)
    found: Words = mixed >> _HALF
    return found
