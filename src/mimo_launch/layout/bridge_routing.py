"""A bridge as a permutation of rows: which rank sends which of its rows to which rank.

Decides: the transfers of rows between two modules, forward and (read backwards) backward.
Relies on: `replica_views` for the rows of a replica and the ranks that own them.
Leaves: buffers and the actual sends to `comm.bridge_transfers`.

Each row leaves exactly one rank and arrives at exactly one rank. Rows that several ranks need (a
language input replicated over tp) are gathered inside that tp group at the end.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, product

from mimo_launch.diag.frozen import frozen
from mimo_launch.layout.balance import replica_links, replica_sources
from mimo_launch.layout.layout import Layout, cached_in_layout
from mimo_launch.layout.row_owners import Piece
from mimo_launch.layout.step_views import StepViews
from mimo_launch.spec.base import Axis


@frozen
class Transfer:
    """Consecutive rows of one sample that move from `src` to `dst`.

    `src_start` is an offset into the rows that `src` owns in forward `src_forward` of the bridge's
    source, `dst_start` into the rows that `dst` owns in forward `dst_forward` of its target. The
    backward swaps the two sides.
    """

    src: int
    dst: int
    src_forward: int
    src_start: int
    dst_forward: int
    dst_start: int
    num_rows: int


def route(
    views: StepViews,
    bridge: str,
    index: int,
    *,
    rank: int | None = None,
    senders: Sequence[int] | None = None,
) -> tuple[Transfer, ...]:
    """Return the transfers of group `index` in the order in which both sides pack them.

    With `rank`, return only the transfers of this rank; with `senders`, only the transfers from
    these replicas of the source. The result equals a filter over all transfers.
    """
    layout = views.layout
    ends = layout.bridges[bridge]
    source, target = layout[ends.source].grid, layout[ends.target].grid
    receivers: tuple[int, ...] | None = None
    if senders is None:
        senders = range(source.size(Axis.DP))
        if rank is not None:
            senders = (source.index(Axis.DP, rank),) if rank in source else ()
            receivers = (target.index(Axis.DP, rank),) if rank in target else ()
    transfers = list(_between(views, bridge, index, senders, None))
    if receivers is not None and rank is not None:
        # Skip replicas that were covered as senders, so that no transfer appears twice.
        sources = replica_sources(layout, bridge)
        linked = sorted({e for receiver in receivers for e in sources[receiver]} - set(senders))
        transfers += _between(views, bridge, index, linked, receivers)
    if rank is not None:
        transfers = [t for t in transfers if rank in (t.src, t.dst)]
    return tuple(sorted(transfers, key=lambda t: (t.src, t.dst, t.dst_forward, t.dst_start)))


def _between(
    views: StepViews,
    bridge: str,
    index: int,
    senders: Iterable[int],
    receivers: Sequence[int] | None,
) -> Iterator[Transfer]:
    """Yield the transfers from `senders` (source replicas) to `receivers` (None: all replicas)."""
    ends, links = views.layout.bridges[bridge], replica_links(views.layout, bridge)
    wanted: dict[int, dict[int, tuple[int, list[Piece]]]] = {}
    for sender in senders:
        readers = links[sender] if receivers is None else set(links[sender]) & set(receivers)
        for reader in readers:
            if reader not in wanted:
                wanted[reader] = {
                    sample: (forward, pieces)
                    for forward in ends.targets(index)
                    for sample, pieces in views.target_pieces(ends, reader, forward).items()
                }
        for forward in ends.sources(index):
            made = views.source_pieces(ends, sender, forward)
            for (sample, pieces), reader in product(made.items(), readers):
                if sample in wanted[reader]:
                    yield from _intersect(forward, pieces, *wanted[reader][sample])


def _intersect(
    src_forward: int, src: list[Piece], dst_forward: int, dst: list[Piece]
) -> Iterator[Transfer]:
    """Yield the intersections of two partitions of the rows of one sample."""
    for mine in src:
        for theirs in dst:
            first = max(mine.first_row, theirs.first_row)
            last = min(mine.first_row + mine.num_rows, theirs.first_row + theirs.num_rows)
            if first < last:
                yield Transfer(
                    src=mine.rank,
                    dst=theirs.rank,
                    src_forward=src_forward,
                    src_start=mine.start + first - mine.first_row,
                    dst_forward=dst_forward,
                    dst_start=theirs.start + first - theirs.first_row,
                    num_rows=last - first,
                )


@cached_in_layout
def components(layout: Layout, bridge: str) -> tuple[tuple[int, ...], ...]:
    """Return the connected components of a bridge's route graph as sorted tuples of ranks.

    Rows never leave a component, so a collective exchange runs over one component, never over the
    world. The nodes are ranks: a rank that holds one replica of the source and another of the
    target joins the components of both.
    """
    ends_of, links = layout.bridges[bridge], replica_links(layout, bridge)
    source, target = layout[ends_of.source], layout[ends_of.target]
    owner: dict[int, int] = {}

    def find(rank: int) -> int:
        while owner.setdefault(rank, rank) != rank:
            owner[rank] = owner[owner[rank]]
            rank = owner[rank]
        return rank

    sources = source.grid.slices(Axis.DP, pp=source.pp_index(len(source.stages) - 1))
    targets = target.grid.slices(Axis.DP, pp=0)
    # Join replicas that have the same links in one step.
    joined = {linked: [*chain(*targets[linked.start : linked.stop])] for linked in links}
    for linked, ranks in zip(links, sources, strict=True):
        joined[linked] += ranks
    for ends in joined.values():
        first = find(ends[0])
        for rank in ends:
            owner[find(rank)] = first
    members: dict[int, list[int]] = {}
    for rank in sorted(owner):
        members.setdefault(find(rank), []).append(rank)
    return tuple(sorted(tuple(ranks) for ranks in members.values()))
