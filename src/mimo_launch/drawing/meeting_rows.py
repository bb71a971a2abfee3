"""The partners of a plan's ranks in a step: groups in collectives, and the two ends of bridges.

Decides: that groups of one rank are not shown, and equal kinds of groups only once; the words for a
bridge (fan-in, fan-out, ...); which rows count as local or as crossing nodes.
Relies on: the grids of `layout`, which also make the process groups; `layout.bridge_routing`, which
the runtime executes, for the given step.
Leaves: drawing, and the note that the step is nominal, to `cli` and `rank_cells`.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from math import gcd

from mimo_launch.drawing.rows import BridgeRow, GroupRow, Link, PeerRow, Ranks
from mimo_launch.layout.balance import replicas_that_share
from mimo_launch.layout.bridge_routing import components, route
from mimo_launch.layout.layout import Layout
from mimo_launch.layout.rank_groups import EXPERT_GROUPS, MODULE_GROUPS
from mimo_launch.layout.samples import Bridge, SampleMap
from mimo_launch.layout.space import divisors
from mimo_launch.layout.step_data import StepData
from mimo_launch.layout.step_views import StepViews
from mimo_launch.plan.plan import Plan
from mimo_launch.schedule.data_flow import exchanges, needs_backward
from mimo_launch.spec.base import Axis


def group_rows(layout: Layout, per_node: int | None, rank: int | None = None) -> Iterator[GroupRow]:
    """Yield the groups of more than one rank; with `rank`, only those that contain it."""
    for module in layout.modules:
        if rank is not None and rank not in module.grid:
            continue
        several = (
            tuple(axis for axis in axes if module.grid.size(axis) > 1) for axes in MODULE_GROUPS
        )
        # At dp 1, the groups along dp x cp equal the groups along cp: show them once.
        for shown in dict.fromkeys(axes for axes in several if axes):
            groups: tuple[Ranks, ...] = (
                module.grid.groups(*shown)
                if rank is None
                else (module.grid.group_of(rank, *shown),)
            )
            crossing = sum(_crosses(group, per_node) for group in groups)
            yield GroupRow(module=module.name, axes=shown, groups=groups, num_crossing=crossing)
        view = module.experts
        if view is None:
            continue
        for axis in EXPERT_GROUPS:
            if view.size(axis) > 1:
                groups = view.groups(axis) if rank is None else (view.group_of(rank, axis),)
                crossing = sum(_crosses(group, per_node) for group in groups)
                yield GroupRow(
                    module=module.name, axes=(axis,), groups=groups, num_crossing=crossing
                )


def _crosses(ranks: Ranks, per_node: int | None) -> bool:
    # Groups are sorted and a node holds consecutive ranks, so the first and last rank suffice.
    return per_node is not None and ranks[0] // per_node != ranks[-1] // per_node


# Of a step with more samples than this, one group is routed.
MOST_ROUTED = 2**9
# With more samples than this per transfer, rows are counted for a part and multiplied.
MANY_SAMPLES = 2**13


def bridge_row(plan: Plan, step: StepData, bridge: Bridge, per_node: int | None) -> BridgeRow:
    """Return the row of a bridge."""
    layout = plan.layout
    rows = _rows_of(layout, step, bridge)
    module, reader = layout[bridge.source], layout[bridge.target]
    num_src, num_dst = module.grid.size(Axis.DP), reader.grid.size(Axis.DP)
    total = sum(count for _, _, count in rows)
    # Samples of language never move among replicas.
    mover = reader if module.is_language else module
    ends = {} if layout.is_star else {"source": bridge.source, "target": bridge.target}
    width = plan.spec.sent_width(bridge.source) * plan.spec.train.numbers.computed.bytes
    return BridgeRow(
        encoder=bridge.name,
        fan=fan(num_src, num_dst),
        num_src=num_src,
        num_dst=num_dst,
        balance=mover.balance,
        sharing=replicas_that_share(layout, mover),
        how="collective" if exchanges(layout, bridge) else "pairwise",
        groups=layout.samples.microbatches // bridge.group_size,
        group_size=bridge.group_size,
        has_backward=needs_backward(layout, module),
        rows=total,
        local_rows=sum(count for src, dst, count in rows if src == dst),
        crossing_rows=sum(
            count
            for src, dst, count in rows
            if per_node is not None and src // per_node != dst // per_node
        ),
        components=components(layout, bridge.name) if exchanges(layout, bridge) else (),
        links=tuple([Link(src=src, dst=dst, rows=count) for src, dst, count in rows]),
        bytes=None if layout.is_star else total * width,
        **ends,
    )


def _rows_of(whole: Layout, step: StepData, bridge: Bridge) -> list[tuple[int, int, int]]:
    """Return source, target and number of rows of each pair of ranks that exchange rows.

    In a step of very many samples, groups are taken to be alike. dp divides into parts that contain
    whole replicas of both modules, which are taken to be alike, too. So one group and one part are
    routed, and only some of their samples if they are very many; the rows are multiplied.
    """
    if whole.samples.global_batch <= MOST_ROUTED:
        found: Counter[tuple[int, int]] = Counter()
        for group in range(whole.samples.microbatches // bridge.group_size):
            for transfer in route(StepViews(whole, step), bridge.name, group):
                found[transfer.src, transfer.dst] += transfer.num_rows
        return sorted((src, dst, count) for (src, dst), count in found.items())
    samples, source, target = whole.samples, whole[bridge.source], whole[bridge.target]
    groups = samples.microbatches // bridge.group_size
    num_src, num_dst = source.grid.size(Axis.DP), target.grid.size(Axis.DP)
    # The factor by which a microbatch can shrink: 1 unless it is large. A group must keep at least
    # `MANY_SAMPLES` samples, and both ends must still share them evenly.
    size, microbatches = samples.microbatch_size, samples.replicas * bridge.group_size
    fitting = (
        times
        for times in divisors(size)
        if size // times * microbatches >= MANY_SAMPLES
        and not any(size // times * microbatches % dp for dp in (num_src, num_dst))
    )
    times = max(fitting, default=1)
    number = samples.global_batch // groups // times
    layout = replace(whole, samples=SampleMap(number, samples.replicas, bridge.group_size))
    views = StepViews(layout, StepData(0, step.samples[:number]))
    parts = gcd(num_src, num_dst, samples.replicas)
    first: Counter[tuple[int, int]] = Counter()
    for transfer in route(views, bridge.name, 0, senders=range(num_src // parts)):
        first[transfer.src, transfer.dst] += groups * times * transfer.num_rows
    src_apart = num_src // parts * source.grid.strides[Axis.DP]
    dst_apart = num_dst // parts * target.grid.strides[Axis.DP]
    return sorted(
        [
            (src + part * src_apart, dst + part * dst_apart, count)
            for part in range(parts)
            for (src, dst), count in first.items()
        ]
    )


def fan(num_src: int, num_dst: int) -> str:
    """Return the word for a bridge from `num_src` replicas of its source to `num_dst`."""
    if num_src == num_dst:
        return "one-to-one"
    if num_src % num_dst == 0:
        return "fan-in"
    return "fan-out" if num_dst % num_src == 0 else "uneven"


def peer_rows(views: StepViews, bridge: Bridge, rank: int) -> Iterator[PeerRow]:
    """Yield the peers of a rank on one bridge, with the rows exchanged in the forward direction."""
    groups = views.layout.samples.microbatches // bridge.group_size
    counts: dict[tuple[str, int], list[int]] = {}
    for group in range(groups):
        for transfer in route(views, bridge.name, group, rank=rank):
            if transfer.src == transfer.dst:
                key = "copy", rank
            elif transfer.src == rank:
                key = "send", transfer.dst
            else:
                key = "receive", transfer.src
            counts.setdefault(key, [0] * groups)[group] += transfer.num_rows
    for (way, peer), rows in sorted(counts.items()):
        yield PeerRow(bridge=bridge.name, way=way, peer=peer, rows=tuple(rows))
