"""Run the programs of all ranks against a cost model, without any process.

Decides: whether the programs end, and when each action starts and stops in model time.
Relies on: programs from `generate`, partners from `channels`.
Leaves: drawing to `plan`.

Sends are rendezvous: a slot of transfers completes when every one of them has met its partner. An
exchange is a barrier of its bridge component. Passing under these rules means that no buffer is
needed to make progress; a transport with buffers can only be earlier.
"""

from collections import deque
from dataclasses import dataclass, field

from mimo_launch.layout.layout import Layout
from mimo_launch.schedule.actions import Action, Kind, Slot, format_slot
from mimo_launch.schedule.channels import component_of, is_sender, partners
from mimo_launch.schedule.generate import Programs


@dataclass(frozen=True, slots=True)
class Costs:
    """Model time of one forward and one backward of each module's stage on one microbatch."""

    forward: dict[str, float] = field(default_factory=dict)
    backward: dict[str, float] = field(default_factory=dict)

    def of(self, action: Action) -> float:
        """Return the duration of a compute action."""
        table = self.forward if action.kind is Kind.FORWARD else self.backward
        return table.get(action.module, 1.0)


@dataclass(frozen=True, slots=True)
class Event:
    """One slot of one rank in model time; transfers last from arrival to completion."""

    slot: Slot
    start: float
    stop: float


@dataclass(frozen=True, slots=True)
class Simulation:
    """What happened: events per rank in order, and every rank that could not go on."""

    events: tuple[tuple[Event, ...], ...]
    stuck: tuple[str, ...]

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


# What one rank waits for: the ends of its transfers that have not met their partner yet.
_Key = tuple[str, int | None, int, bool, int, int]


def simulate(layout: Layout, programs: Programs, costs: Costs | None = None) -> Simulation:
    """Return the course of one step; `stuck` is empty exactly if every rank reaches its end."""
    return _Simulator(layout, programs, costs or Costs()).run()


class _Simulator:
    def __init__(self, layout: Layout, programs: Programs, costs: Costs) -> None:
        self.layout, self.programs, self.costs = layout, programs, costs
        self.clock = [0.0] * len(programs)
        self.at = [0] * len(programs)
        self.events: list[list[Event]] = [[] for _ in programs]
        self.posted: dict[_Key, int] = {}
        self.open: list[int] = [0] * len(programs)
        self.release: list[float] = [0.0] * len(programs)
        self.arrived: dict[tuple[str, Kind, int, int], list[int]] = {}
        self.ready = deque(range(len(programs)))

    def run(self) -> Simulation:
        while self.ready:
            rank = self.ready.popleft()
            while self.at[rank] < len(self.programs[rank]) and self._enter(rank):
                pass
        stuck = tuple(
            f"rank {rank} waits in {format_slot(program[self.at[rank]])}"
            for rank, program in enumerate(self.programs)
            if self.at[rank] < len(program)
        )
        return Simulation(tuple(tuple(events) for events in self.events), stuck)

    def _enter(self, rank: int) -> bool:
        """Start the next slot of a rank; return whether it also ended."""
        slot = self.programs[rank][self.at[rank]]
        if slot[0].kind.is_compute:
            self._finish(rank, self.clock[rank] + self.costs.of(slot[0]))
            return True
        if slot[0].kind.is_collective:
            return self._meet_component(rank, slot[0])
        return self._post(rank, slot)

    def _finish(self, rank: int, stop: float) -> None:
        slot = self.programs[rank][self.at[rank]]
        self.events[rank].append(Event(slot, self.clock[rank], stop))
        self.clock[rank] = stop
        self.at[rank] += 1

    def _meet_component(self, rank: int, action: Action) -> bool:
        component = component_of(self.layout, rank, action.module)
        here = self.arrived.setdefault((action.module, action.kind, action.index, component[0]), [])
        here.append(rank)
        if len(here) < len(component):
            return False
        stop = max(self.clock[member] for member in here)
        for member in here:
            self._finish(member, stop)
            if member != rank:
                self.ready.append(member)
        return True

    def _post(self, rank: int, slot: Slot) -> bool:
        """Post every transfer of a slot and wake the partners that waited for one."""
        keys = [
            (a.module, a.stage_edge, a.index, a.kind in (Kind.SEND_F, Kind.RECV_F), *pair)
            for a in (_Edge(self.layout, action) for action in slot)
            for pair in a.pairs(rank)
        ]
        self.open[rank] = len(keys)
        self.release[rank] = self.clock[rank]
        for key in keys:
            partner = self.posted.pop(key, None)
            if partner is None:
                self.posted[key] = rank
                continue
            meeting = max(self.clock[rank], self.clock[partner])
            for end in (rank, partner):
                self.open[end] -= 1
                self.release[end] = max(self.release[end], meeting)
            if self.open[partner] == 0:
                self._finish(partner, self.release[partner])
                self.ready.append(partner)
        if self.open[rank]:
            return False
        self._finish(rank, self.release[rank])
        return True


class _Edge:
    """An action with the edge it runs on, named by its upper end."""

    def __init__(self, layout: Layout, action: Action) -> None:
        self.layout, self.action = layout, action
        self.module, self.index, self.kind = action.module, action.index, action.kind
        # A receive going down and a send going up stand at the lower end of their edge.
        lower = action.kind in (Kind.RECV_F, Kind.SEND_B)
        self.stage_edge = None if action.stage is None else action.stage - lower

    def pairs(self, rank: int) -> list[tuple[int, int]]:
        """Return (sender, receiver) of each transfer of the action."""
        others = partners(self.layout, rank, self.action)
        if is_sender(self.kind):
            return [(rank, other) for other in others]
        return [(other, rank) for other in others]
