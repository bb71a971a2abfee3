"""How many samples of each source a block of a mixture has.

Decides: the size of a block; how shares are rounded; that no source is rounded away.
Relies on: nothing, so that a spec is checked without numpy.
Leaves: the places of samples in a block to `mixture`.
"""

from collections.abc import Sequence

BLOCK = 1000


class BadMixture(ValueError):
    """Sources cannot be mixed as a spec says; the message says why."""


def counts_of(shares: Sequence[float], names: Sequence[str]) -> tuple[int, ...]:
    """Return numbers of samples in proportion to shares, which add up to a block.

    Largest remainders are rounded up, the first ones of equal. Raises: BadMixture.
    """
    if rare := too_rare(shares):
        raise BadMixture(
            f"the weight of source `{names[rare[0]]}` is less than one in {BLOCK:,} samples: a "
            "block of so many has the same number of each source; raise it, or leave the source out"
        )
    return tuple(_rounded(shares))


def too_rare(shares: Sequence[float]) -> list[int]:
    """Return the places of shares that a block has no sample of, though they are above 0."""
    counts = _rounded(shares)
    return [n for n, share in enumerate(shares) if share and not counts[n]]


def _rounded(shares: Sequence[float]) -> list[int]:
    exact = [share * BLOCK / sum(shares) for share in shares]
    counts = [int(each) for each in exact]
    by_rest = sorted(range(len(exact)), key=lambda n: (counts[n] - exact[n], n))
    for number in by_rest[: BLOCK - sum(counts)]:
        counts[number] += 1
    return counts
