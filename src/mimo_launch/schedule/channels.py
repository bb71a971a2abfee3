"""The partners of an action: ranks at the other end of a transfer, or the ranks of a collective.

Decides: the partners of every transfer: the ranks that may exchange at least one row.
Relies on: `layout.balance` for the links between replicas, `layout.bridge_routing` for
components.
Leaves: the number of rows that each pair moves to the StepData of a step.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from mimo_launch.layout.balance import replica_links, replica_sources
from mimo_launch.layout.bridge_routing import components
from mimo_launch.layout.layout import Layout, ModuleLayout, cached_in_layout
from mimo_launch.layout.rank_groups import RankGroup, tied_ranks
from mimo_launch.schedule.actions import STEP, Action, Kind, Program
from mimo_launch.schedule.data_flow import exchanges, fills_bubbles
from mimo_launch.schedule.step_end import END_OF
from mimo_launch.spec.base import Axis


class Channel(NamedTuple):
    """A sequence of messages from one rank to another, which arrive in the order of their sends.

    There is one per module or bridge, direction, and kind of edge (between stages, or a bridge).
    Channels never wait for each other, not even the two between the same ranks in opposite
    directions. On a bridge `module` is the name of the bridge.
    """

    module: str
    is_bridge: bool
    forward: bool
    src: int
    dst: int


class P2PGroup(NamedTuple):
    """Channels that may share a process group.

    They have the same module, kind of edge and direction, and all lead from lower to higher ranks
    (`up`) or all from higher to lower ranks. Between two ranks such a group carries one channel, so
    both ranks order its transfers alike.
    """

    module: str
    is_bridge: bool
    forward: bool
    up: bool

    def __str__(self) -> str:
        edge = "bridge" if self.is_bridge else "edge"
        way = "forward" if self.forward else "backward"
        return f"p2p.{self.module}.{edge}.{way}.{'up' if self.up else 'down'}"


class PlannedGroups(Protocol):
    """The part of a plan that process groups are made from; see `plan.plan.Plan`."""

    @property
    def layout(self) -> Layout:
        """Modules and their grids."""

    @property
    def groups(self) -> Sequence[RankGroup]:
        """Every group of ranks that meet in collectives, in the order of creation."""

    @property
    def p2p_groups(self) -> Sequence[P2PGroup]:
        """The job-wide groups that carry channels."""


def p2p_group_of(channel: Channel) -> P2PGroup:
    """Return the group that carries a channel between two ranks."""
    up = channel.src < channel.dst
    return P2PGroup(channel.module, channel.is_bridge, channel.forward, up)


def p2p_groups_of(layout: Layout) -> tuple[P2PGroup, ...]:
    """Return every group that a step or an evaluation of a layout may use, in one fixed order."""
    found: list[P2PGroup] = []
    for module in layout.modules:
        depth = module.grid.size(Axis.PP)
        if depth > 1:
            # With virtual stages the pipeline also leads from its last rank back to its first.
            turns = len(module.stages) > depth
            found += _both_ways(module.name, is_bridge=False, up=True, down=turns)
        for bridge in layout.bridges_from(module.name):
            if not exchanges(layout, bridge):
                mine, theirs = module.grid.ranks, layout[bridge.target].grid.ranks
                up, down = mine.start < theirs.stop - 1, theirs.start < mine.stop - 1
                found += _both_ways(bridge.name, is_bridge=True, up=up, down=down)
    return tuple(found)


def _both_ways(module: str, *, is_bridge: bool, up: bool, down: bool) -> list[P2PGroup]:
    """Return groups with a forward that leads `up`, `down` or both; the backward is the reverse."""
    ways = [way for way, is_used in ((True, up), (False, down)) if is_used]
    return [
        *(P2PGroup(module, is_bridge, True, way) for way in ways),
        *(P2PGroup(module, is_bridge, False, not way) for way in ways),
    ]


def channels_of(layout: Layout, rank: int, program: Program) -> tuple[Channel, ...]:
    """Return the channels between `rank` and others that a program uses, in one global order."""
    # The channels of an edge are the same for all microbatches.
    edges = {
        (action.module, action.stage, action.kind)
        for slot in program
        if not slot[0].kind.is_compute
        for action in slot
        if action.kind.is_transfer
    }
    found = {each for edge in edges for each in channels(layout, rank, Action(*edge, 0))}
    return tuple(sorted(each for each in found if each.src != each.dst))


def partners(layout: Layout, rank: int, action: Action) -> tuple[int, ...]:
    """Return the ranks that a point-to-point action of `rank` may meet.

    On a bridge inside a pipeline these may include `rank` itself, which then copies the rows.
    """
    at_source = action.kind.at_source
    if action.stage is None:
        return _bridge_partners(layout, action.module, rank, at_source)
    module = layout[action.module]
    other = module.pp_index(action.stage + (1 if at_source else -1))
    apart = other - module.grid.index(Axis.PP, rank)
    return (rank + apart * module.grid.strides[Axis.PP],)


def channels(layout: Layout, rank: int, action: Action) -> list[Channel]:
    """Return the channels that a point-to-point action of `rank` uses."""
    return channels_to(rank, action, partners(layout, rank, action))


def channels_to(rank: int, action: Action, others: Iterable[int]) -> list[Channel]:
    """Return the channels between `rank` and the partners of one of its point-to-point actions."""
    head = (action.module, action.stage is None, action.kind.goes_forward)
    if action.kind.sends:
        return [Channel(*head, rank, other) for other in others]
    return [Channel(*head, other, rank) for other in others]


def message(action: Action) -> tuple[int | None, int]:
    """Return the key of a message in its channel: the stage at the upper end, and the index."""
    # The receive of a forward and the send of a backward name the lower end of their edge.
    lower = not action.kind.at_source
    return None if action.stage is None else action.stage - lower, action.index


class Meetings:
    """The partners of every rank of a layout; `ranks` are the ranks that take part: here all."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.ranks: Sequence[int] = range(layout.world_size)

    def channels(self, rank: int, action: Action) -> list[Channel]:
        """Return the channels that a point-to-point action of a rank uses."""
        return channels_to(rank, action, self.partners(rank, action))

    def partners(self, rank: int, action: Action) -> Sequence[int]:
        """Return the ranks that a point-to-point action of a rank may meet."""
        return partners(self.layout, rank, action)

    def component(self, rank: int, bridge: str) -> Sequence[int]:
        """Return the ranks of the collective exchange that a rank takes part in."""
        return component_of(self.layout, rank, bridge)

    def team(self, rank: int, action: Action) -> Sequence[int]:
        """Return the ranks that run an action together.

        The tp and cp ranks of a replica always do. Replicas meet where gradients are reduced and
        weights are gathered. Full sharding does that at every action, so here all replicas meet at
        every action. The exception is an encoder that fills bubbles: its replicas are at different
        places of the pipeline, and meet only at its first forward and its last backward.
        """
        module = self.layout.language if action.module == STEP else self.layout[action.module]
        if (end := END_OF.get(action.kind)) is not None:
            return end.team(self, module, rank)
        if action.kind is Kind.SHARE:
            return self.whole_replica(module, rank)
        num_groups = self.layout.num_groups(module)
        edge = 0 if action.kind is Kind.FORWARD else num_groups - 1
        if fills_bubbles(self.layout, module) and action.index != edge:
            return self.replica(module, rank)
        return self.stage(module, action.stage or 0)

    def replica(self, module: ModuleLayout, rank: int) -> Sequence[int]:
        """Return the ranks that hold the same stages of the same replica of a module as `rank`."""
        return _replica(self.layout, module.name, rank)

    def tied(self, module: ModuleLayout, rank: int) -> Sequence[int]:
        """Return the two ranks that hold the same part of a module's tied embedding."""
        return tied_ranks(self.layout, module.name)[rank]

    def whole_replica(self, module: ModuleLayout, rank: int) -> Sequence[int]:
        """Return the ranks that hold any stage of the same replica of a module as `rank`."""
        return module.grid.slice(dp=module.grid.index(Axis.DP, rank))

    def stage(self, module: ModuleLayout, stage: int) -> Sequence[int]:
        """Return the ranks that hold a stage."""
        return _stage(self.layout, module.name, stage)


def component_of(layout: Layout, rank: int, bridge: str) -> tuple[int, ...]:
    """Return the ranks of the collective exchange that `rank` takes part in."""
    return _component_by_rank(layout, bridge)[rank]


@cached_in_layout
def _component_by_rank(layout: Layout, bridge: str) -> dict[int, tuple[int, ...]]:
    return {rank: ranks for ranks in components(layout, bridge) for rank in ranks}


@cached_in_layout
def _replica(layout: Layout, module: str, rank: int) -> tuple[int, ...]:
    return layout[module].grid.group_of(rank, Axis.TP, Axis.CP)


@cached_in_layout
def _stage(layout: Layout, module: str, stage: int) -> tuple[int, ...]:
    return layout[module].stage_ranks(stage)


@cached_in_layout
def _bridge_partners(layout: Layout, bridge: str, rank: int, at_source: bool) -> tuple[int, ...]:
    ends = layout.bridges[bridge]
    source, target = layout[ends.source], layout[ends.target]
    if at_source:
        linked = replica_links(layout, bridge)[source.grid.index(Axis.DP, rank)]
        grid, place = target.grid, 0
    else:
        linked = replica_sources(layout, bridge)[target.grid.index(Axis.DP, rank)]
        grid, place = source.grid, source.pp_index(len(source.stages) - 1)
    return tuple(sorted(r for replica in linked for r in grid.slice(dp=replica, pp=place)))
