"""Finds changes that make a step faster: a search from the present point, the best bound first.

Decides: in which order layouts are planned, how many, which are kept, and which one answers which
loss.
Relies on: `moves` for the layouts near a point, `bounds` for the order, `checks` for what is legal,
`estimate` for memory and time.
Leaves: the words of losses to `wastes`, the words of changes to `changes`.

Bounds order all layouts that are in sight. The one with the least is planned, and if it is the best
so far, layouts near it come in sight. A layout that does not fit is replaced by lighter ones.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import count

from mimo_launch.checks.all_checks import idle_settings, is_legal
from mimo_launch.checks.memory import TOLERANCE
from mimo_launch.estimate.device_constants import Calibration
from mimo_launch.estimate.estimates import Estimator
from mimo_launch.estimate.rows import Estimates
from mimo_launch.layout.layout import Layout, world_size
from mimo_launch.layout.space import Point
from mimo_launch.plan.plan import Plan
from mimo_launch.schedule.orders import ORDERS
from mimo_launch.search.bounds import Bounds
from mimo_launch.search.changes import FEWER, Change, Settings, changed, kind_between
from mimo_launch.search.moves import lighter, neighbours, placements, smaller_worlds
from mimo_launch.search.wastes import Waste, wastes
from mimo_launch.spec.base import Axis
from mimo_launch.spec.fields import field_at
from mimo_launch.spec.load import dump_spec
from mimo_launch.spec.spec import Spec

# A change that saves less is not offered: estimates are not that exact.
LEAST_GAIN = 0.02
# A setting that gains less than this is left out in the end; a part of all plans is kept for that.
LEAST_SETTING = 0.003
FOR_SIMPLER = 0.15
# For a spec that does not fit, several changes are offered, each with many settings at first.
FOR_SIMPLER_THAT_FIT = 0.4
# On fewer GPUs a step may take longer: by this share, if this share of the GPUs is saved.
MOST_LOSS, LEAST_SAVED = 0.05, 0.2
# No plan may take a larger part of what is left.
MOST_AT_ONCE = 0.25
# Plans of more ranks, stages, actions or layers take longer, so fewer are made.
_MOST_PLANS = ((16, 80), (1024, 160), (4096, 100))
_PLANS_OF_MANY = 18
_STAGES_PER_PLAN = 8
_ACTIONS_PER_PLAN = 256
_LAYERS_PER_PLAN = 200
# A bound, and the seconds of one stage for a bound, in plans.
_BOUND, _STAGE = 0.02, 0.05
# Shares of the plans: for layouts next to the present one; kept from bounds of placements; and, of
# those that are kept to simplify, for bounds on each smaller number of GPUs.
_FOR_NEAR, _FOR_PLANS, _FOR_FEWER = 0.4, 0.5, 0.5
MAX_WASTES = 3


@dataclass(frozen=True, slots=True)
class Planned:
    """A change that is legal and fits, and its estimates."""

    change: Change
    estimates: Estimates


@dataclass(frozen=True, slots=True)
class _Seen:
    """A layout in sight; `more` are settings outside of its point, `job` estimates its plan."""

    point: Point
    more: Settings
    change: Change
    job: Estimator
    is_lighter: bool


@dataclass
class Search:
    """Plans layouts of a spec until it has planned as many as its size allows.

    `tried` counts the planned ones by what they change first.
    """

    base: Estimator
    estimates: Estimates
    limit: int
    left: float
    fits: bool
    bounds: Bounds
    found: list[Planned] = field(default_factory=list)
    seen: dict[str, Planned | None] = field(default_factory=dict)
    tried: Counter[str] = field(default_factory=Counter)
    _queue: list[tuple[float, int, _Seen]] = field(default_factory=list)
    _in_sight: set[str] = field(default_factory=set)
    _numbers: Iterator[int] = field(default_factory=count)

    @classmethod
    def of(cls, base: Estimator, estimates: Estimates, gpu_memory: int) -> "Search":
        """Return a new search; changes may need as much memory as a spec that fits."""
        world = base.layout.world_size
        most = next((n for size, n in _MOST_PLANS if world <= size), _PLANS_OF_MANY)
        stages = (stage for module in base.layout.modules for stage in module.stages)
        layers = sum(stage.num_layers for stage in stages)
        many = max(1.0, layers / _LAYERS_PER_PLAN)
        fits = _needed(estimates) <= gpu_memory
        limit = memory_limit(estimates, gpu_memory)
        return cls(base, estimates, limit, most / many, fits, Bounds())

    @property
    def compared(self) -> int:
        """The number of legal layouts that were in sight: each has a bound, or a plan."""
        return len(self._in_sight | self.seen.keys())

    def run(self) -> list[Planned]:
        """Return the changes that make a step faster, the best first; then those to fewer GPUs.

        These may make it a little slower.
        """
        self._seek()
        found = [each for each in self._best() if self.gain(each) >= self._least_gain(each)]
        return sorted(found, key=lambda each: each.change.kind == FEWER)

    def _least_gain(self, planned: Planned) -> float:
        saved = 1 - world_size(planned.change.spec) / self.base.layout.world_size
        return -MOST_LOSS if saved >= LEAST_SAVED else LEAST_GAIN

    def that_fit(self) -> list[Planned]:
        """Return changes of a spec that does not fit itself, the fastest first.

        There is one of each kind, without settings that neither make it fit nor faster.
        """
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
        if _text(change) not in self.seen and is_legal(change.spec, files=False):
            self._plan(change, self._job(change))
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

    def gain(self, planned: Planned) -> float:
        """Return the share by which a change raises the speed."""
        return self.estimates.step_seconds / planned.estimates.step_seconds - 1

    def _seek(self, for_simpler: float = FOR_SIMPLER) -> None:
        reserve = self.left * for_simpler
        spec = self.base.spec
        start = Point.of(spec)
        if not self.fits:
            self._look(lighter(spec, start), {}, are_lighter=True)
        self._grow(start, {})
        self._drain(self.left * (1 - _FOR_NEAR), alone=True)
        work, sizes = self._work(), smaller_worlds(spec)
        self._look(placements(spec, start, work, world_size(spec)), {}, self.left * _FOR_PLANS)
        ends = self.left - reserve * _FOR_FEWER
        for size in sizes:
            self._look(placements(spec, start, work, size), {}, max(ends, reserve))
            ends -= reserve * _FOR_FEWER
        self._drain(reserve)

    def _grow(self, point: Point, more: Settings) -> None:
        """Bring the layouts near a point in sight."""
        for other in _numerics(self.base.spec):
            self._look((point,), {**more, **other})
        self._look(neighbours(self.base.spec, point), more)

    def _look(
        self,
        points: Iterable[Point],
        more: Settings,
        until: float = 0.0,
        *,
        are_lighter: bool = False,
    ) -> None:
        """Queue points that are new, legal and perhaps better, while there is time for bounds."""
        for point in points:
            if self.left <= until:
                return
            self._queue_one(point, more, is_lighter=are_lighter)

    def _queue_one(self, point: Point, more: Settings, *, is_lighter: bool) -> None:
        spec = self.base.spec
        if (change := changed(spec, "", {**point.settings(), **more})) is None:
            return
        text = _text(change)
        if text in self._in_sight or text in self.seen or not is_legal(change.spec, files=False):
            return
        self._in_sight.add(text)
        costed = self.bounds.costed
        job = self._job(change)
        seconds = self.bounds.seconds(job)
        self.left -= _BOUND + _STAGE * (self.bounds.costed - costed)
        if seconds >= self._most(change.spec):
            return
        change = replace(change, kind=kind_between(spec, change.spec))
        seen = _Seen(point, more, change, job, is_lighter)
        heappush(self._queue, (seconds, next(self._numbers), seen))

    def _most(self, spec: Spec) -> float:
        """Return the seconds that a step may take at most to be of use."""
        before = self.estimates.step_seconds if self.fits else float("inf")
        saved = 1 - world_size(spec) / self.base.layout.world_size
        if saved >= LEAST_SAVED:
            return (1 + MOST_LOSS) * before
        return before / (1 + LEAST_GAIN)

    def _drain(self, reserve: float, *, alone: bool = False) -> None:
        """Plan queued layouts, the least bound first, until none can be faster than the best.

        With `alone`, plan all that may help by themselves, and look at none near them.
        """
        best = self._best()
        least = best[0].estimates.step_seconds if best else float("inf")
        if not alone and best:
            self._grow(Point.of(best[0].change.spec), {})
        while self._queue and self.left > reserve:
            bound, _, seen = heappop(self._queue)
            if bound >= (1 - LEAST_SETTING) * least and not alone:
                break
            planned = self._plan(seen.change, seen.job) if self._may_fit(seen.job) else None
            if planned is None:
                if not seen.is_lighter:
                    lighter_ones = lighter(self.base.spec, seen.point)
                    self._look(lighter_ones, seen.more, reserve, are_lighter=True)
            elif planned.estimates.step_seconds < (1 - LEAST_SETTING) * least:
                least = planned.estimates.step_seconds
                if not alone:
                    self._grow(seen.point, seen.more)

    def _job(self, change: Change) -> Estimator:
        return replace(self.base, plan=Plan.of(change.spec), spec=change.spec)

    def _may_fit(self, job: Estimator) -> bool:
        costed = self.bounds.costed
        needed = self.bounds.bytes(job)
        self.left -= _STAGE * (self.bounds.costed - costed)
        return needed <= self.limit

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

    def _best(self) -> list[Planned]:
        return _fastest(self.found)

    def _plan(self, change: Change, job: Estimator) -> Planned | None:
        """Plan a legal change; return it if it fits and takes not too long to plan."""
        cost = _cost(job.layout)
        if cost > self.left * MOST_AT_ONCE:
            return None
        text = _text(change)
        self.seen[text] = None
        self.tried[change.kind] += 1
        self.left -= cost / 2
        if any(job.memory(each).total > self.limit for each in job.classes):
            return None
        self.left -= cost / 2
        self.seen[text] = planned = Planned(change, job.estimates())
        self.found.append(planned)
        return planned


def memory_limit(estimates: Estimates, gpu_memory: int) -> int:
    """Return the bytes that a change may need: not more than leaves room, or than a spec that fits.

    `estimates` are those of the spec before the change.
    """
    needed, limit = _needed(estimates), int((1 - TOLERANCE) * gpu_memory)
    return max(limit, needed) if needed <= gpu_memory else limit


def _needed(estimates: Estimates) -> int:
    return max((row.total_bytes for row in estimates.ranks), default=0)


def _numerics(spec: Spec) -> Iterator[Settings]:
    """Yield settings outside of the layout that make the same step faster."""
    if not spec.train.numbers.is_mixed:
        yield {"train.precision": "bf16"}


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

    No two of them have a change of the same kind, or the same change. A change to fewer GPUs comes
    after those for all: from there, no further change leads back to more.
    """
    found, shown = search.run(), lost[:MAX_WASTES]
    taken: set[str] = set()
    answers: dict[int, Planned] = {}
    world = search.base.layout.world_size
    for planned in found:
        if planned.change.kind in taken or len(answers) == len(shown):
            continue
        after = wastes(planned.change.spec, planned.estimates, constants, _world(planned))
        left = [number for number in range(len(shown)) if number not in answers]
        saved = {
            number: world * _lost(search.estimates, [shown[number]], shown[number])
            - _world(planned) * _lost(planned.estimates, after, shown[number])
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

    def order(each: Advice) -> tuple[int, float]:
        if each.planned is None:
            return 2, 0.0
        return each.planned.change.kind == FEWER, -search.gain(each.planned)

    return sorted(advice, key=order)


def _world(planned: Planned) -> int:
    return world_size(planned.change.spec)


def _lost(estimates: Estimates, among: Iterable[Waste], like: Waste) -> float:
    """Return the seconds of a mean GPU that the modules of `like` lose to its kind of loss."""
    of_same: Iterator[Waste] = (
        each
        for each in among
        if each.kind == like.kind and (not like.modules or set(each.modules) & set(like.modules))
    )
    return estimates.step_seconds * sum(each.of_all for each in of_same)
