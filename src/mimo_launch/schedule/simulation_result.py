"""The course of a step in model time, the cost of an action, and the shortest time of any order.

Decides: the numbers that describe a step: makespan, bubble, live activations, open sends; a lower
bound for every schedule of a layout.
Relies on: `actions` and `data_flow`.
Leaves: simulating the step to `deadlock_proof`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cached_property

from mimo_launch.diag.frozen import frozen
from mimo_launch.layout.layout import Layout, ModuleLayout
from mimo_launch.schedule.actions import Action, Kind, Slot
from mimo_launch.schedule.data_flow import needs_backward
from mimo_launch.spec.base import Axis


@frozen
class Costs:
    """Model time of actions.

    `forward` and `backward` are the times of one stage on one index, by module. `exact`, by module,
    stage and kind, has the times of each index and overrides them; transfers that are not in it
    take no time. The time of a send is
    from posting to arrival. `first` is added to a stage's forward of index 0.
    """

    forward: Mapping[str, float] = field(default_factory=dict)
    backward: Mapping[str, float] = field(default_factory=dict)
    exact: Mapping[tuple[str, int | None, Kind], Sequence[float]] = field(default_factory=dict)
    first: Mapping[tuple[str, int | None], float] = field(default_factory=dict)

    def of(self, action: Action) -> float:
        """Return the duration of a compute action."""
        is_forward = action.kind is Kind.FORWARD
        times = self.exact.get((action.module, action.stage, action.kind))
        if times is not None:
            cost = times[action.index]
        else:
            cost = (self.forward if is_forward else self.backward).get(action.module, 1.0)
        if is_forward and action.index == 0:
            cost += self.first.get((action.module, action.stage), 0.0)
        return cost

    def of_transfer(self, action: Action) -> float:
        """Return the time that a send or an exchange takes."""
        times = self.exact.get((action.module, action.stage, action.kind))
        return 0.0 if times is None else times[action.index]


@frozen
class Event:
    """One slot of one rank in model time.

    A compute starts when all its ranks have arrived, a transfer when its own rank has. Transfers
    stop when all of the slot have completed.
    """

    slot: Slot
    start: float
    stop: float


@frozen(slots=False)
class Simulation:
    """The result of a simulation: events per rank in order, and every rank that got stuck.

    `peak_posted` is, per rank, the largest number of sends posted and not yet received.
    """

    events: tuple[tuple[Event, ...], ...]
    stuck: tuple[str, ...]
    peak_posted: tuple[int, ...] = ()

    def spread(self, stand_ins: Sequence[int]) -> "Simulation":
        """Return the events of all ranks; `stand_ins` has the simulated rank for each."""
        return Simulation(tuple(self.events[rank] for rank in stand_ins), self.stuck)

    @cached_property
    def makespan(self) -> float:
        """Model time at which the last rank ends."""
        return max((events[-1].stop for events in self.events if events), default=0.0)

    def busy(self, rank: int) -> float:
        """Model time that a rank spends computing."""
        return sum(e.stop - e.start for e in self.events[rank] if e.slot[0].kind.is_compute)

    def bubble(self, rank: int) -> float:
        """Share of the makespan in which a rank does not compute."""
        return 1.0 - self.busy(rank) / self.makespan if self.makespan else 0.0

    def peak_live(self, rank: int, module: str, stage: int) -> int:
        """Return the most forwards of a stage that wait for their backward at one time."""
        live = peak = 0
        for event in self.events[rank]:
            action = event.slot[0]
            if (action.module, action.stage) == (module, stage) and action.kind.is_compute:
                live += 1 if action.kind is Kind.FORWARD else -1
                peak = max(peak, live)
        return peak


F, B = Kind.FORWARD, Kind.BACKWARD


def lower_bound(layout: Layout, costs: Costs) -> float:
    """Return the larger of two lower bounds of the time of a step.

    One: the first group's forward through the slowest encoder, a microbatch's forward and backward
    through the other ranks of the language pipeline, the work of one of its ranks, and the last
    group's backward. Two: the work of the busiest rank.
    """
    language = layout.language
    first = max((_way(layout, costs, each, F) for each in layout.encoders), default=0.0)
    last = max((_way(layout, costs, each, B) for each in layout.encoders), default=0.0)
    once = _cost(layout, costs, language, 0, F) + _cost(layout, costs, language, 0, B)
    held = len(language.stages) // language.grid.size(Axis.PP)
    latency = (language.grid.size(Axis.PP) - 1) * once
    through = first + latency + layout.samples.microbatches * held * once + last
    work = (
        sum(
            _cost(layout, costs, module, stage, kind) * layout.num_groups(module)
            for module, stage in ((layout[name], stage) for name, stage in role)
            for kind in (F, B)
        )
        for role in set(layout.roles)
    )
    return max(through, *work)


def _cost(layout: Layout, costs: Costs, module: ModuleLayout, stage: int, kind: Kind) -> float:
    """Return the time of one action of a stage: 0 for a backward that the stage does not run."""
    if kind is B and not needs_backward(layout, module, stage):
        return 0.0
    return costs.of(Action(module.name, stage, kind, 0))


def _way(layout: Layout, costs: Costs, module: ModuleLayout, kind: Kind) -> float:
    """Return the time of one group through all stages of an encoder."""
    return sum(_cost(layout, costs, module, stage.index, kind) for stage in module.stages)
