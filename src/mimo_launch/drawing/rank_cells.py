"""The ranks of a plan as cells of a picture: their partners in a step, and the hosts they fill.

Decides: that up to 64 ranks each rank is a cell, and above that each class of ranks that hold the
same stages, work at the same times and have equal estimates.
Relies on: a `Report` for classes and rows over bridges, programs for messages between stages.
Leaves: words and looks to `rank_map`.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from mimo_launch.diag.frozen import frozen
from mimo_launch.drawing.meeting_rows import group_rows
from mimo_launch.drawing.plan_tables import ends_text
from mimo_launch.drawing.rows import GroupRow, RankRow, Ranks, Report, TimelineRow
from mimo_launch.drawing.spans import MOST_RANKS
from mimo_launch.estimate.rows import RankEstimate
from mimo_launch.plan.plan import Plan
from mimo_launch.schedule.actions import Action, Kind
from mimo_launch.schedule.channels import partners

SENDS, RECEIVES, COPIES = "sends", "receives", "copies"


@frozen(kw_only=True)
class DrawnClass:
    """Ranks that are alike; idle ones have no `estimate`."""

    ranks: Ranks
    timeline: TimelineRow
    estimate: RankEstimate | None


@frozen(kw_only=True)
class Traffic:
    """The amounts that the ranks of a cell move in a step, by the cell at the other end.

    `edge` names a bridge (forward rows) or the stages of a module, in words.
    """

    edge: str
    is_bridge: bool
    way: str
    unit: str
    amounts: dict[int, int]


@frozen(kw_only=True)
class RankCell:
    """A rank, or all ranks of a class; `row` and `groups` belong to its first rank."""

    ranks: Ranks
    kind: DrawnClass
    row: RankRow
    groups: tuple[GroupRow, ...]
    traffic: tuple[Traffic, ...]


@frozen(kw_only=True)
class HostRow:
    """Hosts with the same cells, and the number of the cell of each of their ranks, in order."""

    hosts: Ranks
    cells: tuple[int, ...]


@frozen(kw_only=True)
class RankCells:
    """All cells of a job; `cell_of` has the number of the cell of each rank.

    `hosts` is empty where the spec does not say how many ranks a host has.
    """

    classes: tuple[DrawnClass, ...]
    cells: tuple[RankCell, ...]
    cell_of: tuple[int, ...]
    hosts: tuple[HostRow, ...]

    @property
    def has_classes(self) -> bool:
        """Whether cells are classes of ranks, not single ranks."""
        return len(self.cell_of) > MOST_RANKS

    def met_by(self, group: GroupRow) -> frozenset[int]:
        """Return the cells of the ranks in the single group of `group`."""
        return frozenset(self.cell_of[rank] for rank in group.groups[0])


def rank_classes(report: Report) -> tuple[DrawnClass, ...]:
    """Return the classes of ranks, in the order of their first ranks."""
    estimates = {rank: row for row in report.estimates.ranks for rank in row.ranks}
    found: list[DrawnClass] = []
    for timeline in report.schedule.timeline:
        ranks_of: defaultdict[int, list[int]] = defaultdict(list)
        for rank in timeline.ranks:
            ranks_of[id(estimates.get(rank))].append(rank)
        for ranks in ranks_of.values():
            kind = DrawnClass(
                ranks=tuple(ranks), timeline=timeline, estimate=estimates.get(ranks[0])
            )
            found.append(kind)
    return tuple(sorted(found, key=lambda each: each.ranks[0]))


def rank_cells(plan: Plan, report: Report) -> RankCells:
    """Return the cells of a plan and its `report`."""
    classes, world = rank_classes(report), report.header.world_size
    shown = [(kind.ranks, kind) for kind in classes]
    if world <= MOST_RANKS:
        alone = (((rank,), kind) for kind in classes for rank in kind.ranks)
        shown = sorted(alone, key=lambda cell: cell[0][0])
    cell_of = [0] * world
    for number, (ranks, _) in enumerate(shown):
        for rank in ranks:
            cell_of[rank] = number
    rows = _rows_by_cell(report, cell_of)
    per_node = report.header.ranks_per_node
    # Hosts by their cells, in the order of their first hosts.
    hosts: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
    if per_node is not None:
        for host, first in enumerate(range(0, world, per_node)):
            hosts[tuple(cell_of[first : first + per_node])].append(host)
    cells = [
        RankCell(
            ranks=ranks,
            kind=kind,
            row=report.ranks[ranks[0]],
            groups=tuple(group_rows(plan.layout, per_node, ranks[0])),
            traffic=(*rows[number], *_messages(plan, ranks, cell_of)),
        )
        for number, (ranks, kind) in enumerate(shown)
    ]
    return RankCells(
        classes=classes,
        cells=tuple(cells),
        cell_of=tuple(cell_of),
        hosts=tuple(HostRow(hosts=tuple(alike), cells=own) for own, alike in hosts.items()),
    )


def _rows_by_cell(report: Report, cell_of: Sequence[int]) -> dict[int, list[Traffic]]:
    """Return the rows that each cell sends, receives and copies over each bridge."""
    found: defaultdict[int, list[Traffic]] = defaultdict(list)
    for bridge in report.bridges:
        ways: dict[str, defaultdict[int, Counter[int]]] = {
            way: defaultdict(Counter) for way in (SENDS, RECEIVES, COPIES)
        }
        for link in bridge.links:
            src, dst = cell_of[link.src], cell_of[link.dst]
            if link.src == link.dst:
                ways[COPIES][src][src] += link.rows
            else:
                ways[SENDS][src][dst] += link.rows
                ways[RECEIVES][dst][src] += link.rows
        for way, by_cell in ways.items():
            for cell, amounts in by_cell.items():
                found[cell].append(
                    Traffic(
                        edge=f"bridge {ends_text(bridge)}",
                        is_bridge=True,
                        way=way,
                        unit="rows",
                        amounts=amounts,
                    )
                )
    return found


def _messages(plan: Plan, ranks: Ranks, cell_of: Sequence[int]) -> Iterator[Traffic]:
    """Yield the messages between stages of ranks that are alike, by the program of the first."""
    times = Counter(
        (action.module, action.stage, action.kind)
        for slot in plan.training[ranks[0]]
        for action in slot
        if action.kind.is_transfer and action.stage is not None
    )
    found: defaultdict[tuple[str, str, str], Counter[int]] = defaultdict(Counter)
    for (module, stage, kind), number in times.items():
        way = SENDS if kind.sends else RECEIVES
        unit = "activations" if kind in (Kind.SEND_F, Kind.RECV_F) else "gradients"
        for peer in partners(plan.layout, ranks[0], Action(module, stage, kind, 0)):
            found[module, way, unit][cell_of[peer]] += number * len(ranks)
    for (module, way, unit), amounts in found.items():
        edge = f"stages of {module}"
        yield Traffic(edge=edge, is_bridge=False, way=way, unit=unit, amounts=amounts)
