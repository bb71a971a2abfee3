"""Shares work among workers so that the one with the most has little more than the others.

Decides: the heuristic, and that equal inputs give equal shares on every rank.
Relies on: nothing.
Leaves: what is shared and what it costs to `sample_owners`.

Dividing costs so that the largest share is least is NP-hard (multiprocessor scheduling). Longest
processing time first (Graham, 1969, SIAM J. Appl. Math. 17: at most 4/3 - 1/(3m) of the best, and
near it once a worker has a dozen items) is followed by moves and swaps out of the largest share,
which mend what it does to few items of few sizes: {3, 3, 2, 2, 2} over two workers.
"""

from collections.abc import Sequence
from heapq import heapify, heapreplace

# Shares within this of the mean are not mended any more.
GOOD_ENOUGH = 1.01


def balanced(costs: Sequence[int], loads: Sequence[int]) -> list[list[int]]:
    """Return, per worker, the indices of the `costs` it takes on top of what it has in `loads`.

    No cost is negative. A pure function: ties go to lower indices and earlier workers.
    """
    shares: list[list[int]] = [[] for _ in loads]
    heap = [(load, worker) for worker, load in enumerate(loads)]
    heapify(heap)
    for index in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        load, worker = heap[0]
        shares[worker].append(index)
        heapreplace(heap, (load + costs[index], worker))
    totals = [load for _, load in sorted((worker, load) for load, worker in heap)]
    while _mend(costs, shares, totals):
        pass
    return shares


def _mend(costs: Sequence[int], shares: list[list[int]], loads: list[int]) -> bool:
    """Make the largest share smaller by one move or swap that leaves the other below it."""
    top = max(range(len(loads)), key=loads.__getitem__)
    if loads[top] * len(loads) <= GOOD_ENOUGH * sum(loads):
        return False
    for other in sorted(range(len(loads)), key=loads.__getitem__):
        gap = loads[top] - loads[other]
        # What goes over is a single item, or the difference of two.
        swaps = [(costs[i], i, None) for i in shares[top]] + [
            (costs[i] - costs[j], i, j) for i in shares[top] for j in shares[other]
        ]
        found = [swap for swap in swaps if 0 < swap[0] < gap]
        if not found:
            continue
        moved, mine, theirs = min(found, key=lambda swap: abs(gap - 2 * swap[0]))
        shares[top].remove(mine)
        shares[other].append(mine)
        if theirs is not None:
            shares[other].remove(theirs)
            shares[top].append(theirs)
        loads[top] -= moved
        loads[other] += moved
        return True
    return False
