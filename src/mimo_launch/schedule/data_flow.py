"""The data flow of a step: what each action needs, and what it makes available.

Decides: the edges along which results travel, between the stages of a module and over bridges;
which stages run backward. Everything else that depends on the flow asks here: programs, orders, the
proof that programs end.
Relies on: `layout`.
Leaves: the order of work to `pipeline`, `bubble_filling` and `graph_order`; the ranks at the two
ends of a transfer to `channels`.
"""

from collections.abc import Iterator

from mimo_launch.diag.frozen import frozen
from mimo_launch.layout.layout import Layout, ModuleLayout, Role, cached_in_layout
from mimo_launch.layout.samples import Bridge
from mimo_launch.schedule.actions import ONCE, STEP, Action, Kind, Program, format_slot
from mimo_launch.schedule.orders import ORDERS
from mimo_launch.schedule.step_end import END_OF
from mimo_launch.spec.base import Axis

F, B = Kind.FORWARD, Kind.BACKWARD
Stage = tuple[str, int]


def needs_backward(layout: Layout, module: ModuleLayout, stage: int | None = None) -> bool:
    """Return whether a module, or one of its stages, has any gradient to compute.

    A frozen module still passes gradients to modules that it reads and that train. Stages before
    `first_trained`, as in an encoder where only the projector trains, have none.
    """
    if trains_before(layout, module.name):
        return True
    return not module.frozen and (stage is None or stage >= module.first_trained)


@cached_in_layout
def trains_before(layout: Layout, name: str) -> bool:
    """Return whether any module trains that this one reads, directly or through others."""
    return any(needs_backward(layout, layout[source]) for source in layout[name].reads)


def fills_bubbles(layout: Layout, module: ModuleLayout) -> bool:
    """Return whether an encoder runs in the idle slots of the language pipeline.

    It does if it shares ranks with language and the schedule fills bubbles; without a pipeline, no
    rank idles. In a graph that is not a star, `graph_order` fills idle slots for every module.
    """
    if not layout.is_star or not module.in_phases:
        return False
    return ORDERS[layout.schedule].fills_bubbles and layout.language.grid.size(Axis.PP) > 1


def exchanges(layout: Layout, bridge: Bridge) -> bool:
    """Return whether the rows of a bridge travel in a collective between phases.

    On all other bridges ranks send and receive pairwise while the pipeline runs.
    """
    source = layout[bridge.source]
    return layout.is_star and source.in_phases and not fills_bubbles(layout, source)


@frozen
class Edge:
    """The path of results from one stage to another, and of their gradients back if it `returns`.

    It is a bridge, or it leads to the next stage of the same module. `path` says which forwards of
    both ends one transfer connects; `in_collective`: all ranks of a component move it together.
    """

    source: Stage
    target: Stage
    path: Bridge
    name: str
    is_bridge: bool
    in_collective: bool
    returns: bool

    def action(self, kind: Kind, transfer: int) -> Action:
        """Return a transfer, named after the bridge or the stage at its end of the edge."""
        if self.is_bridge:
            return Action(self.name, None, kind, transfer)
        return Action(*(self.source if kind.at_source else self.target), kind, transfer)

    def arrival(self, way: Kind, transfer: int) -> Action:
        """Return the action that brings results (`way` forward) or gradients (backward)."""
        if self.in_collective:
            return self.action(Kind.EXCHANGE_F if way is F else Kind.EXCHANGE_B, transfer)
        return self.action(Kind.RECV_F if way is F else Kind.RECV_B, transfer)


class DataFlow:
    """The edges of a layout, by the stage at each end; use `flow_of`."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        stages = [(m.name, stage.index) for m in layout.modules for stage in m.stages]
        self.into: dict[Stage, list[Edge]] = {stage: [] for stage in stages}
        self.out: dict[Stage, list[Edge]] = {stage: [] for stage in stages}
        self.bridges: dict[str, Edge] = {}
        for module in layout.modules:
            inside = Bridge(module.name, module.name, module.group_size, module.group_size)
            for stage in module.stages[1:]:
                ends = (module.name, stage.index - 1), (module.name, stage.index)
                returns = needs_backward(layout, module, stage.index - 1)
                self._add(Edge(*ends, inside, module.name, False, False, returns))
        for name, bridge in layout.bridges.items():
            source = layout[bridge.source]
            ends = (source.name, len(source.stages) - 1), (bridge.target, 0)
            returns = needs_backward(layout, source)
            edge = Edge(*ends, bridge, name, True, exchanges(layout, bridge), returns)
            self._add(edge)
            self.bridges[name] = edge

    def _add(self, edge: Edge) -> None:
        self.into[edge.target].append(edge)
        self.out[edge.source].append(edge)

    def inputs(self, action: Action) -> list[Action]:
        """Return the computes, on any rank, that a compute waits for; of a group, only the last.

        A stage computes in the order of the index, so the others of the group have ended by then.
        """
        stage, index = (action.module, action.stage or 0), action.index
        if action.kind is F:
            return [
                Action(*edge.source, F, edge.path.sources(edge.path.of_target(index))[-1])
                for edge in self.into[stage]
            ]
        return [
            Action(*stage, F, index),
            *(
                Action(*edge.target, B, edge.path.targets(edge.path.of_source(index))[-1])
                for edge in self.out[stage]
            ),
        ]

    def sends(self, action: Action) -> Iterator[Action]:
        """Yield the point-to-point sends after a compute; a group leaves after its last compute."""
        stage, index = (action.module, action.stage or 0), action.index
        if action.kind is F:
            for edge in self.out[stage]:
                transfer = edge.path.of_source(index)
                if not edge.in_collective and index == edge.path.sources(transfer)[-1]:
                    yield edge.action(Kind.SEND_F, transfer)
            return
        for edge in self.into[stage]:
            transfer = edge.path.of_target(index)
            is_last = index == edge.path.targets(transfer)[-1]
            if edge.returns and is_last and not edge.in_collective:
                yield edge.action(Kind.SEND_B, transfer)

    def needs(self, role: Role, action: Action) -> list[Action]:
        """Return the actions that a rank must have ended before it starts `action`.

        Dependencies on other ranks follow: a receive ends only when the other end has sent.
        """
        kind, index = action.kind, action.index
        if kind in ONCE:
            return self._before_end(role, action)
        if kind.is_compute:
            stage = action.module, action.stage or 0
            if kind is F:
                return [edge.arrival(F, edge.path.of_target(index)) for edge in self.into[stage]]
            arrivals = (edge.arrival(B, edge.path.of_source(index)) for edge in self.out[stage])
            return [Action(*stage, F, index), *arrivals]
        if kind is Kind.REDUCE or kind in (Kind.RECV_F, Kind.RECV_B):
            return []
        edge = self._edge_of(action)
        if kind.goes_forward:
            made, numbers = edge.source, edge.path.sources(index)
        else:
            made, numbers = edge.target, edge.path.targets(index)
        way = F if kind.goes_forward else B
        return [Action(*made, way, each) for each in numbers] if made in role else []

    def _edge_of(self, action: Action) -> Edge:
        if action.stage is None:
            return self.bridges[action.module]
        stage = action.module, action.stage
        return self.out[stage][0] if action.kind.at_source else self.into[stage][0]

    def _before_end(self, role: Role, action: Action) -> list[Action]:
        """Return what ends before the end of a step: last backwards of one or all modules."""
        if action.kind not in END_OF:
            return []  # It follows the forwards of an evaluation, which has no backward.
        if (before := END_OF[action.kind].after) is not None:
            return [Action(STEP, None, before, 0)]
        layout = self.layout
        return [
            Action(name, stage, B, layout.num_groups(layout[name]) - 1)
            for name, stage in role
            if action.module in (name, STEP) and needs_backward(layout, layout[name], stage)
        ]

    def first_fault(self, role: Role, program: Program) -> tuple[int, str] | None:
        """Return the position of the first slot that comes too early or twice, and the fault."""
        done: set[Action] = set()
        for position, slot in enumerate(program):
            for action in slot:
                if action in done:
                    return position, f"runs {action} a second time"
                missing = [each for each in self.needs(role, action) if each not in done]
                if missing:
                    return position, f"comes to {action} before {format_slot(tuple(missing))}"
            done.update(slot)
        return None


@cached_in_layout
def flow_of(layout: Layout) -> DataFlow:
    """Return the data flow of a layout (cached)."""
    return DataFlow(layout)
