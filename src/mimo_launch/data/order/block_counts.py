"""How many samples of each source a block of a mixture has.

Decides: the size of a block; how shares are rounded; that no source is rounded away.
Relies on: nothing, so that a spec is checked without numpy.
Leaves: the places of samples in a block to `mixture`.
"""

from collections.abc import Sequence

BLOCK = 1000
# Samples in a block that a source keeps when numbers of three digits raise others.
_ROOM = 1.01


class BadMixture(ValueError):
    """A block would have no sample of `source`, which has a weight; the message says so."""

    def __init__(self, source: str) -> None:
        super().__init__(
            f"the weight of source `{source}` gives it less than one of {BLOCK:,} samples: each "
            "block of so many has the same number of each source; raise the weight, or leave the "
            "source out"
        )
        self.source = source


def counts_of(shares: Sequence[float], names: Sequence[str]) -> tuple[int, ...]:
    """Return numbers of samples in proportion to shares, which add up to a block.

    Largest remainders are rounded up, the first ones of equal. Raises: BadMixture.
    """
    exact = _exact(shares)
    counts = [int(each) for each in exact]
    by_rest = sorted(range(len(exact)), key=lambda n: (counts[n] - exact[n], n))
    for number in by_rest[: BLOCK - sum(counts)]:
        counts[number] += 1
    for share, count, name in zip(shares, counts, names, strict=True):
        if share and not count:
            raise BadMixture(name)
    return tuple(counts)


def least_shares(shares: Sequence[float]) -> dict[int, float]:
    """Return shares that give each source a sample, by the places of those to raise.

    They are raised to one sample each, and so are those that would then have less. At most `BLOCK`
    shares are above 0.
    """
    rare, least = set[int](), 0.0
    while more := {
        n
        for n, each in enumerate(_exact([least if n in rare else x for n, x in enumerate(shares)]))
        if shares[n] and n not in rare and each < _ROOM
    }:
        rare |= more
        others = sum(each for n, each in enumerate(shares) if n not in rare)
        if not others or len(rare) >= BLOCK:
            return dict.fromkeys(rare, max(shares))
        least = others / (BLOCK - len(rare))
    return dict.fromkeys(rare, least)


def _exact(shares: Sequence[float]) -> list[float]:
    # In this order, with which runs have begun: another may round a tie the other way.
    return [share * BLOCK / sum(shares) for share in shares]
