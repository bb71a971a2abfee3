"""Where a plan takes the facts about samples from.

Decides: the sources, in the order in which they count.
Relies on: nothing, so that a spec is checked without numpy.
Leaves: the facts to `run_records`.
"""

from enum import StrEnum


class Source(StrEnum):
    """Where the facts about records come from.

    DRAWN: generated data, whose records are known. INDEX: the index of the shards. HEADERS: some
    records of shards without an index. EXPECT: what the spec says to expect. GUESS: the spec says
    nothing, and there are no shards.
    """

    DRAWN = "drawn"
    INDEX = "index"
    HEADERS = "headers"
    EXPECT = "expect"
    GUESS = "guess"
