"""Finds changes that make a step faster, by planning each of them.

Decides: in which order changes are planned: each kind in turn, then combinations of two; how many
are planned, which are kept, and which one answers which loss.
Relies on: `setting_changes` and `grid_changes` for the changes, `checks` for what is legal,
`estimate` for memory and time.
Leaves: the words of losses to `wastes`.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, islice, zip_longest

from mimo_launch.checks.all_checks import idle_settings, is_legal
from mimo_launch.checks.memory import TOLERANCE
from mimo_launch.estimate.device_constants import Calibration
from mimo_launch.estimate.estimates import Estimator
from mimo_launch.estimate.rows import Estimates
from mimo_launch.layout.layout import Layout, world_size
from mimo_launch.plan.plan import Plan
from mimo_launch.schedule.orders import ORDERS
from mimo_launch.search.changes import Change, changed
from mimo_launch.search.grid_changes import grid_ideas, placement_ideas
from mimo_launch.search.setting_changes import (
    recomputing_changes,
    setting_ideas,
    smaller_changes,
)
from mimo_launch.search.wastes import Waste, wastes
from mimo_launch.spec.base import Axis
from mimo_launch.spec.fields import field_at
from mimo_launch.spec.load import dump_spec
from mimo_launch.spec.spec import Spec

# A change that saves less is not offered: estimates are not that exact.
LEAST_GAIN = 0.02
# One more setting must be worth its line.
LEAST_STEP = 0.01
# A setting that gains less than this is left out in the end; a part of all plans is kept for that.
LEAST_SETTING = 0.003
FOR_SIMPLER = 0.15
# For a spec that does not fit, several changes are offered, each with many settings at first.
FOR_SIMPLER_THAT_FIT = 0.4
# No plan may take a larger part of what is left.
MOST_AT_ONCE = 0.25
# Plans of more ranks, stages, actions or layers take longer, so fewer are made.
_MOST_PLANS = ((16, 80), (1024, 160), (4096, 100))
_PLANS_OF_MANY = 18
_STAGES_PER_PLAN = 8
_ACTIONS_PER_PLAN = 256
_LAYERS_PER_PLAN = 200
MAX_WASTES = 3
# Grids that are tried together with another change.
_MAX_NEAR = 4


def first_changes(spec: Spec, work: Mapping[str, float]) -> Iterator[Change]:
    """Yield changes of one idea each: a placement, a setting and a grid in turn.

    `work` is the GPU time of each module in a step.
    """
    in_turn = zip_longest(placement_ideas(spec, work), setting_ideas(spec), grid_ideas(spec))
    for kind, settings in filter(None, chain.from_iterable(in_turn)):
        if found := changed(spec, kind, settings):
            yield found


def further_changes(spec: Spec, first: Change) -> Iterator[Change]:
    """Yield the same change with one more idea each."""
    near = islice(grid_ideas(first.spec), _MAX_NEAR)
    for _, settings in (*setting_ideas(first.spec), *near):
        if found := changed(spec, first.kind, {**first.settings, **settings}):
            yield found


@dataclass(frozen=True, slots=True)
class Planned:
    """A change that is legal and fits, and its estimates."""

    change: Change
    estimates: Estimates


@dataclass
class Search:
    """Plans changes of a spec until it has planned as many as its size allows.

    `tried` counts them by their kind: what they change first.
    """

    base: Estimator
    estimates: Estimates
    limit: int
    left: float
    found: list[Planned] = field(default_factory=list)
    seen: dict[str, Planned | None] = field(default_factory=dict)
    tried: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, base: Estimator, estimates: Estimates, gpu_memory: int) -> "Search":
        """Return a new search; changes may need as much memory as a spec that fits."""
        world = base.layout.world_size
        most = next((n for size, n in _MOST_PLANS if world <= size), _PLANS_OF_MANY)
        stages = (stage for module in base.layout.modules for stage in module.stages)
        layers = sum(stage.num_layers for stage in stages)
        many = max(1.0, layers / _LAYERS_PER_PLAN)
        needed = max((row.total_bytes for row in estimates.ranks), default=0)
        limit = int((1 - TOLERANCE) * gpu_memory)
        if needed <= gpu_memory:
            limit = max(limit, needed)
        return cls(base, estimates, limit, most / many)

    def run(self) -> list[Planned]:
        """Return the changes that make a step faster, the best first."""
        self._seek()
        return [each for each in self._best() if self.gain(each) >= LEAST_GAIN]

    def that_fit(self) -> list[Planned]:
        """Return changes of a spec that does not fit itself, the fastest first.

        There is one of each kind, without settings that neither make it fit nor faster.
        """
        spec = self.base.spec
        as_it_is = Change("memory", {}, spec)
        for change in (*recomputing_changes(spec), *smaller_changes(spec, as_it_is)):
            self._plan(change)
        self._seek(FOR_SIMPLER_THAT_FIT)
        kinds: dict[str, Planned] = {}
        for each in self._best():
            kinds.setdefault(each.change.kind, each)
        return _fastest(self.simplest(each, LEAST_GAIN) for each in kinds.values())

    def simplest(self, planned: Planned, loss: float = LEAST_SETTING) -> Planned:
        """Return a change without settings that hardly make it faster, or no longer do anything.

        In return a step may take longer by a share of `loss`.
        """
        most, before = (1 + loss) * planned.estimates.step_seconds, None
        while planned is not before:  # Without one setting another may no longer be needed.
            before = planned
            for path in before.change.settings:
                own = planned.change
                fewer = {key: value for key, value in own.settings.items() if key != path}
                shorter = changed(self.base.spec, own.kind, fewer)
                planned = self._if_as_fast(shorter, most) or planned
        return self._if_as_fast(self._without_idle(planned.change), most) or planned

    def _if_as_fast(self, change: Change | None, most: float) -> Planned | None:
        """Plan a change; return it if it fits and a step takes at most `most` seconds."""
        if change is None:
            return None
        self._plan(change)
        found = self.seen.get(_text(change))
        return found if found is not None and found.estimates.step_seconds <= most else None

    def _without_idle(self, change: Change) -> Change | None:
        """Return a change that resets the settings that no longer do anything."""
        spec, data = self.base.spec, dump_spec(change.spec)
        settings = dict(change.settings)
        for path in idle_settings(change.spec) - idle_settings(spec):
            if (field := field_at(path, data)) is not None:
                settings[".".join(map(str, path))] = field.get_default(call_default_factory=True)
        return changed(spec, change.kind, settings)

    def _seek(self, for_simpler: float = FOR_SIMPLER) -> None:
        reserve = self.left * for_simpler
        self._try(first_changes(self.base.spec, self._work()), self.left / 2)
        grown: set[int] = set()
        while self.left > reserve:
            best = next((each for each in self._best() if id(each) not in grown), None)
            if best is None:
                break
            grown.add(id(best))
            before, self.found = self.found, []
            self._try(further_changes(self.base.spec, best.change), reserve)
            most = (1 - LEAST_STEP) * best.estimates.step_seconds
            self.found = before + [
                each for each in self.found if each.estimates.step_seconds < most
            ]

    def _work(self) -> dict[str, float]:
        """Return the GPU time of each module in a step."""
        work: dict[str, float] = {}
        for row in self.estimates.ranks:
            for stage in row.stages:
                seconds = stage.forward_ms + stage.backward_ms
                forwards = self.base.layout.num_groups(self.base.layout[stage.module])
                work[stage.module] = work.get(stage.module, 0.0) + len(row.ranks) * (
                    seconds * forwards
                )
        return work

    def gain(self, planned: Planned) -> float:
        """Return the share by which a change raises the speed."""
        return self.estimates.step_seconds / planned.estimates.step_seconds - 1

    def _best(self) -> list[Planned]:
        return _fastest(self.found)

    def _try(self, changes: Iterable[Change], reserve: float) -> None:
        """Plan changes that are legal, with less memory if they do not fit."""
        for change in changes:
            if self.left <= reserve:
                return
            if self._plan(change) is False:
                smaller = smaller_changes(self.base.spec, change)
                next((each for each in smaller if self._plan(each)), None)

    def _plan(self, change: Change) -> bool | None:
        """Plan a change; return whether it fits, None if it is old, illegal or takes too long."""
        text, base = _text(change), self.base
        if text in self.seen or not is_legal(change.spec, files=False):
            return None
        if world_size(change.spec) != base.layout.world_size:
            return None
        plan = Plan.of(change.spec)
        cost = _cost(plan.layout)
        if cost > self.left * MOST_AT_ONCE:
            return None
        self.seen[text] = None
        self.tried[change.kind] += 1
        self.left -= cost / 2
        estimator = replace(base, plan=plan, spec=change.spec)
        if estimator.least_bytes > self.limit or any(
            estimator.memory(each).total > self.limit for each in estimator.classes
        ):
            return False
        self.left -= cost / 2
        self.seen[text] = planned = Planned(change, estimator.estimates())
        self.found.append(planned)
        return True


def _fastest(found: Iterable[Planned]) -> list[Planned]:
    return sorted(found, key=lambda each: each.estimates.step_seconds)


def _text(change: Change) -> str:
    """Return a text that two changes share if they make the same spec."""
    return change.spec.model_dump_json()


def _cost(layout: Layout) -> float:
    """Return how long it takes to plan a layout, as a number of small plans."""
    stages = max(module.grid.size(Axis.PP) for module in layout.modules)
    forwards = sum(len(each.stages) * layout.num_groups(each) for each in layout.modules)
    is_listed = ORDERS[layout.schedule].fills_bubbles or not layout.is_star
    ways = 4 if is_listed else 1
    return 1 + (stages - 1) / _STAGES_PER_PLAN + ways * forwards / _ACTIONS_PER_PLAN


@dataclass(frozen=True, slots=True)
class Advice:
    """A loss, and the change that answers it; None if no change makes it smaller."""

    waste: Waste
    planned: Planned | None


def advise(search: Search, lost: list[Waste], constants: Calibration) -> list[Advice]:
    """Return the largest losses, each with the change that helps most; the best change first.

    No two of them have a change of the same kind, or the same change.
    """
    found, shown = search.run(), lost[:MAX_WASTES]
    taken: set[str] = set()
    answers: dict[int, Planned] = {}
    world = search.base.layout.world_size
    for planned in found:
        if planned.change.kind in taken or len(answers) == len(shown):
            continue
        after = wastes(planned.change.spec, planned.estimates, constants, world)
        left = [number for number in range(len(shown)) if number not in answers]
        saved = {
            number: _lost(search.estimates, [shown[number]], shown[number])
            - _lost(planned.estimates, after, shown[number])
            for number in left
        }
        number = max(left, key=lambda each: saved[each])
        if saved[number] <= 0 and answers:
            continue
        taken.add(planned.change.kind)
        simplest = search.simplest(planned)
        # Simplified, a change of another kind can equal one that is already offered.
        if all(_text(simplest.change) != _text(each.change) for each in answers.values()):
            answers[number] = simplest
    advice = [Advice(waste, answers.get(number)) for number, waste in enumerate(shown)]
    return sorted(advice, key=lambda each: -search.gain(each.planned) if each.planned else 0.0)


def _lost(estimates: Estimates, among: Iterable[Waste], like: Waste) -> float:
    """Return the seconds of all GPUs that the modules of `like` lose to its kind of loss."""
    of_same: Iterator[Waste] = (
        each
        for each in among
        if each.kind == like.kind and (not like.modules or set(each.modules) & set(like.modules))
    )
    return estimates.step_seconds * sum(each.of_all for each in of_same)
