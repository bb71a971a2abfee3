"""Corrects estimates of layouts by what some of them took when they ran.

Decides: that each term of a step has one factor for all layouts, near 1 unless runs say otherwise.
Relies on: the terms of `layout_rows`.
Leaves: running layouts to `cli.tune_bench`.
"""

from collections.abc import Mapping, Sequence

# How strongly a factor stays near 1, against a run that is off by its own time.
_STAYS = 0.05
_ROUNDS = 200


def factors(
    estimated: Sequence[Mapping[str, float]], measured: Sequence[float]
) -> dict[str, float]:
    """Return the factor of each term that brings estimated steps near measured ones.

    The first list has the seconds of each term, the second those of the whole step. No factor is
    negative. The least squares of relative errors, with a pull to 1, so that few runs suffice.
    """
    names = list(estimated[0]) if estimated else []
    found = dict.fromkeys(names, 1.0)
    shares = [
        {name: terms[name] / seconds for name in names}
        for terms, seconds in zip(estimated, measured, strict=True)
    ]
    # First one factor for all, then each term by itself: coordinate descent of a convex sum.
    if shares:
        whole = [sum(each.values()) for each in shares]
        common = sum(whole) / sum(each * each for each in whole)
        found = dict.fromkeys(names, common)
    for _ in range(_ROUNDS):
        for name in names:
            pull = _STAYS * sum(each[name] for each in shares) + 1e-12
            above, below = pull * common, pull
            for each in shares:
                rest = 1 - sum(found[other] * each[other] for other in names if other != name)
                above, below = above + rest * each[name], below + each[name] ** 2
            found[name] = max(0.0, above / below)
    return found


def corrected(terms: Mapping[str, float], by: Mapping[str, float]) -> float:
    """Return the seconds of a step with corrected terms."""
    return sum(seconds * by[name] for name, seconds in terms.items())
