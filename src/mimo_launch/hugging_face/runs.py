"""Our rows in runs: in a tensor of a file, they alternate with rows of our other tensors.

Decides: which of our rows are consecutive, and where.
Relies on: nothing.
Leaves: reading to `checkpoint`, writing to `export`, the choice of tensors to the families.
"""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Runs:
    """The places of our rows in a tensor: `length` rows of every `step`, from our first row on.

    This is the case where each head in turn has its queries, keys and values together.
    """

    length: int
    step: int

    def whole(self, num_rows: int) -> int:
        """Return how many rows a tensor has that contains `num_rows` of our rows."""
        return num_rows // self.length * self.step

    def pieces(self, first_row: int, rows: range) -> Iterator[tuple[range, slice]]:
        """Yield consecutive ones of our rows, and their place; ours begin at `first_row`."""
        for run in range(rows.start // self.length, -(-rows.stop // self.length)):
            begin = run * self.length
            ours = range(max(rows.start, begin), min(rows.stop, begin + self.length))
            there = first_row + run * self.step + ours.start - begin
            yield ours, slice(there, there + len(ours))
