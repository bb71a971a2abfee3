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

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from mimo_launch.layout.layout import Layout, ModuleLayout, Role
from mimo_launch.schedule.actions import Action, Kind
from mimo_launch.schedule.roles import needs_backward

F, B = Kind.FORWARD, Kind.BACKWARD
Stage = tuple[str, int]


def graph_orders(layout: Layout, *, backward: bool) -> dict[Role, list[Action]]:
    """Return what each role computes in a step, or in an evaluation if not `backward`."""
    return _ListScheduler(layout, backward=backward).run()


@dataclass(slots=True)
class _Queue:
    """The forwards or the backwards of one stage, which start in the order of their index."""

    stage: Stage
    kind: Kind
    total: int
    duration: int
    distance: int
    roles: tuple[Role, ...]
    at: int = 0

    @property
    def head(self) -> Action:
        return Action(*self.stage, self.kind, self.at)


@dataclass
class _ListScheduler:
    layout: Layout
    backward: bool
    now: int = 0
    ends: dict[Action, int] = field(default_factory=dict)
    free: dict[Role, int] = field(default_factory=dict)
    backwards: Counter[Stage] = field(default_factory=Counter)

    def run(self) -> dict[Role, list[Action]]:
        orders: dict[Role, list[Action]] = {role: [] for role in dict.fromkeys(self.layout.roles)}
        self.free = dict.fromkeys(orders, 0)
        queues = self._queues()
        while queues := [queue for queue in queues if queue.at < queue.total]:
            if not self._start_what_can(queues, orders, bounded=True):
                later = [time for time in self.free.values() if time > self.now]
                if later:
                    self.now = min(later)
                elif not self._start_what_can(queues[::-1], orders, bounded=False):
                    raise RuntimeError("no action can start: the graph of modules has a circle")
        return orders

    def _queues(self) -> list[_Queue]:
        """Return all queues, in the order of their priority."""
        layout = self.layout
        holders: dict[Stage, list[Role]] = {}
        for role in dict.fromkeys(layout.roles):
            for held in role:
                holders.setdefault(held, []).append(role)
        found = [
            _Queue(
                (module.name, stage.index),
                kind,
                layout.num_groups(module),
                module.group_size,
                self.reach[module.name, stage.index],
                tuple(holders[module.name, stage.index]),
            )
            for module in layout.modules
            for stage in module.stages
            for kind in (F, B)
            if kind is F or (self.backward and needs_backward(layout, module, stage.index))
        ]
        first = F if layout.schedule == "gpipe" else B
        return sorted(found, key=lambda queue: (queue.kind is not first, queue.distance))

    @cached_property
    def reach(self) -> dict[Stage, int]:
        """The microbatches that fit between the forward of a stage and its backward."""
        found: dict[Stage, int] = {}
        for module in reversed(self.layout.modules):
            behind, size = 0, module.group_size
            for bridge in self.layout.bridges_from(module.name):
                behind = max(behind, found[bridge.target, 0])
                size = max(size, bridge.group_size)
            for stage in reversed(module.stages):
                behind += size
                found[module.name, stage.index] = behind
                size = module.group_size
        return found

    def _start_what_can(
        self, queues: list[_Queue], orders: dict[Role, list[Action]], *, bounded: bool
    ) -> bool:
        """Start actions on idle ranks; if `bounded`, limit the forwards in flight of a stage."""
        started = False
        for queue in queues:
            if any(self.free[role] > self.now for role in queue.roles):
                continue
            if (bounded and self._is_full(queue)) or not self._is_ready(queue.head):
                continue
            end = self.now + queue.duration
            self.ends[queue.head] = end
            for role in queue.roles:
                orders[role].append(queue.head)
                self.free[role] = end
            queue.at += 1
            self.backwards[queue.stage] += queue.kind is B
            started = True
            if not bounded:
                break
        return started

    def _is_full(self, queue: _Queue) -> bool:
        """Return whether a stage must run backward before it starts another forward."""
        name, stage = queue.stage
        module = self.layout[name]
        has_backward = self.backward and needs_backward(self.layout, module, stage)
        if queue.kind is B or not has_backward or self.layout.schedule == "gpipe":
            return False
        return queue.at - self.backwards[queue.stage] >= self._share(module, queue)

    def _share(self, module: ModuleLayout, queue: _Queue) -> int:
        """Return how many forwards of a stage may wait for their backward."""
        if module.in_phases and self.layout.schedule != "bubble_filling":
            return 1
        return -(-queue.distance // module.group_size)

    def _is_ready(self, action: Action) -> bool:
        return all(self.ends.get(each, self.now + 1) <= self.now for each in self._inputs(action))

    def _inputs(self, action: Action) -> Iterator[Action]:
        """Yield the computes, on any rank, that an action depends on; only the last of a group.

        A stage computes in the order of the index, so the others of the group have ended by then.
        """
        module, stage = self.layout[action.module], action.stage or 0
        if action.kind is F:
            if stage:
                yield Action(module.name, stage - 1, F, action.index)
                return
            for bridge in self.layout.bridges_into(module.name):
                last = len(self.layout[bridge.source].stages) - 1
                each = bridge.sources(bridge.of_target(action.index))[-1]
                yield Action(bridge.source, last, F, each)
            return
        yield Action(module.name, stage, F, action.index)
        if stage < len(module.stages) - 1:
            yield Action(module.name, stage + 1, B, action.index)
            return
        for bridge in self.layout.bridges_from(module.name):
            each = bridge.targets(bridge.of_source(action.index))[-1]
            yield Action(bridge.target, 0, B, each)
