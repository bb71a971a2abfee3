"""Encoder work in the idle slots of the language pipeline that runs on the same ranks.

Decides: the action that a rank starts next, by one of several rules, and the rule that makes the
shortest step under costs that follow from the layout.
Relies on: `pipeline` for the order of language and upstream encoders, `rank_classes` to schedule
one rank for all ranks that do the same.
Leaves: transfers to `generate`, proving and timing to `deadlock_proof`.

Language keeps the order and the memory of 1F1B; between its actions each rank works on groups of
encoders. All ranks of an action start together, after its inputs have ended, and each rank's
program keeps the order of its starts, so the programs end under any costs. How much encoder work is
hidden depends on how real costs compare to the assumed ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from mimo_launch.diag.frozen import frozen
from mimo_launch.layout.layout import Layout, ModuleLayout
from mimo_launch.schedule.actions import Action, Kind
from mimo_launch.schedule.clock import EPSILON, Clock
from mimo_launch.schedule.data_flow import fills_bubbles, flow_of, needs_backward
from mimo_launch.schedule.pipeline import pipeline_order
from mimo_launch.schedule.simulation_result import Costs, lower_bound
from mimo_launch.spec.base import Axis

F, B = Kind.FORWARD, Kind.BACKWARD

# Classes of ranks, see `rank_classes`.
Ranks = tuple[int, ...]


@frozen
class Rule:
    """How a rank chooses its next action.

    A `patient` rank stays idle rather than delay pipeline work that is about to come. A group's
    forward gets priority over the pipeline once stage 0 is `lead` microbatches away from the group;
    None: never.
    """

    patient: bool
    lead: int | None


@dataclass(slots=True)
class _Queue:
    """The forwards or the backwards of one stage, in order, on encoder replicas that are alike."""

    module: ModuleLayout
    stage: int
    kind: Kind
    replica: int
    team: Ranks
    at: int = 0

    def head(self, num_groups: int) -> Action | None:
        if self.at == num_groups:
            return None
        return Action(self.module.name, self.stage, self.kind, self.at)


class StageTeams:
    """The classes of ranks that work together on a stage, overall and per kind of replica."""

    def __init__(self, layout: Layout, classes: Sequence[int]) -> None:
        self.layout, self.classes = layout, classes
        first = {each: rank for rank, each in reversed(list(enumerate(classes)))}
        total = range(layout.samples.microbatches)
        self.pipeline = [
            pipeline_order(layout, layout.roles[first[each]], total) for each in range(len(first))
        ]
        self.stages = {
            (module.name, stage.index): self._alike(module.stage_ranks(stage.index))
            for module in layout.modules
            for stage in module.stages
        }
        self.fillers = [module for module in layout.encoders if fills_bubbles(layout, module)]
        self.replicas = {module.name: self._replicas(module) for module in self.fillers}
        self.inputs = cache(flow_of(layout).inputs)

    def of_replicas(self, module: ModuleLayout, stage: int) -> list[tuple[int, Ranks]]:
        """Return one replica of each kind, with the classes of its ranks that hold a stage."""
        place = module.pp_index(stage)
        return [
            (replica, self._alike(module.grid.slice(dp=replica, pp=place)))
            for replica in self.replicas[module.name]
        ]

    def _alike(self, ranks: tuple[int, ...]) -> Ranks:
        return tuple(sorted({self.classes[rank] for rank in ranks}))

    def _replicas(self, module: ModuleLayout) -> list[int]:
        """Return one dp index for each set of replicas that are on the same classes of ranks."""
        stages = [
            module.grid.slices(Axis.DP, pp=place) for place in range(module.grid.size(Axis.PP))
        ]
        kinds: dict[tuple[Ranks, ...], int] = {}
        for replica, places in enumerate(zip(*stages, strict=True)):
            kinds.setdefault(tuple(map(self._alike, places)), replica)
        return list(kinds.values())


class Filler:
    """A list scheduler of the classes of ranks, for one rule."""

    def __init__(self, teams: StageTeams, costs: Costs, rule: Rule) -> None:
        layout = teams.layout
        self.layout, self.teams, self.costs, self.rule = layout, teams, costs, rule
        self.at = [0] * len(teams.pipeline)
        self.clock = Clock(range(len(teams.pipeline)))
        # When an action ended on a replica; -1 means all replicas together.
        self.ends: dict[tuple[Action, int], float] = {}
        self.reached = 0  # The next forward of language's first stage.
        self.queues = [
            _Queue(module, stage.index, kind, replica, team)
            for kind in (B, F)
            for module in teams.fillers
            for stage in module.stages
            if kind is F or needs_backward(layout, module, stage.index)
            for replica, team in teams.of_replicas(module, stage.index)
        ]

    def run(self) -> list[list[Action]]:
        """Return what each class computes, in order; `clock` then shows the end of the last one."""
        self.clock.run(self._start_what_can)
        return list(self.clock.orders.values())

    def _start_what_can(self, patient: bool) -> bool:
        started, is_idle = False, self.clock.is_idle
        # Most ranks are busy at any time, so skip their work first.
        for queue in self.queues:
            if is_idle(queue.team[0]) and self._is_urgent(queue):
                started |= self._start_queue(queue, patient=False)
        idle = filter(is_idle, range(len(self.teams.pipeline)))
        heads = dict.fromkeys(head for rank in idle if (head := self._head(rank)) is not None)
        for action in heads:
            started |= self._start_head(action)
        for queue in self.queues:
            if is_idle(queue.team[0]):
                started |= self._start_queue(queue, patient=patient and self.rule.patient)
        return started

    def _is_urgent(self, queue: _Queue) -> bool:
        """Return whether stage 0 of language is about to need the next forward of a queue."""
        lead = self.rule.lead
        if lead is None or queue.kind is B:
            return False
        return queue.at * queue.module.group_size <= self.reached + lead

    def _start_head(self, action: Action) -> bool:
        ranks = self.teams.stages[action.module, action.stage or 0]
        if not all(self._head(rank) == action and self.clock.is_idle(rank) for rank in ranks):
            return False
        if not self.clock.has_come(self._ready(action, -1)):
            return False
        for rank in ranks:
            self.at[rank] += 1
        if action.kind is F and action.stage == 0 and action.module == self.layout.language.name:
            self.reached += 1
        self._start(action, -1, ranks)
        return True

    def _start_queue(self, queue: _Queue, *, patient: bool) -> bool:
        num_groups = self.layout.num_groups(queue.module)
        action = queue.head(num_groups)
        if action is None:
            return False
        group, ranks, replica = [queue], queue.team, queue.replica
        # Replicas meet at the first forward and at the last backward.
        if action.index == (0 if action.kind is F else num_groups - 1):
            ranks, replica = self.teams.stages[action.module, queue.stage], -1
            work = (queue.module, queue.stage, queue.kind)
            group = [q for q in self.queues if (q.module, q.stage, q.kind) == work]
        if not all(each.at == queue.at for each in group) or not all(
            map(self.clock.is_idle, ranks)
        ):
            return False
        if not self.clock.has_come(self._ready(action, replica)):
            return False
        if patient and not all(self._fits(action, rank) for rank in ranks):
            return False
        for each in group:
            each.at += 1
        self._start(action, replica, ranks)
        return True

    def _start(self, action: Action, replica: int, ranks: Ranks) -> None:
        self.ends[action, replica] = self.clock.start(action, ranks, self.costs.of(action))
        all_replicas = self.teams.replicas.get(action.module, ())
        if replica != -1 and all((action, each) in self.ends for each in all_replicas):
            self.ends[action, -1] = max(self.ends[action, each] for each in all_replicas)

    def _head(self, rank: int) -> Action | None:
        order, at = self.teams.pipeline[rank], self.at[rank]
        return order[at] if at < len(order) else None

    def _fits(self, action: Action, rank: int) -> bool:
        """Return whether an action ends before the next pipeline work of its rank can start."""
        head = self._head(rank)
        if head is None:
            return True
        is_first = head.stage == 0 and head.module == self.layout.language.name
        if is_first and self.reached == self.layout.samples.microbatches:
            # This rank has only backwards left, and only encoders wait for them.
            return True
        end = self.clock.now + self.costs.of(action)
        return end <= self._expected(head, -1) + EPSILON

    def _expected(self, action: Action, replica: int) -> float:
        """Return the earliest time at which the input of an action can be ready."""
        times = [self.clock.now]
        for each in self.teams.inputs(action):
            end = self._end(each, replica)
            if end is None:
                end = self._expected(each, replica) + self.costs.of(each)
            times.append(end)
        return max(times)

    def _ready(self, action: Action, replica: int) -> float | None:
        """Return when the input of an action is ready, or None if a part has not started."""
        latest = 0.0
        for each in self.teams.inputs(action):
            end = self._end(each, replica)
            if end is None:
                return None
            latest = max(latest, end)
        return latest

    def _end(self, action: Action, replica: int) -> float | None:
        """Return when an action ends on a replica, or on all replicas; None before it starts."""
        end = self.ends.get((action, replica))
        return self.ends.get((action, -1)) if end is None else end


def usual_costs(layout: Layout) -> Costs:
    """Return the costs for which the programs are optimized.

    A microbatch takes 1 forward and 2 backward in a stage of language. For the same samples each
    encoder takes a third of language's total time on all ranks, spread evenly over its own ranks.
    """
    language = layout.language
    forward = {language.name: 1.0}
    for encoder in layout.encoders:
        share = len(language.grid.ranks) / len(encoder.grid.ranks) / 3
        forward[encoder.name] = encoder.group_size * share
    return Costs(forward, {name: 2 * cost for name, cost in forward.items()})


def bubble_orders(layout: Layout, classes: Sequence[int]) -> list[list[Action]]:
    """Return what the ranks of each class compute, in order; `classes` is indexed by rank."""
    costs = usual_costs(layout)
    bound = lower_bound(layout, costs)
    depth = layout.language.grid.size(Axis.PP)
    teams = StageTeams(layout, classes)
    best: list[list[Action]] = []
    shortest = float("inf")
    for lead in (None, 0, depth, layout.samples.microbatches):
        for patient in (True, False):
            simulation = Filler(teams, costs, Rule(patient, lead))
            orders = simulation.run()
            if simulation.clock.now < shortest - EPSILON:
                best, shortest = orders, simulation.clock.now
            if shortest <= bound + EPSILON:
                return best
    return best
