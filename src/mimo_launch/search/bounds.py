"""Bounds of the time and memory of a layout that need no plan: no program, no simulation.

Decides: what a step takes at least, from the work of the busiest ranks and the longest chain
through a pipeline; what a rank holds at least at one moment of a step.
Relies on: the seconds and bytes of single stages, by `estimate`; they are kept for all layouts that
cut a module alike.
Leaves: which layouts are planned to `advice`.

A layout with a bound above the best plan cannot be better. Bounds are near the estimates: what they
leave out are transfers, reductions and ranks that wait for others in the middle of a step.
"""

from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache

from mimo_launch.diag.frozen import frozen
from mimo_launch.estimate.alike_stages import key_of_module, key_of_stage
from mimo_launch.estimate.cost_model import StageCost
from mimo_launch.estimate.estimates import Estimator
from mimo_launch.estimate.memory import StageMemory, stage_memory
from mimo_launch.estimate.memory_peak import GB
from mimo_launch.layout.layout import Layout, ModuleLayout
from mimo_launch.schedule.actions import Kind
from mimo_launch.schedule.data_flow import needs_backward
from mimo_launch.schedule.orders import PipelineRank, works_of
from mimo_launch.spec.base import Axis
from mimo_launch.spec.sections import ScheduleKind


def least_seconds(estimator: Estimator, enough: float = float("inf")) -> float:
    """Return the least seconds that a step of a legal spec takes; fewer if these are `enough`.

    To deal out samples to encoders takes most of the time of a bound, and a bound that is `enough`
    often needs none.
    """
    layout, model = estimator.layout, estimator.model
    if enough < float("inf") and (reading := model.least_reading) >= enough:
        return reading
    costs, busiest, update = _spent(layout, model.stages), 0.0, 0.0
    for role in filter(None, set(layout.roles)):
        last = min((costs[each].last for each in role if costs[each].trains), default=0.0)
        busiest = max(busiest, sum(costs[each].whole for each in role) + last)
        update = max(update, sum(model.stages[each].update for each in role))
    present = max(busiest, _chain(layout, costs)) + update + model.after
    return max(present, model.reading)


@frozen
class _Spent:
    """Seconds of all forwards and backwards of a stage; of the shortest forward and backward.

    `first` is in the first forward alone, and in `forwards`; `last` follows the last backward.
    """

    forwards: float
    backwards: float
    forward: float
    backward: float
    first: float
    last: float
    trains: bool

    @property
    def whole(self) -> float:
        """Seconds of all forwards and backwards."""
        return self.forwards + self.backwards

    @property
    def least(self) -> float:
        """Seconds of the shortest forward and backward."""
        return self.forward + self.backward


def _spent(
    layout: Layout, costs: Mapping[tuple[str, int], StageCost]
) -> dict[tuple[str, int], _Spent]:
    """Return the seconds that each stage computes in a step; frozen ones have no backward."""
    found = {}
    for (name, stage), cost in costs.items():
        trains = needs_backward(layout, layout[name], stage)
        found[name, stage] = _Spent(
            forwards=cost.first + sum(cost.forwards),
            backwards=sum(cost.backwards) if trains else 0.0,
            forward=min(cost.forwards),
            backward=min(cost.backwards) if trains else 0.0,
            first=cost.first,
            last=cost.reduction if trains else 0.0,
            trains=trains,
        )
    return found


def _chain(layout: Layout, costs: Mapping[tuple[str, int], _Spent]) -> float:
    """Return the longest chain: encoders, the pipeline of language, and back."""
    language, found = layout.language, 0.0

    def of(module: ModuleLayout) -> list[_Spent]:
        return [costs[module.name, stage.index] for stage in module.stages]

    shared = [each for each in layout.encoders if each.in_phases]
    # A pipeline drains between two groups of encoders that share its ranks.
    drains = bool(shared) and layout.is_star and layout.schedule != "bubble_filling"
    phases = layout.num_groups(shared[0]) if drains else 1
    ahead, first, depth, stages = 0.0, 0.0, language.grid.size(Axis.PP), of(language)
    for number, cost in enumerate(stages[:depth]):
        # A rank with several stages begins with the first of them, and ends with it.
        whole = sum(each.whole for each in stages[number::depth])
        found = max(found, phases * ahead + first + whole)
        ahead, first = ahead + cost.least, first + cost.first
    # The reduction after the last backward delays no other module.
    ends = [stages[0].last]
    for each in layout.encoders:
        seconds = _beside(layout, each, of(each), drains=drains and each.in_phases)
        ends.append(seconds + of(each)[0].last)
    return found + max(ends)


def _beside(
    layout: Layout, encoder: ModuleLayout, costs: Sequence[_Spent], *, drains: bool
) -> float:
    """Return the seconds of an encoder in a chain through it, language and back.

    Without backwards in its first stages, it is ahead of its later ones, which begin a group after
    their backwards of the one before. Only ranks of the first stage of language have nothing else
    to do before language has finished a group: an encoder that begins on others runs ahead of it.
    """
    once = [cost.first + cost.least for cost in costs]
    if not drains:
        return sum(once)
    turns = [cost.whole if cost.trains else one for cost, one in zip(costs, once, strict=True)]
    if not {*encoder.stage_ranks(0)} <= {*layout.language.stage_ranks(0)}:
        return sum(turns)
    return max(sum(turns), sum(cost.forwards + cost.backward for cost in costs))


def least_bytes(estimator: Estimator, kept: dict[Hashable, StageMemory]) -> int:
    """Return what the fullest rank of a legal spec holds at least.

    `kept` is the memory of stages in the same step, by what it depends on in any layout.
    """
    spec, layout = estimator.spec, estimator.layout
    held = {}
    for module in layout.modules:
        work = min(estimator.model.work[module.name], key=lambda each: each.held)
        of_module = key_of_module(spec, module), work.key
        for stage in module.stages:
            key = of_module, key_of_stage(spec, layout, module, stage)
            if key not in kept:
                kept[key] = stage_memory(spec, layout, module, stage, work, 0, estimator.weights)
            held[module.name, stage.index] = kept[key]
    return _first_backward(estimator, held)


def _first_backward(estimator: Estimator, held: Mapping[tuple[str, int], StageMemory]) -> int:
    """Return what the fullest rank holds at least when a stage of language begins its backwards."""
    found, layout = 0, estimator.layout
    # Language begins its backwards after each group of encoders that share its ranks.
    phases = max((layout.num_groups(each) for each in layout.encoders if each.in_phases), default=1)
    for role in filter(None, dict.fromkeys(layout.roles)):
        stages = [stage for name, stage in role if name == layout.language.name]
        total = _of_language(layout, held, stages, phases) if stages else 0
        for name, stage in role:
            own = held[name, stage]
            total += own.weights + own.moments
            # Encoders that share ranks with language ran before it, and wait for it.
            if layout[name].in_phases:
                total += own.gathered + own.kept
        found = max(found, total)
    rates = estimator.constants
    found += round(rates.workspace_memory * GB)
    return found + round(rates.allocator_slack * found + rates.context_memory * GB)


def _of_language(
    layout: Layout,
    held: Mapping[tuple[str, int], StageMemory],
    stages: Sequence[int],
    phases: int,
) -> int:
    """Return the most that stages of language on a rank hold, besides weights and moments."""
    language, found = layout.language, 0
    own = [held[language.name, stage] for stage in stages]
    index, depth = language.pp_index(stages[0]), language.grid.size(Axis.PP)
    rank = PipelineRank(depth, len(stages), index, layout.samples.microbatches // phases)
    if len(stages) > 1 and not layout.is_star:
        # The order follows from the whole graph; each stage holds one microbatch at least.
        rank = PipelineRank(1, len(stages), 0, 1)
    trains = tuple(needs_backward(layout, language, stage) for stage in stages)
    rounds = min(phases, 2)  # In the second, the gradients of the first are there.
    for begins, counts in _first_backwards(layout.schedule, rank, trains, rounds):
        total = own[begins].backward_gradients + own[begins].backward_extra
        for number, (stage, (forwards, backwards)) in enumerate(zip(own, counts, strict=True)):
            total += (forwards - backwards) * stage.kept
            if backwards < rounds * rank.total:
                total += stage.gathered + stage.in_flight
                total += stage.accumulated if backwards or number == begins else 0
        found = max(found, total)
    return found


@lru_cache(maxsize=1024)
def _first_backwards(
    kind: ScheduleKind, rank: PipelineRank, trains: tuple[bool, ...], rounds: int
) -> list[tuple[int, list[tuple[int, int]]]]:
    """Return each stage of a rank, and the forwards and backwards of all before its first backward.

    The rank runs its microbatches in each of some rounds. `trains` says which stages have
    backwards.
    """
    forwards, backwards = [0] * rank.num_chunks, [0] * rank.num_chunks
    found = []
    for before in range(0, rounds * rank.total, rank.total):
        for stage, work, _ in works_of(kind, rank, backward=True):
            if work is Kind.FORWARD:
                forwards[stage] += 1
            elif trains[stage]:
                if backwards[stage] == before:
                    found.append((stage, [*zip(forwards, backwards, strict=True)]))
                backwards[stage] += 1
    return found
