"""Runs the programs of all ranks in model time, without any process: the proof that they end.

Decides: when each action starts and stops, and whether a rank waits forever or acts before its
input is ready; that one rank may represent its class, and when all ranks are simulated.
Relies on: programs from `generate`, partners and teams from `channels`, data flow from
`data_flow`, classes of ranks from `rank_classes`.
Leaves: drawing to `drawing`, showing a deadlock to `cli`.

A send is posted and the program continues; its rows stay with the sender until the receive matches
it, so no transport needs a buffer. A slot ends when all its receives have met their sends and the
transfers have taken their time. Messages of a channel meet in the order in which they are posted. A
compute is a barrier of its team, an exchange a barrier of its component. Fewer barriers, other
costs or more buffers can only remove waiting, so programs that end here end everywhere. With
`rendezvous` a send also blocks its rank until it is received.

A rank stops at a fault of its program: an action before its input, or an action that runs twice. A
send that is never received is also a fault.

A class waits for every class that any of its ranks waits for. So if the classes reach their ends,
all ranks do, no later; and they end at the same time, because every compute waits for all ranks of
its stage. If a class does not reach its end, that proves nothing, and all ranks are simulated.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from mimo_launch.layout.layout import Layout, Role
from mimo_launch.schedule.actions import Action, Program, format_slot
from mimo_launch.schedule.channels import Channel, Meetings, message
from mimo_launch.schedule.data_flow import flow_of
from mimo_launch.schedule.generate import Programs
from mimo_launch.schedule.rank_classes import ClassMeetings, refined
from mimo_launch.schedule.simulation_result import Costs, Event, Simulation


class DeadlockError(Exception):
    """The programs of a layout do not end; `stuck` says where each rank waits."""

    def __init__(self, stuck: tuple[str, ...]) -> None:
        super().__init__(f"{len(stuck)} ranks cannot go on: {'; '.join(stuck[:4])}")
        self.stuck = stuck


def proven(layout: Layout, programs: Programs, costs: Costs | None = None) -> Simulation:
    """Return the course of a step on all ranks.

    Raises: DeadlockError if a rank does not reach its end.
    """
    simulation = by_class(layout, programs, costs)
    if simulation.stuck:
        simulation = simulate(layout, programs, costs)
    if simulation.stuck:
        raise DeadlockError(simulation.stuck)
    return simulation


def by_class(layout: Layout, programs: Programs, costs: Costs | None = None) -> Simulation:
    """Return the course of a step; one rank of each class is simulated, and all share its events.

    `stuck` names only the first ranks of classes.
    """
    labels = [(role, id(each)) for role, each in zip(layout.roles, programs, strict=True)]
    meetings = ClassMeetings(layout, refined(labels, layout.modules))
    return simulate(layout, programs, costs, meetings=meetings).spread(meetings.stand_ins)


def simulate(
    layout: Layout,
    programs: tuple[Program, ...],
    costs: Costs | None = None,
    *,
    rendezvous: bool = False,
    meetings: Meetings | None = None,
    finds_faults: bool = True,
) -> Simulation:
    """Return the course of one step; `stuck` is empty exactly if every rank reaches its end.

    `meetings` are between all ranks (default) or between classes. With classes only the first rank
    of each class takes part, and the others have no events. Without `finds_faults`, ranks go on at
    a fault of their program: for estimates, since the plan that runs is proven.
    """
    meetings = meetings or Meetings(layout)
    faults = _faults(layout, programs, meetings.ranks) if finds_faults else {}
    return _Simulator(programs, costs or Costs(), rendezvous, meetings, faults).run()


@dataclass(slots=True)
class _End:
    """One end of a message: the posted action, its rank and its time."""

    action: Action
    rank: int
    time: float


@dataclass(slots=True)
class _Line:
    """Posted sends and receives of a channel that have not met, in order.

    One of the two is empty, unless their first messages differ: then they never meet.
    """

    sends: deque[_End] = field(default_factory=deque)
    receives: deque[_End] = field(default_factory=deque)


class _Simulator:
    def __init__(
        self,
        programs: tuple[Program, ...],
        costs: Costs,
        rendezvous: bool,
        meetings: Meetings,
        faults: Mapping[int, tuple[int, str]],
    ) -> None:
        self.programs, self.costs, self.rendezvous = programs, costs, rendezvous
        self.clock = [0.0] * len(programs)
        self.at = [0] * len(programs)
        self.events: list[list[Event]] = [[] for _ in programs]
        self.lines: dict[Channel, _Line] = {}
        self.open: list[int] = [0] * len(programs)
        self.release: list[float] = [0.0] * len(programs)
        self.arrived: dict[tuple[Action, int], list[int]] = {}
        self.posted: list[list[tuple[float, int]]] = [[] for _ in programs]
        self.meetings = meetings
        self.faults = faults
        self.ready = deque(meetings.ranks)

    def run(self) -> Simulation:
        ranks = tuple(self.ready)
        while self.ready:
            rank = self.ready.popleft()
            while self.at[rank] < self._stop(rank) and self._enter(rank):
                pass
        unmet = {
            end.rank: f"rank {end.rank} posts {end.action}, which rank {channel.dst} never receives"
            for channel, line in self.lines.items()
            for end in reversed(line.sends)
        }
        stuck = [self._said(rank, unmet.get(rank)) for rank in ranks]
        # At equal times -1 sorts first: a send that ends makes room for a send that starts.
        changes = [[change for _, change in sorted(each)] for each in self.posted]
        return Simulation(
            tuple(tuple(events) for events in self.events),
            tuple(each for each in stuck if each),
            tuple(max(accumulate(each, initial=0)) if each else 0 for each in changes),
        )

    def _stop(self, rank: int) -> int:
        return self.faults[rank][0] if rank in self.faults else len(self.programs[rank])

    def _said(self, rank: int, unmet: str | None) -> str | None:
        position, program = self.at[rank], self.programs[rank]
        if position < self._stop(rank):
            return f"rank {rank} waits in {format_slot(program[position])}"
        return f"rank {rank} {self.faults[rank][1]}" if rank in self.faults else unmet

    def _enter(self, rank: int) -> bool:
        """Start the next slot of a rank; return whether it also ended."""
        slot = self.programs[rank][self.at[rank]]
        if slot[0].kind.is_compute:
            return self._meet(rank, slot[0], self.meetings.team(rank, slot[0]))
        if slot[0].kind.is_collective:
            return self._meet(rank, slot[0], self.meetings.component(rank, slot[0].module))
        if slot[0].kind.is_transfer:
            return self._post(rank)
        return self._meet(rank, slot[0], self.meetings.team(rank, slot[0]))

    def _finish(self, rank: int, start: float, stop: float) -> None:
        slot = self.programs[rank][self.at[rank]]
        self.events[rank].append(Event(slot, start, stop))
        self.clock[rank] = stop
        self.at[rank] += 1

    def _meet(self, rank: int, action: Action, ranks: Sequence[int]) -> bool:
        """Wait for all ranks of a team or a component; the last one to arrive releases all."""
        here = self.arrived.setdefault((action, ranks[0]), [])
        here.append(rank)
        if len(here) < len(ranks):
            return False
        begin = max(self.clock[member] for member in here)
        is_compute = action.kind.is_compute
        stop = begin + (self.costs.of if is_compute else self.costs.of_transfer)(action)
        for member in here:
            self._finish(member, begin if is_compute else self.clock[member], stop)
            if member != rank:
                self.ready.append(member)
        return True

    def _post(self, rank: int) -> bool:
        """Post every transfer of a slot; wake the partners that wait for one of them."""
        slot, now = self.programs[rank][self.at[rank]], self.clock[rank]
        self.release[rank] = now
        used = [
            (channel, _End(action, rank, now), action.kind.sends)
            for action in slot
            for channel in self.meetings.channels(rank, action)
        ]
        self.open[rank] = sum(self.rendezvous or not sends for _, _, sends in used)
        for channel, end, sends in used:
            line = self.lines.setdefault(channel, _Line())
            (line.sends if sends else line.receives).append(end)
            self._match(line, rank)
        if self.open[rank]:
            return False
        self._finish(rank, now, self.release[rank])
        return True

    def _match(self, line: _Line, poster: int) -> None:
        """Match sends with receives in order, as long as the first of both is the same message."""
        while line.sends and line.receives:
            sent, got = line.sends[0], line.receives[0]
            if message(sent.action) != message(got.action):
                return
            line.sends.popleft()
            line.receives.popleft()
            meeting = max(sent.time + self.costs.of_transfer(sent.action), got.time)
            self.posted[sent.rank] += [(sent.time, 1), (meeting, -1)]
            for end in (sent, got) if self.rendezvous else (got,):
                self.open[end.rank] -= 1
                self.release[end.rank] = max(self.release[end.rank], meeting)
                if end.rank != poster and self.open[end.rank] == 0:
                    self._finish(end.rank, end.time, self.release[end.rank])
                    self.ready.append(end.rank)


def _faults(
    layout: Layout, programs: tuple[Program, ...], ranks: Iterable[int]
) -> dict[int, tuple[int, str]]:
    """Return the first fault of each faulty rank; it is the same for equal role and program."""
    found: dict[tuple[Role, int], tuple[int, str] | None] = {}
    faults = {}
    for rank in ranks:
        program = programs[rank]
        key = layout.roles[rank], id(program)
        if key not in found:
            found[key] = flow_of(layout).first_fault(key[0], program)
        fault = found[key]
        if fault is not None:
            faults[rank] = fault
    return faults
