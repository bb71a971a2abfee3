"""The order of forwards and backwards on each rank of a job with any graph of modules.

Decides: one order of all actions by a clock; the program of a rank has its own actions in this
order. Programs that follow one clock cannot wait for each other in a circle, whatever the
placement.
Relies on: `layout` for bridges and for who holds which stage.
Leaves: transfers to `generate`, proving and timing to `deadlock_proof`.

This is a list scheduler in model time (a microbatch in a stage takes one unit). Every action starts
as soon as it can: backwards before forwards (the reverse under GPipe), then stages nearer to a loss
first. At most as many forwards of a stage wait for their backward as microbatches fit between the
stage and the farthest loss. On a chain this is 1F1B (Narayanan et al. 2021, arXiv:2104.04473,
section 2.2).
"""

from dataclasses import dataclass
from functools import cached_property

from mimo_launch.layout.layout import Layout, ModuleLayout, Role
from mimo_launch.schedule.actions import Action, Kind
from mimo_launch.schedule.clock import Clock
from mimo_launch.schedule.data_flow import Stage, flow_of, needs_backward
from mimo_launch.schedule.orders import ORDERS

F, B = Kind.FORWARD, Kind.BACKWARD


def graph_orders(layout: Layout, *, backward: bool) -> dict[Role, list[Action]]:
    """Return what each role computes in a step, or in an evaluation if not `backward`."""
    return _ListScheduler(layout, backward=backward).run()


@dataclass(slots=True)
class _StageQueue:
    """The forwards or the backwards of one stage, which start in the order of their index."""

    module: ModuleLayout
    stage: Stage
    kind: Kind
    total: int
    reach: int
    roles: tuple[Role, ...]
    at: int = 0


class _ListScheduler:
    def __init__(self, layout: Layout, *, backward: bool) -> None:
        self.layout, self.backward = layout, backward
        self.order, self.flow = ORDERS[layout.schedule], flow_of(layout)
        self.clock = Clock(layout.roles)
        self.ends: dict[Action, float] = {}
        self.queues = self._queues()
        self.of = {(queue.stage, queue.kind): queue for queue in self.queues}

    def run(self) -> dict[Role, list[Action]]:
        self.clock.run(self._start_what_can)
        if any(queue.at < queue.total for queue in self.queues):
            raise RuntimeError("no action can start: the graph of modules has a circle")
        return self.clock.orders

    def _queues(self) -> list[_StageQueue]:
        """Return all queues, in the order of their priority."""
        layout = self.layout
        holders: dict[Stage, list[Role]] = {}
        for role in self.clock.free:
            for held in role:
                holders.setdefault(held, []).append(role)
        found = [
            _StageQueue(
                module,
                held,
                kind,
                layout.num_groups(module),
                self.reach[held],
                tuple(holders[held]),
            )
            for module in layout.modules
            for held in ((module.name, stage.index) for stage in module.stages)
            for total in (layout.num_groups(module),)
            for kind in (F, B)
            if kind is F or (self.backward and needs_backward(layout, module, held[1]))
        ]
        first = F if self.order.forwards_first else B
        return sorted(found, key=lambda queue: (queue.kind is not first, queue.reach))

    @cached_property
    def reach(self) -> dict[Stage, int]:
        """The microbatches that fit between the forward of a stage and its backward."""
        found: dict[Stage, int] = {}
        for module in reversed(self.layout.modules):
            for stage in reversed(module.stages):
                here = module.name, stage.index
                ahead, size = 0, module.group_size
                for edge in self.flow.out[here]:
                    ahead = max(ahead, found[edge.target])
                    size = max(size, edge.path.group_size)
                found[here] = ahead + size
        return found

    def _start_what_can(self, bounded: bool) -> bool:
        """Start actions on idle ranks; if `bounded`, limit the forwards in flight of a stage.

        If not, start only the action of least priority.
        """
        started = False
        for queue in self.queues if bounded else self.queues[::-1]:
            if queue.at == queue.total or not all(map(self.clock.is_idle, queue.roles)):
                continue
            action = Action(*queue.stage, queue.kind, queue.at)
            inputs = self.flow.inputs(action)
            if (bounded and self._is_full(queue)) or not all(
                self.clock.has_come(self.ends.get(each)) for each in inputs
            ):
                continue
            self.ends[action] = self.clock.start(action, queue.roles, queue.module.group_size)
            queue.at += 1
            if not bounded:
                return True
            started = True
        return started

    def _is_full(self, queue: _StageQueue) -> bool:
        """Return whether a stage must run backward before it starts another forward."""
        backwards = self.of.get((queue.stage, B))
        if queue.kind is B or backwards is None or self.order.forwards_first:
            return False
        most = -(-queue.reach // queue.module.group_size)
        if queue.module.in_phases and not self.order.fills_bubbles:
            most = 1
        return queue.at - backwards.at >= most
