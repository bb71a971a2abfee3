"""The encoder replicas that may encode a sample of a step.

Decides: islands of replicas, and the heuristic that balances the work of replicas.
Relies on: `samples` for the even cut.
Leaves: the samples of each replica to `shares`, rows to `row_owners`.

Minimizing the largest share is NP-hard (multiprocessor scheduling). Longest processing time first
(Graham, 1969, SIAM J. Appl. Math. 17: at most 4/3 - 1/(3m) of the optimum, and near it once a
worker has a dozen items) is followed by moves and swaps out of the largest share. They improve its
results for few items of few sizes, such as {3, 3, 2, 2, 2} over two workers.

Language and an encoder both cut the list of a group's samples evenly over their D and E replicas.
The cuts coincide at gcd(D, E) places, so there are gcd(D, E) islands. Each has E/gcd encoder
replicas, which feed D/gcd language replicas and no others. Inside an island any replica may encode
a sample. The process groups of a bridge stay the same, and one large image does not delay the step.
Since every sample is encoded once and every gradient is a sum, only the rank that computes a term
changes.

The cost of a sample is its number of rows, which is proportional to its patches. The work of a
layer is linear in the patches except for attention, which adds n / (2 hidden + mlp) for an image of
n patches: 15 % at 1,024 patches in SigLIP so400m. There it would matter if one island had both
large and small images.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from heapq import heapify, heapreplace
from math import gcd, lcm
from typing import TYPE_CHECKING

from mimo_launch.layout.layout import Layout, ModuleLayout, cached_in_layout
from mimo_launch.spec.base import Axis

if TYPE_CHECKING:
    from mimo_launch.layout.step_data import Int64s

# The search stops once the largest share is within this factor of the mean.
GOOD_ENOUGH = 1.01


def balanced(costs: Sequence[int], loads: Sequence[int]) -> list[list[int]]:
    """Return, per worker, the indices of the `costs` that it takes in addition to its load.

    No cost is negative. A pure function: ties go to lower indices and earlier workers.
    """
    shares: list[list[int]] = [[] for _ in loads]
    heap, sums = [(load, worker) for worker, load in enumerate(loads)], list(loads)
    heapify(heap)
    # Equal costs stay in order, also in reverse.
    for index in sorted(range(len(costs)), key=costs.__getitem__, reverse=True):
        load, worker = heap[0]
        shares[worker].append(index)
        sums[worker] = load + costs[index]
        heapreplace(heap, (sums[worker], worker))
    while _mend(costs, shares, sums):
        pass
    return shares


def _mend(costs: Sequence[int], shares: list[list[int]], loads: list[int]) -> bool:
    """Reduce the largest share by one move or swap; return False if none helps or is needed.

    The other share stays below the former largest.
    """
    top = max(range(len(loads)), key=loads.__getitem__)
    if loads[top] * len(loads) <= GOOD_ENOUGH * sum(loads):
        return False
    for other in sorted(range(len(loads)), key=loads.__getitem__):
        gap = loads[top] - loads[other]
        # The cost that moves: of a single item, or the difference of two.
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


def num_islands(layout: Layout, module: ModuleLayout) -> int:
    """Return the number of islands of an encoder and language; `balance: all` makes it one."""
    if module.balance == "all":
        return 1
    return gcd(module.grid.size(Axis.DP), layout.language.grid.size(Axis.DP))


def replicas_that_share(layout: Layout, module: ModuleLayout) -> int:
    """Return the number of encoder replicas among which samples may move: 1 if they never do."""
    if module.balance == "none":
        return 1
    return module.grid.size(Axis.DP) // num_islands(layout, module)


@cached_in_layout
def replica_links(layout: Layout, bridge: str) -> tuple[range, ...]:
    """Return, per replica of a bridge's source, the replicas of its target that may read its rows.

    The same for every transfer and every step: the data only choose within it.
    """
    sources, targets = _sample_spans(layout, bridge)
    return _overlapping(sources, targets)


@cached_in_layout
def replica_sources(layout: Layout, bridge: str) -> tuple[range, ...]:
    """Return, per replica of a bridge's target, the replicas of its source that may feed it."""
    sources, targets = _sample_spans(layout, bridge)
    return _overlapping(targets, sources)


def _sample_spans(layout: Layout, bridge: str) -> tuple[list[range], list[range]]:
    """Return the samples that each replica of source and target may have, as parts of a group.

    The list of a group is cut into units so fine that every cut falls between two of them. If
    source and target work on groups of different sizes, a replica gets different samples of a
    language replica in each, so the spans are widened to whole language replicas.
    """
    ends = layout.bridges[bridge]
    modules = layout[ends.source], layout[ends.target]
    language = layout.language.grid.size(Axis.DP)
    unit = lcm(language, *(module.grid.size(Axis.DP) for module in modules))
    step = unit // language
    spans = []
    for module in modules:
        num_replicas = module.grid.size(Axis.DP)
        inside = 1 if module.is_language else replicas_that_share(layout, module)
        size = unit // num_replicas * inside
        starts = (replica // inside * size for replica in range(num_replicas))
        spans.append([range(start, start + size) for start in starts])
    if ends.source_group != ends.target_group:
        spans = [
            [range(s.start // step * step, -(-s.stop // step) * step) for s in each]
            for each in spans
        ]
    return spans[0], spans[1]


def _overlapping(mine: Sequence[range], theirs: Sequence[range]) -> tuple[range, ...]:
    """Return, for each span, the spans of the other list that it overlaps; both are in order."""
    starts, stops = [span.start for span in theirs], [span.stop for span in theirs]
    return tuple(
        range(bisect_right(stops, span.start), bisect_left(starts, span.stop)) for span in mine
    )


def even_share(layout: Layout, module: ModuleLayout, replica: int, group: int) -> tuple[int, ...]:
    """Return the samples of one encoder replica for one group by the even cut."""
    return layout.samples.encoder(replica, module.grid.size(Axis.DP), group, module.group_size)


def even_shares(layout: Layout, module: ModuleLayout, group: int) -> "Int64s":
    """Return the samples of one group by the even cut, [replicas, samples of a replica]."""
    return layout.samples.of_group(group, module.group_size).reshape(module.grid.size(Axis.DP), -1)
