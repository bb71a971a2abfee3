"""A bridge as a permutation of rows: which rank sends which of its rows to which rank.

Decides: the transfers of one encoder group, forward and (read backwards) backward.
Relies on: `step_views` for the rows of a replica and their owners.
Leaves: buffers and the actual sends to `comm.bridge_transfers`.

Each row leaves exactly one rank and arrives at exactly one rank. Rows that several ranks need (a
language input replicated over tp) are gathered inside that tp group at the end.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from mimo_launch.layout.balance import replica_links, replica_sources
from mimo_launch.layout.layout import Layout, ModuleLayout
from mimo_launch.layout.row_owners import Piece
from mimo_launch.layout.step_views import StepViews


@dataclass(frozen=True, slots=True)
class Transfer:
    """Consecutive rows of one sample that move from `src` to `dst`.

    `src_start` counts the rows that `src` owns of its group's output; `dst_start` counts the rows
    that `dst` owns of `microbatch`. The backward of a transfer swaps the two sides.
    """

    src: int
    dst: int
    src_start: int
    microbatch: int
    dst_start: int
    num_rows: int


def route(
    views: StepViews,
    encoder: str,
    group: int,
    *,
    rank: int | None = None,
    senders: Sequence[int] | None = None,
) -> tuple[Transfer, ...]:
    """Return the transfers of one encoder group in the order in which both sides pack them.

    With `rank`, only the transfers of this rank; with `senders`, only those from these replicas of
    the encoder. Both give the same as filtering the whole.
    """
    layout = views.layout
    module, language = layout[encoder], layout.language.grid
    receivers: tuple[int, ...] | None = None
    if senders is None:
        senders = range(module.grid.size("dp"))
        if rank is not None:
            senders = (module.grid.index("dp", rank),) if rank in module.grid else ()
            receivers = (language.index("dp", rank),) if rank in language else ()
    transfers = list(_between(views, module, group, senders, None))
    if receivers is not None and rank is not None:
        # Replicas already covered as senders contribute their transfers once.
        sources = replica_sources(layout, encoder)
        linked = sorted({e for receiver in receivers for e in sources[receiver]} - set(senders))
        transfers += _between(views, module, group, linked, receivers)
    if rank is not None:
        transfers = [t for t in transfers if rank in (t.src, t.dst)]
    return tuple(sorted(transfers, key=lambda t: (t.src, t.dst, t.microbatch, t.dst_start)))


def _between(
    views: StepViews,
    module: ModuleLayout,
    group: int,
    senders: Iterable[int],
    receivers: Sequence[int] | None,
) -> Iterator[Transfer]:
    """Yield the transfers from some encoder replicas to some (None: all) language replicas."""
    wanted: dict[tuple[int, int], dict[int, list[Piece]]] = {}
    for sender in senders:
        for sample, pieces in views.encoder(module.name, sender, group).pieces.items():
            replica, microbatch, _ = views.layout.samples.locate(sample)
            if receivers is not None and replica not in receivers:
                continue
            key = (replica, microbatch)
            if key not in wanted:
                wanted[key] = views.language(replica, microbatch).pieces(module.name)
            yield from _intersect(pieces, wanted[key].get(sample, []), microbatch)


def _intersect(src: list[Piece], dst: list[Piece], microbatch: int) -> Iterator[Transfer]:
    """Yield the common runs of two ways to cut the rows of one sample."""
    for mine in src:
        for theirs in dst:
            first = max(mine.first_row, theirs.first_row)
            last = min(mine.first_row + mine.num_rows, theirs.first_row + theirs.num_rows)
            if first < last:
                yield Transfer(
                    src=mine.rank,
                    dst=theirs.rank,
                    src_start=mine.start + first - mine.first_row,
                    microbatch=microbatch,
                    dst_start=theirs.start + first - theirs.first_row,
                    num_rows=last - first,
                )


def components(layout: Layout, encoder: str) -> tuple[tuple[int, ...], ...]:
    """Return the connected components of a bridge's route graph as sorted tuples of ranks.

    Rows never leave a component, so a collective exchange runs over one of these, never the world.
    The nodes are ranks: one that holds an encoder replica and another replica of language joins
    the components of both.
    """
    module, language, links = layout[encoder], layout.language, replica_links(layout, encoder)
    owner: dict[int, int] = {}

    def find(rank: int) -> int:
        while owner.setdefault(rank, rank) != rank:
            owner[rank] = owner[owner[rank]]
            rank = owner[rank]
        return rank

    sources = module.grid.slices("dp", pp=module.pp_index(len(module.stages) - 1))
    targets = language.grid.slices("dp", pp=0)
    # Replicas that are linked with the same others are joined with them at once.
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
