"""The course of a step in model time, and what one action costs.

Decides: the figures that are read off a step: makespan, bubble, activations alive, open sends.
Relies on: nothing.
Leaves: making the course to `simulate`.
"""

from dataclasses import dataclass, field

from mimo_launch.schedule.actions import Action, Kind, Slot


@dataclass(frozen=True, slots=True)
class Costs:
    """Model time of one forward and one backward of each module's stage on one index."""

    forward: dict[str, float] = field(default_factory=dict)
    backward: dict[str, float] = field(default_factory=dict)

    def of(self, action: Action) -> float:
        """Return the duration of a compute action."""
        table = self.forward if action.kind is Kind.FORWARD else self.backward
        return table.get(action.module, 1.0)


@dataclass(frozen=True, slots=True)
class Event:
    """One slot of one rank in model time.

    A compute lasts from when all its ranks are there, transfers from arrival to completion.
    """

    slot: Slot
    start: float
    stop: float


@dataclass(frozen=True, slots=True)
class Simulation:
    """What happened: events per rank in order, and every rank whose program is at fault.

    `peak_posted` is, per rank, the most sends that were posted and not yet received at one time.
    """

    events: tuple[tuple[Event, ...], ...]
    stuck: tuple[str, ...]
    peak_posted: tuple[int, ...] = ()

    @property
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
        """Most forwards of a stage whose backward has not run yet."""
        live = peak = 0
        for event in self.events[rank]:
            action = event.slot[0]
            if (action.module, action.stage) == (module, stage) and action.kind.is_compute:
                live += 1 if action.kind is Kind.FORWARD else -1
                peak = max(peak, live)
        return peak
