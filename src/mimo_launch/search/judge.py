"""Judges one layout: whether it is legal, what a step takes at least, and what its plan says.

Decides: nothing about a search; a judgement depends on the layout alone, so that every process
that judges it says the same.
Relies on: `checks` for what is legal, `bounds` for what needs no plan, `estimate` for the rest.
Leaves: which layouts are judged, and in which order, to `search`.
"""

from collections.abc import Hashable
from dataclasses import field, replace
from itertools import islice

from mimo_launch.checks.all_checks import is_legal_layout
from mimo_launch.diag.frozen import frozen
from mimo_launch.estimate.estimates import Estimator
from mimo_launch.estimate.memory import StageMemory
from mimo_launch.estimate.rows import Estimates
from mimo_launch.layout.layout import Layout, build_layout
from mimo_launch.layout.space import Point
from mimo_launch.plan.plan import Plan
from mimo_launch.schedule.orders import ORDERS
from mimo_launch.search.bounds import least_bytes, least_seconds
from mimo_launch.search.changes import Change, Settings, changed, kind_between
from mimo_launch.search.ladders import ladders
from mimo_launch.search.pins import Pins
from mimo_launch.spec.base import Axis
from mimo_launch.spec.spec import Spec

# Stages of a pipeline, computes of a program and ranks of a job that take as long as a small plan.
_STAGES_PER_PLAN, _COMPUTES_PER_PLAN, _RANKS_PER_PLAN = 8, 256, 1024
# What of a plan is spent if memory alone is estimated, for each further step, and for a bound.
_OF_MEMORY, _OF_STEP, _OF_BOUND = 0.5, 0.35, 0.05
# Ways to cut the samples and the weights by which a layout is made lighter.
_MOST_LADDERS = 6


@frozen
class Planned:
    """A change that is legal and fits, and its estimates."""

    change: Change
    estimates: Estimates

    @property
    def seconds(self) -> float:
        """The seconds of a step."""
        return self.estimates.step_seconds


@frozen
class Bound:
    """What is known of a change without a plan: the seconds that a step takes at least.

    Only equal specs share the `text`; `kind` is what is changed first.
    """

    text: str
    kind: str
    seconds: float


@frozen
class Judgement:
    """What a plan says; `cost` is what it took, in small plans.

    `estimates` are None for a layout that `is_too_large`, and for one that takes too long to plan.
    `is_planned` is false for the latter, and if a bound shows that a layout is too large.
    """

    cost: float
    is_planned: bool = False
    is_too_large: bool = False
    estimates: Estimates | None = None


@frozen(eq=False, slots=False)
class Judge:
    """Judges changes of the spec of `base`; a rank may hold `limit` bytes.

    `steps` is the number of different steps that represent the whole run.
    """

    base: Estimator
    limit: int
    pins: Pins = field(default_factory=Pins)
    steps: int = 1
    _held: dict[Hashable, StageMemory] = field(default_factory=dict)

    def _job(self, spec: Spec) -> Estimator:
        return replace(self.base, plan=Plan.of(spec), spec=spec)

    def legal(self, settings: Settings) -> Change | None:
        """Return a change that differs from the spec, keeps what is pinned, and is legal."""
        change = changed(self.base.spec, "", settings)
        if change is None or not self.pins.hold_in(change.spec):
            return None
        return change if is_legal_layout(change.spec) else None

    def bound(self, settings: Settings, most: float = float("inf")) -> Bound | None:
        """Return what is known of a change without a plan; None if it is not legal.

        Only a bound below `most` seconds is of use, so any other may be too small.
        """
        change = self.legal(settings)
        return None if change is None else self._bound_of(change, self._job(change.spec), most)

    def bound_if_fits(self, settings: Settings, most: float = float("inf")) -> Bound | None:
        """Return the same of a change; None if it is not legal or cannot fit."""
        change = self.legal(settings)
        if change is None:
            return None
        job = self._job(change.spec)
        if least_bytes(job, self._held) > self.limit:
            return None
        return self._bound_of(change, job, most)

    def lighter(self, point: Point, more: Settings, share: float) -> list[tuple[Point, Bound]]:
        """Return lighter layouts with bounds of at most a share of the limit.

        They are those of each ladder that cost least time: its first, or two others.
        """
        found, most = list[tuple[Point, Bound]](), share * self.limit

        def fitting(rung: Point) -> Change | None:
            kept = None if rung == point else self.pins.kept_by(rung)
            change = None if kept is None else self.legal({**kept.settings(), **more})
            if change is None or least_bytes(self._job(change.spec), self._held) > most:
                return None
            return change

        some = (each for each in ladders(self.base.spec, point) if fitting(each[-1]))
        for ladder in islice(some, _MOST_LADDERS):
            first = fitting(ladder[0])
            fit = [first] if first else islice(filter(None, map(fitting, ladder[1:])), 2)
            for change in fit:
                bound = self._bound_of(change, self._job(change.spec))
                found.append((Point.of(change.spec), bound))
        return found

    def _bound_of(self, change: Change, job: Estimator, most: float = float("inf")) -> Bound:
        kind = kind_between(self.base.spec, change.spec)
        return Bound(text_of(change), kind, least_seconds(job, most))

    def plan(self, settings: Settings, most_cost: float) -> Judgement:
        """Plan a legal change that costs at most so many small plans."""
        change = changed(self.base.spec, "", settings)
        return Judgement(0.0) if change is None else self.plan_of(change.spec, most_cost)

    def cost_of_whole(self, spec: Spec) -> float:
        """Return what estimates over the whole run take, in small plans."""
        return cost_of(build_layout(spec)) * (1 + _OF_STEP * (self.steps - 1))

    def whole(self, spec: Spec) -> Estimates | None:
        """Return the estimates over the whole run, not of one step; None if it does not fit."""
        found = Estimator.of(Plan.of(spec), self.base.constants).estimates()
        fits = max(row.total_bytes for row in found.ranks) <= self.limit
        return found if fits else None

    def plan_of(self, spec: Spec, most_cost: float = float("inf")) -> Judgement:
        """Plan a legal spec with the same models and data."""
        job = self._job(spec)
        if least_bytes(job, self._held) > self.limit:
            return Judgement(_OF_BOUND, is_too_large=True)
        cost = cost_of(job.layout)
        if cost > most_cost:
            return Judgement(0.0)
        if any(job.memory(each).total > self.limit for each in job.classes):
            return Judgement(_OF_MEMORY * cost, is_planned=True, is_too_large=True)
        return Judgement(cost, is_planned=True, estimates=job.estimates())


def text_of(change: Change) -> str:
    """Return a text that two changes share if they make the same spec."""
    return change.spec.model_dump_json()


def cost_of(layout: Layout) -> float:
    """Return how long it takes to plan a layout, as a number of small plans."""
    stages = max(module.grid.size(Axis.PP) for module in layout.modules)
    forwards = sum(len(each.stages) * layout.num_groups(each) for each in layout.modules)
    is_listed = ORDERS[layout.schedule].fills_bubbles or not layout.is_star
    ways = 4 if is_listed else 1
    ranks = layout.world_size / _RANKS_PER_PLAN
    return 1 + (stages - 1) / _STAGES_PER_PLAN + ways * forwards / _COMPUTES_PER_PLAN + ranks
