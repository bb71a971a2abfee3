"""Finds changes that make a step faster, by planning each of them.

Decides: how many changes are planned, which are kept, and which one answers which loss.
Relies on: `changes` for the changes, `checks` for what is legal, `estimate` for memory and time.
Leaves: the words of losses to `wastes`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from mimo_launch.checks.all_checks import check
from mimo_launch.checks.memory import TOLERANCE
from mimo_launch.estimate.device_constants import Calibration
from mimo_launch.estimate.estimates import Estimator
from mimo_launch.estimate.rows import Estimates
from mimo_launch.layout.layout import world_size
from mimo_launch.plan.plan import Plan
from mimo_launch.search.changes import Change, first_changes, further_changes, smaller_changes
from mimo_launch.search.wastes import Waste, wastes
from mimo_launch.spec.spec import Spec

# A change that saves less is not offered: estimates are not that exact.
LEAST_GAIN = 0.02
LEAST_STEP = 0.01
# Plans of more ranks, or of more actions, take longer, so fewer are made.
_MOST_PLANS = ((256, 48), (1024, 32), (4096, 16))
_PLANS_OF_MANY = 6
_ACTIONS_PER_PLAN = 256
MAX_WASTES = 3


@dataclass(frozen=True, slots=True)
class Planned:
    """A change that is legal and fits, and its estimates."""

    change: Change
    estimates: Estimates


@dataclass
class Search:
    """Plans changes of a spec until it has planned as many as its size allows."""

    base: Estimator
    estimates: Estimates
    limit: int
    left: float
    found: list[Planned] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, base: Estimator, estimates: Estimates, gpu_memory: int) -> "Search":
        """Return a search that has planned nothing; changes fit as well as the spec does."""
        world = base.layout.world_size
        most = next((n for size, n in _MOST_PLANS if world <= size), _PLANS_OF_MANY)
        needed = max((row.total_bytes for row in estimates.ranks), default=0)
        limit = max(int((1 - TOLERANCE) * gpu_memory), min(needed, gpu_memory))
        return cls(base, estimates, limit, most)

    def run(self) -> list[Planned]:
        """Return the changes that make a step faster, the best first."""
        spec = self.base.spec
        work: dict[str, float] = {}
        for row in self.estimates.ranks:
            for stage in row.stages:
                seconds = stage.forward_ms + stage.backward_ms
                forwards = self.base.layout.num_groups(self.base.layout[stage.module])
                work[stage.module] = work.get(stage.module, 0.0) + len(row.ranks) * (
                    seconds * forwards
                )
        reserve = self.left / 3
        self.left -= reserve
        self._try(first_changes(spec, work))
        self.left += reserve
        grown: set[int] = set()
        while self.left > 0:
            best = next((each for each in self._best() if id(each) not in grown), None)
            if best is None:
                break
            grown.add(id(best))
            before, self.found = self.found, []
            self._try(further_changes(spec, best.change))
            # One more setting must be worth its line.
            most = (1 - LEAST_STEP) * best.estimates.step_seconds
            self.found = before + [
                each for each in self.found if each.estimates.step_seconds < most
            ]
        return [each for each in self._best() if self.gain(each) >= LEAST_GAIN]

    def gain(self, planned: Planned) -> float:
        """Return by what share a change raises the speed."""
        return self.estimates.step_seconds / planned.estimates.step_seconds - 1

    def _best(self) -> list[Planned]:
        return sorted(self.found, key=lambda each: each.estimates.step_seconds)

    def _try(self, changes: Iterable[Change]) -> None:
        """Plan changes that are legal, with less memory if they do not fit."""
        for change in changes:
            if self.left <= 0:
                return
            self._plan(change, smaller=True)

    def _plan(self, change: Change, *, smaller: bool) -> bool:
        """Plan a change that is new and legal; return whether that was enough."""
        text = change.spec.model_dump_json()
        if text in self.seen or self.left <= 0 or _is_illegal(change.spec):
            return True
        self.seen.add(text)
        if world_size(change.spec) != self.base.layout.world_size:
            return True
        self.left -= _cost(change.spec)
        plan, base = Plan.of(change.spec), self.base
        estimator = Estimator.of(plan, base.constants, worst=base.worst)
        if any(estimator.memory(each).total > self.limit for each in estimator.classes):
            if smaller:
                for other in smaller_changes(self.base.spec, change):
                    if self._plan(other, smaller=False):
                        break
            return False
        self.found.append(Planned(change, estimator.estimates()))
        return True


def _cost(spec: Spec) -> float:
    """Return how long it takes to plan a spec, as a number of small plans."""
    schedule = spec.schedule
    stages = spec.language.grid.pp * schedule.virtual_stages
    actions = stages * schedule.microbatches * (1 if schedule.kind == "1f1b" else 4)
    return 1 + actions / _ACTIONS_PER_PLAN


def _is_illegal(spec: Spec) -> bool:
    return any(found.is_error for found in check(spec))


@dataclass(frozen=True, slots=True)
class Advice:
    """A loss, and the change that answers it; None if no change makes it smaller."""

    waste: Waste
    planned: Planned | None


def advise(search: Search, lost: list[Waste], constants: Calibration) -> list[Advice]:
    """Return the largest losses, each with the change that helps most; the best change first.

    No two of them have a change of the same kind.
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
        if saved[number] > 0 or not answers:
            answers[number] = planned
            taken.add(planned.change.kind)
    advice = [Advice(waste, answers.get(number)) for number, waste in enumerate(shown)]
    return sorted(advice, key=lambda each: -search.gain(each.planned) if each.planned else 0.0)


def _lost(estimates: Estimates, among: Iterable[Waste], like: Waste) -> float:
    """Return the seconds of all GPUs that a kind of loss takes from the modules of one."""
    of_same: Iterator[Waste] = (
        each
        for each in among
        if each.kind == like.kind and (not like.modules or set(each.modules) & set(like.modules))
    )
    return estimates.step_seconds * sum(each.of_all for each in of_same)
