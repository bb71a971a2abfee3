"""Finds where the time of measured steps went on each rank, from the timelines of all ranks.

Decides: how the ranks' timelines are aligned; what counts as computing, as moving data and as
waiting.
Relies on: `comm.step_clock` for times; the layout for the peers that a rank waits for.
Leaves: measuring to `measure_steps`, showing to `cli`.

A rank that waits in a transfer cannot know how long its data was in transit. The timeline of its
peer shows it: before the peer was ready to send, the rank waited; after that, data moved. A rank
waits in a collective until the last rank arrives. Time that no span covers is also waiting: for the
host, or for sends to leave. Waiting inside a forward or backward (for tp ranks, or for FSDP's
weights and gradients) looks like computing and counts as computing, except in the exchanges that
move tokens to experts: the rank with the shortest time in an exchange came last, so data moved for
that time, and the others waited for the rest.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property

from mimo_launch.bench.result import Shares
from mimo_launch.comm.step_clock import Noted, Section, TokenExchange
from mimo_launch.layout.layout import Layout
from mimo_launch.layout.rank_groups import groups_of
from mimo_launch.schedule.actions import Slot
from mimo_launch.schedule.channels import channels, component_of, message
from mimo_launch.train.events import Reading

Span = tuple[float, float]
# An exchange of tokens, and its number among the exchanges of the same ranks in the step.
_Named = tuple[TokenExchange, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One rank's measurements; `began` is the time on its host when the timed steps began.

    `allocated` holds the peaks of the GPU's allocator, in tensors and reserved; `used` is all
    memory of the GPU in use. `readings` has the reading of each timed step, if any was read.
    """

    host: str
    began: float
    noted: list[Noted]
    allocated: tuple[int, int] | None
    used: int | None
    resident: int
    skipped: int
    readings: Sequence[Reading] = ()


@dataclass(slots=True)
class RankStep:
    """One step of one rank: its slots in order, the exchanges of tokens inside them, its sections.

    `meetings` has the name of each exchange, equal on all its ranks, and its seconds on this rank.
    """

    slots: list[tuple[Slot, float, float]] = field(default_factory=list)
    meetings: list[tuple[_Named, float]] = field(default_factory=list)
    sections: dict[Section, Span] = field(default_factory=dict)

    @property
    def span(self) -> Span:
        """Start and end of the step."""
        return self.sections[Section.STEP]


def steps_of(noted: Sequence[Noted], shift: float = 0.0) -> list[RankStep]:
    """Return the steps that a clock has noted, with `shift` added to all times."""
    steps, step, times = [], RankStep(), Counter[TokenExchange]()
    for what, start, end in noted:
        if isinstance(what, TokenExchange):
            times[what] += 1
            step.meetings.append(((what, times[what]), end - start))
            continue
        if not isinstance(what, Section):
            step.slots.append((what, start + shift, end + shift))
            continue
        first, _ = step.sections.get(what, (start + shift, 0.0))
        step.sections[what] = (first, end + shift)
        if what is Section.STEP:  # This section ends last.
            steps.append(step)
            step = RankStep()
            times.clear()
    return steps


def align(measured: Sequence[Measured]) -> list[list[RankStep]]:
    """Return the steps of all ranks on one clock: on every host, 0 is when its first rank began.

    All ranks left the same barrier then. Ranks on one host share its clock.
    """
    zeros: dict[str, float] = {}
    for each in measured:
        zeros[each.host] = min(zeros.get(each.host, each.began), each.began)
    return [steps_of(each.noted, -zeros[each.host]) for each in measured]


def step_seconds(by_rank: Sequence[Sequence[RankStep]]) -> list[float]:
    """Return the time of each step, from the end of the previous step to its end on the last rank.

    The first step begins when the first rank begins it.
    """
    ends = [max(step.span[1] for step in steps) for steps in zip(*by_rank, strict=True)]
    begin = min(steps[0].span[0] for steps in by_rank)
    return [end - before for before, end in zip([begin, *ends], ends, strict=False)]


def shares_of(layout: Layout, by_rank: Sequence[Sequence[RankStep]]) -> list[Shares]:
    """Return the shares of each rank over all steps."""
    spent = [dict.fromkeys((item.name for item in fields(Shares)), 0.0) for _ in by_rank]
    for each in zip(*by_rank, strict=True):
        step = _JobStep(layout, each)
        for rank, own in enumerate(spent):
            step.count_slots(rank, own)
            step.count_exchanges(rank, own)
            step.count_sections(rank, own)
    shares = []
    for seconds, steps in zip(spent, by_rank, strict=True):
        total = steps[-1].span[1] - steps[0].span[0]
        parts = {name: part / total for name, part in seconds.items() if name != "idle"}
        shares.append(Shares(**parts, idle=1 - sum(parts.values())))
    return shares


@dataclass(frozen=True)
class _JobStep:
    """One step of all ranks; counts where the time of a rank went.

    The rest of the time is waiting, for `idle`.
    """

    layout: Layout
    ranks: Sequence[RankStep]

    @cached_property
    def ready(self) -> dict[object, float]:
        """When the sender of a message, or the last rank of a collective, was ready."""
        ready: dict[object, float] = {}
        for rank, step in enumerate(self.ranks):
            for slot, start, _ in step.slots:
                for action in slot:
                    if action.kind.is_collective:
                        key = (action, component_of(self.layout, rank, action.module))
                        ready[key] = max(ready.get(key, start), start)
                    elif action.kind.sends:
                        for channel in channels(self.layout, rank, action):
                            ready[channel, message(action)] = start
        return ready

    @cached_property
    def shortest(self) -> dict[_Named, float]:
        """The shortest time of any rank in each exchange."""
        shortest: dict[_Named, float] = {}
        for step in self.ranks:
            for name, seconds in step.meetings:
                shortest[name] = min(seconds, shortest.get(name, seconds))
        return shortest

    def count_slots(self, rank: int, spent: dict[str, float]) -> None:
        """Add the times of a rank's slots to `spent`, by what they were spent on."""
        for slot, start, end in self.ranks[rank].slots:
            if slot[0].kind.is_compute:
                spent["compute"] += end - start
                continue
            awaited = []
            for action in slot:
                if action.kind.is_collective:
                    key = (action, component_of(self.layout, rank, action.module))
                    awaited.append(self.ready[key])
                elif not action.kind.sends:
                    senders = channels(self.layout, rank, action)
                    keys = [(channel, message(action)) for channel in senders]
                    awaited += [self.ready[key] for key in keys if key in self.ready]
            moving = end - max([start, *(min(end, time) for time in awaited)])
            for action in slot:
                spent["bridge" if action.stage is None else "p2p"] += moving / len(slot)

    def count_exchanges(self, rank: int, spent: dict[str, float]) -> None:
        """Count exchanges of tokens, which happen inside computes."""
        for name, seconds in self.ranks[rank].meetings:
            spent["compute"] -= seconds
            spent["all_to_all"] += self.shortest[name]

    def count_sections(self, rank: int, spent: dict[str, float]) -> None:
        """Count the sections after the program: sums of gradients and the optimizer."""
        sections = self.ranks[rank].sections
        # The ranks that sum gradient terms with this one: its tp ranks, ranks of a tied embedding.
        partners = {
            other
            for group in groups_of(self.layout, rank)
            if group.name.endswith((".tp", ".tied"))
            for other in group.ranks
        }
        met = {Section.PARTIAL_SUMS: partners, Section.TOTALS: range(len(self.ranks))}
        for section, ranks in met.items():
            if section in sections:
                start, end = sections[section]
                others = (self.ranks[other].sections.get(section, (start, end)) for other in ranks)
                last = max([start, *(min(end, begin) for begin, _ in others)])
                spent["gradient_sync"] += end - last
        start, end = sections.get(Section.UPDATE, (0.0, 0.0))
        spent["optimizer"] += end - start


def bubbles_of(by_rank: Sequence[Sequence[RankStep]]) -> list[float | None]:
    """Return the share of the programs' time in which each rank does not compute.

    As in `plan`, a program's time runs from the first slot of any rank to the end of the last one.
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
