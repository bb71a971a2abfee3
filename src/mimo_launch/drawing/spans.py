"""The actions of each rank and their times, as spans: one form for planned and measured steps.

Decides: the timeline that drawings and traces read, and its JSON (docs/timeline.md).
Relies on: actions as text that parses back, and nothing else from a simulation or a run.
Leaves: pictures to `svg`, Perfetto to `trace`.
"""

import json
from collections.abc import Iterator, Sequence
from enum import StrEnum

from mimo_launch.diag.frozen import frozen
from mimo_launch.drawing.rows import Ranks
from mimo_launch.layout.layout import Layout
from mimo_launch.plan.plan import Plan
from mimo_launch.schedule.actions import Action, Slot
from mimo_launch.schedule.channels import partners
from mimo_launch.schedule.simulation_result import Simulation

VERSION = 1
# Pictures and traces show at most this many ranks one by one, unless a caller asks for others.
MOST_RANKS = 64


class Unit(StrEnum):
    """The unit of time: model units or estimated seconds if planned, seconds if measured."""

    MODEL = "model units"
    ESTIMATED = "estimated seconds"
    SECONDS = "seconds"

    @property
    def idle(self) -> str:
        """Return the name of idle time: `bubble` only for estimated or measured time."""
        return "idle units" if self is Unit.MODEL else "bubble"


@frozen
class Span:
    """One action of one rank, from its start to its end.

    A transfer starts when its rank is ready for it, so its span includes the wait. `peers` are the
    targets of a send; other spans have none.
    """

    rank: int
    action: Action
    start: float
    stop: float
    peers: Ranks = ()

    @property
    def is_compute(self) -> bool:
        """Whether the span is a forward or a backward."""
        return self.action.kind.is_compute


@frozen
class Timeline:
    """The spans of `num_ranks` ranks; time starts at 0."""

    unit: Unit
    num_ranks: int
    spans: tuple[Span, ...]

    def __post_init__(self) -> None:
        for span in self.spans:
            if not (0 <= span.rank < self.num_ranks and 0 <= span.start <= span.stop):
                raise ValueError(f"{span} is outside of {self.num_ranks} ranks or ends too early")

    @property
    def makespan(self) -> float:
        """When the last span ends."""
        return max((span.stop for span in self.spans), default=0.0)

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules that occur: language first, then the others by name."""
        names = {span.action.module for span in self.spans if span.is_compute}
        return tuple(sorted(names, key=lambda name: (name != "language", name)))

    def by_rank(self) -> tuple[tuple[Span, ...], ...]:
        """Return the spans of each rank in the order of their starts."""
        rows: list[list[Span]] = [[] for _ in range(self.num_ranks)]
        for span in sorted(self.spans, key=lambda span: span.start):
            rows[span.rank].append(span)
        return tuple(tuple(row) for row in rows)


def alike(timeline: Timeline) -> tuple[Ranks, ...]:
    """Return each rank by itself; above 64 ranks, group those that hold the same stages."""
    if timeline.num_ranks <= MOST_RANKS:
        return tuple((rank,) for rank in range(timeline.num_ranks))
    ranks_of: dict[tuple[str, ...], list[int]] = {}
    for rank, spans in enumerate(timeline.by_rank()):
        ranks_of.setdefault(role_of_spans(spans), []).append(rank)
    return tuple(map(tuple, ranks_of.values()))


def role_of_spans(spans: Sequence[Span]) -> tuple[str, ...]:
    """Return the stages that a rank's spans compute, as `module.stage`, encoders first."""
    held = {(span.action.module, span.action.stage) for span in spans if span.is_compute}
    ordered = sorted(held, key=lambda each: (each[0] == "language", each[0], each[1] or 0))
    return tuple(f"{module}.{stage}" for module, stage in ordered)


def bubble_of(spans: Sequence[Span], makespan: float) -> float:
    """Return the share of the makespan in which a rank with these spans does not compute."""
    busy = sum(span.stop - span.start for span in spans if span.is_compute)
    return 1.0 - busy / makespan if makespan else 0.0


def planned(plan: Plan) -> Timeline:
    """Return the timeline of a planned training step in model units.

    Raises: DeadlockError if the programs do not end.
    """
    return simulated(plan.layout, plan.simulation, Unit.MODEL)


def simulated(layout: Layout, simulation: Simulation, unit: Unit) -> Timeline:
    """Return the timeline of a simulated step; transfers of one slot have equal times."""
    spans = (
        Span(rank, action, event.start, event.stop, _peers(layout, rank, action))
        for rank, events in enumerate(simulation.events)
        for event in events
        for action in _drawn(event.slot)
    )
    return Timeline(unit, layout.world_size, tuple(spans))


def measured(layout: Layout, by_rank: Sequence[Sequence[tuple[Slot, float, float]]]) -> Timeline:
    """Return the timeline of a real step from each rank's slots, with start and end in seconds.

    Time starts with the first slot of any rank; all ranks must read the same clock.
    """
    begin = min((start for times in by_rank for _, start, _ in times), default=0.0)
    spans = (
        Span(rank, action, start - begin, stop - begin, _peers(layout, rank, action))
        for rank, times in enumerate(by_rank)
        for slot, start, stop in times
        for action in _drawn(slot)
    )
    return Timeline(Unit.SECONDS, len(by_rank), tuple(spans))


def _drawn(slot: Slot) -> Iterator[Action]:
    """Yield the actions to draw; sums of gradients are part of their backwards."""
    for action in slot:
        if action.kind.is_compute or action.kind.is_transfer or action.kind.is_collective:
            yield action


def _peers(layout: Layout, rank: int, action: Action) -> Ranks:
    return partners(layout, rank, action) if action.kind.sends else ()


def timeline_json(timeline: Timeline) -> str:
    """Return a timeline as JSON, one span per line."""
    spans = (
        {
            "rank": span.rank,
            "action": str(span.action),
            "start": span.start,
            "stop": span.stop,
            **({"peers": span.peers} if span.peers else {}),
        }
        for span in timeline.spans
    )
    lines = ",\n".join(f"  {json.dumps(each)}" for each in spans)
    head = f'"version": {VERSION}, "unit": "{timeline.unit}", "num_ranks": {timeline.num_ranks}'
    return f'{{{head}, "spans": [\n{lines}\n]}}\n'


def describe(action: Action) -> str:
    """Return an action in words, such as `vision bridge: send gradient 3`."""
    names = {"F": "forward", "B": "backward", "SEND": "send", "RECV": "receive"}
    verb, _, way = action.kind.value.partition("_")
    what = names.get(verb, verb.lower()) + (" gradient" if way == "B" else "")
    place = "bridge" if action.stage is None else f"stage {action.stage}"
    return f"{action.module} {place}: {what} {action.index}"
