"""Rows of ours that lie in a tensor of a file in runs, between those of other tensors of ours.

Decides: which of our rows lie together, and where.
Relies on: nothing.
Leaves: reading to `checkpoint`, writing to `export`, which tensors are so to the families.
"""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Runs:
    """How our rows lie in a tensor: the first `length` rows of every `step`, from our first on.

    So it is where heads follow each other, and each has its queries, keys and values together.
    """

    length: int
    step: int

    def whole(self, num_rows: int) -> int:
        """Return how many rows the tensor has in which `num_rows` are ours."""
        return num_rows // self.length * self.step

    def pieces(self, first_row: int, rows: range) -> Iterator[tuple[range, slice]]:
        """Yield those of our rows that lie together, and where; `first_row` is where ours begin."""
        for run in range(rows.start // self.length, -(-rows.stop // self.length)):
            begin = run * self.length
            ours = range(max(rows.start, begin), min(rows.stop, begin + self.length))
            there = first_row + run * self.step + ours.start - begin
            yield ours, slice(there, there + len(ours))
