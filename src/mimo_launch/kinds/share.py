"""How much of a width that is cut over tp a rank holds.

Decides: the even cut, and that experts are cut over a grid of their own.
Relies on: nothing.
Leaves: which rank stands where to `layout`.
"""

from dataclasses import dataclass


def even_cut(total: int, parts: int, index: int) -> range:
    """Return part `index` of `total` items cut as evenly as can be."""
    return range(total * index // parts, total * (index + 1) // parts)


@dataclass(frozen=True, slots=True)
class Share:
    """One of `tp` ranks, and the sizes of the grid of its experts."""

    tp: int = 1
    index: int = 0
    ep: int = 1
    expert_tp: int = 1

    def of(self, total: int) -> int:
        """Return how much of a width this rank holds."""
        return len(even_cut(total, self.tp, self.index))
