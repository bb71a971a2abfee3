"""Where the time of measured steps went, per rank: what the timelines of all ranks say together.

Decides: what counts as work, as moving data and as waiting.
Relies on: `comm.step_clock` for times; the layout for who waits for whom.
Leaves: measuring to `measure`, showing to `cli`.

A rank that waits in a transfer cannot know how long its data were on the way. The timeline of its
peer tells: before the peer was ready to send, the rank waited; after that, data moved. A rank waits
in a collective until the last of its ranks is there. What no span covers is waiting, too: for the
host, or for sends to leave. Waiting inside a forward or backward (of tp ranks, or of FSDP for
weights and gradients) cannot be told from computing and counts as that, but for meetings where
tokens travel to experts: the rank that spends the shortest time in one has come last, so that is
how long data moved, and the others waited for the rest.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields

from mimo_launch.comm.step_clock import Noted, Section, TokenExchange
from mimo_launch.layout.layout import Layout
from mimo_launch.schedule.actions import Action, Slot
from mimo_launch.schedule.channels import channels, component_of, is_sender, message

Span = tuple[float, float]
# Who meets, and how often they have met in the step.
_Named = tuple[TokenExchange, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Shares of a rank's time; their sum is 1."""

    compute: float
    all_to_all: float
    bridge: float
    p2p: float
    gradient_sync: float
    optimizer: float
    idle: float


@dataclass(slots=True)
class RankStep:
    """One step of one rank: its slots in order, meetings inside them, its sections, and its end.

    Meetings have their seconds, and a name that is the same on all ranks that meet.
    """

    slots: list[tuple[Slot, float, float]] = field(default_factory=list)
    meetings: list[tuple[_Named, float]] = field(default_factory=list)
    sections: dict[Section, Span] = field(default_factory=dict)

    @property
    def span(self) -> Span:
        """Start and end of the step."""
        return self.sections[Section.STEP]


def steps_of(noted: Sequence[Noted], shift: float = 0.0) -> list[RankStep]:
    """Return the steps that a clock has noted, all times later by `shift`."""
    steps, step, times = [], RankStep(), Counter[TokenExchange]()
    for what, start, end in noted:
        if isinstance(what, TokenExchange):
            times[what] += 1
            step.meetings.append(((what, times[what]), end - start))
            continue
        if not isinstance(what, Section):
            step.slots.append((what, start + shift, end + shift))
            continue
        step.sections[what] = (start + shift, end + shift)
        if what is Section.STEP:  # The last to end.
            steps.append(step)
            step = RankStep()
            times.clear()
    return steps


def step_seconds(by_rank: Sequence[Sequence[RankStep]]) -> list[float]:
    """Return how long each step took, from the end of the one before to its own on the last rank.

    The first one begins when the first rank begins it.
    """
    ends = [max(step.span[1] for step in steps) for steps in zip(*by_rank, strict=True)]
    begin = min(steps[0].span[0] for steps in by_rank)
    return [end - before for before, end in zip([begin, *ends], ends, strict=False)]


def shares_of(layout: Layout, by_rank: Sequence[Sequence[RankStep]]) -> list[Shares]:
    """Return the shares of each rank over all steps."""
    spent = [dict.fromkeys((item.name for item in fields(Shares)), 0.0) for _ in by_rank]
    for steps in zip(*by_rank, strict=True):
        ready, shortest = _ready(layout, steps), _shortest(steps)
        for rank, step in enumerate(steps):
            for slot, start, end in step.slots:
                _count_slot(layout, rank, slot, (start, end), ready, spent[rank])
            for name, seconds in step.meetings:
                spent[rank]["compute"] -= seconds
                spent[rank]["all_to_all"] += shortest[name]
            _count_sections(layout, rank, steps, spent[rank])
    return [
        _as_shares(seconds, steps[-1].span[1] - steps[0].span[0])
        for seconds, steps in zip(spent, by_rank, strict=True)
    ]


def bubbles_of(by_rank: Sequence[Sequence[RankStep]]) -> list[float | None]:
    """Return the share of the programs' time in which each rank does not compute.

    A program's time goes from the first slot of any rank to the end of the last one, as in `plan`.
    None for a rank without work.
    """
    total, busy = 0.0, [0.0] * len(by_rank)
    for steps in zip(*by_rank, strict=True):
        times = [(start, end) for step in steps for _, start, end in step.slots]
        if times:  # A step without a label runs no program.
            total += max(end for _, end in times) - min(start for start, _ in times)
        for rank, step in enumerate(steps):
            busy[rank] += sum(e - s for slot, s, e in step.slots if slot[0].kind.is_compute)
    return [1 - seconds / total if seconds else None for seconds in busy]


# When a message of a channel, or the last rank of an exchange, was ready.
_Ready = dict[object, float]


def _ready(layout: Layout, steps: Sequence[RankStep]) -> _Ready:
    ready: _Ready = {}
    for rank, step in enumerate(steps):
        for slot, start, _ in step.slots:
            for action in slot:
                if action.kind.is_collective:
                    key = (action, component_of(layout, rank, action.module))
                    ready[key] = max(ready.get(key, start), start)
                elif is_sender(action.kind):
                    for channel in channels(layout, rank, action):
                        ready[channel, message(action)] = start
    return ready


def _shortest(steps: Sequence[RankStep]) -> dict[_Named, float]:
    """Return the shortest time that any of its ranks was in each meeting."""
    shortest: dict[_Named, float] = {}
    for step in steps:
        for name, seconds in step.meetings:
            shortest[name] = min(seconds, shortest.get(name, seconds))
    return shortest


def _count_slot(
    layout: Layout, rank: int, slot: Slot, span: Span, ready: _Ready, spent: dict[str, float]
) -> None:
    """Add the time of a slot to what it was spent on; waiting is left over for `idle`."""
    start, end = span
    if slot[0].kind.is_compute:
        spent["compute"] += end - start
        return
    awaited = [time for action in slot for time in _awaited(layout, rank, action, ready)]
    moving = end - max([start, *(min(end, time) for time in awaited)])
    for action in slot:
        spent["bridge" if action.stage is None else "p2p"] += moving / len(slot)


def _awaited(layout: Layout, rank: int, action: Action, ready: _Ready) -> list[float]:
    """Return when those were ready whom an action waits for; a send waits for nobody."""
    if action.kind.is_collective:
        return [ready[action, component_of(layout, rank, action.module)]]
    if is_sender(action.kind):
        return []
    keys = [(channel, message(action)) for channel in channels(layout, rank, action)]
    return [ready[key] for key in keys if key in ready]


def _count_sections(
    layout: Layout, rank: int, steps: Sequence[RankStep], spent: dict[str, float]
) -> None:
    sections = steps[rank].sections
    met = {
        Section.PARTIAL_SUMS: _partners_in_sums(layout, rank),
        Section.TOTALS: range(len(steps)),
    }
    for section, ranks in met.items():
        if section in sections:
            start, end = sections[section]
            others = (steps[other].sections.get(section, (start, end)) for other in ranks)
            last = max([start, *(min(end, begin) for begin, _ in others)])
            spent["gradient_sync"] += end - last
    start, end = sections.get(Section.UPDATE, (0.0, 0.0))
    spent["optimizer"] += end - start


def _partners_in_sums(layout: Layout, rank: int) -> set[int]:
    """Return the ranks with which a rank sums terms of gradients: tp, and a tied embedding's."""
    return {
        other
        for group in layout.groups
        if rank in group.ranks and group.name.endswith((".tp", ".tied"))
        for other in group.ranks
    }


def _as_shares(seconds: dict[str, float], total: float) -> Shares:
    parts = {name: spent / total for name, spent in seconds.items() if name != "idle"}
    return Shares(**parts, idle=1 - sum(parts.values()))
