"""Epochs of a set of items, each in another random order.

Decides: how epochs follow each other; that the order of a large set is computed, not sorted.
Relies on: `permutation` for large sets.
Leaves: what the items are to `sample_order` and `mixture`.
"""

from functools import lru_cache

import numpy as np

from mimo_launch.data.order.permutation import ROUNDS, Int64s, Permutation
from mimo_launch.data.random_draws import generator, order_of

# Sets with more items are never sorted: that takes a second and 16 bytes an item.
LARGE = 1 << 20


class Epochs:
    """Endless epochs of items 0 to `number`, by a key and a stream."""

    def __init__(
        self, number: int, key: tuple[int, int], stream: int = 0, *, computed: bool
    ) -> None:
        self.number, self.key = number, key
        self._stream, self._computed = stream, computed
        # A step may reach into a second epoch; no more are kept because permutations are long.
        self._epoch = lru_cache(maxsize=2)(self._make_epoch)

    def between(self, first: int, end: int) -> Int64s:
        """Return the items from one place to another."""
        found = list[Int64s]()
        while first < end:
            epoch, offset = divmod(first, self.number)
            found.append(self._epoch(epoch)[offset : offset + end - first])
            first += len(found[-1])
        if len(found) == 1:
            return found[0]
        return np.concatenate([np.empty(0, dtype=np.int64), *found])

    def _make_epoch(self, epoch: int) -> Int64s | Permutation:
        random = generator(self.key, epoch, self._stream)
        if self._computed:
            return Permutation(self.number, np.asarray(random.random_raw(ROUNDS)))
        return order_of(random.random_raw(self.number))
