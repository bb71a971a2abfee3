"""The search for layouts: plans the one with the least bound, and looks at those near good ones.

Decides: in which order layouts are planned, and how many: as many as a number of small plans pays
for, so that equal searches give equal answers on every machine.
Relies on: `judge` for single layouts, `team` for the processes that judge, `moves` for the layouts
near a point and for lighter ones.
Leaves: where a search starts, and what follows from it, to `advice` and `tune`.

Bounds order all layouts that are in sight. A layout with a bound above the best plan is never
planned, since it cannot be better. A layout that does not fit is replaced by lighter ones.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import count, islice

from mimo_launch.diag.frozen import frozen
from mimo_launch.layout.space import Point
from mimo_launch.search.changes import Change, Settings, changed, kind_between
from mimo_launch.search.judge import Bound, Judge, Judgement, Planned, text_of
from mimo_launch.search.moves import neighbours
from mimo_launch.search.team import Team

# How many layouts are judged before the rest is counted.
_AT_ONCE = 32
# A lighter layout leaves a part of the memory free: bounds leave out what only a plan knows.
_ROOM = 0.97
# What lighter layouts take to find, in bounds.
_LADDERS = 4
# No plan may take a larger part of what is left.
_MOST_AT_ONCE = 0.25
INFINITE = float("inf")


@frozen
class _Seen:
    """A layout in sight; `more` are settings outside of its point, `kind` what it changes first."""

    point: Point
    more: Settings
    is_lighter: bool
    kind: str = ""

    @property
    def settings(self) -> Settings:
        return {**self.point.settings(), **self.more}


@dataclass(kw_only=True)
class Search:
    """Plans layouts until as many small plans are spent as are `left`.

    `most` gives the seconds that a layout on so many ranks may take at most to be of use. A layout
    is better if it takes a share of `step` less, and is planned if its bound is not above the best
    by a share of `slack`. A legal layout in sight costs a `bound`. `ways` are settings outside of a
    layout that may make it faster. `width` layouts are planned together. With `of_each_kind` it
    seeks the best of each kind of change, not only the best of all. `found` are the layouts that
    fit; `tried` counts the planned ones by what they change first.
    """

    judge: Judge
    left: float
    most: Callable[[int], float] = lambda ranks: INFINITE
    step: float = 0.0
    slack: float = 0.0
    bound: float = 0.05
    width: int = 1
    ways: tuple[Settings, ...] = ()
    of_each_kind: bool = False
    team: Team
    found: list[Planned] = field(default_factory=list)
    seen: dict[str, Planned | None] = field(default_factory=dict)
    tried: Counter[str] = field(default_factory=Counter)
    _most_cost: float = 1.0
    _least_of: dict[str, float] = field(default_factory=dict)
    _queue: list[tuple[float, int, _Seen]] = field(default_factory=list)
    _settings: set[str] = field(default_factory=set)
    _in_sight: set[str] = field(default_factory=set)
    _numbers: Iterator[int] = field(default_factory=count)

    @property
    def compared(self) -> int:
        """The number of legal layouts that were in sight: each has a bound, or a plan."""
        return len(self._in_sight | self.seen.keys())

    @property
    def best(self) -> list[Planned]:
        """The layouts that fit, the fastest first."""
        return sorted(self.found, key=lambda each: each.seconds)

    @property
    def least(self) -> float:
        """The seconds of the fastest layout that fits; infinite if none does."""
        return min((each.seconds for each in self.found), default=INFINITE)

    def look(
        self,
        points: Iterable[Point],
        more: Settings | None = None,
        until: float = 0.0,
        *,
        are_lighter: bool = False,
    ) -> None:
        """Queue points that are new, legal and perhaps of use, while more than `until` is left."""
        new = self._new(points, more or {}, are_lighter=are_lighter)
        while self.left > until and (some := list(islice(new, _AT_ONCE))):
            # Layouts that are lighter already are not replaced by others if they do not fit.
            method = "bound_if_fits" if are_lighter else "bound"
            asked = [(each.settings, self.most(each.point.num_ranks)) for each in some]
            bounds = self.team.map(method, asked)
            for each, found in zip(some, bounds, strict=True):
                if found is not None:
                    self._see(each, found)

    def _see(self, each: _Seen, found: Bound, *, is_next: bool = False) -> None:
        """Queue a layout that is new and perhaps of use, before all others if it `is_next`."""
        if found.text in self._in_sight or found.text in self.seen:
            return
        self._in_sight.add(found.text)
        self.left -= self.bound
        if found.seconds < self.most(each.point.num_ranks):
            seen = replace(each, kind=found.kind)
            order = 0.0 if is_next else found.seconds
            heappush(self._queue, (order, next(self._numbers), seen))

    def _lighten(self, heavy: Iterable[_Seen]) -> None:
        """Queue lighter layouts than some that do not fit."""
        todo = list(heavy)
        asked = [(each.point, each.more, _ROOM) for each in todo]
        for each, found in zip(todo, self.team.map("lighter", asked), strict=True):
            self.left -= _LADDERS * self.bound
            least = min((bound.seconds for _, bound in found), default=0.0)
            for point, bound in found:
                # While none fits, a layout that does is worth more than a faster one that may.
                is_next = not self.found and bound.seconds == least
                self._see(_Seen(point, each.more, is_lighter=True), bound, is_next=is_next)

    def _new(
        self, points: Iterable[Point], more: Settings, *, are_lighter: bool
    ) -> Iterator[_Seen]:
        for point in points:
            if (kept := self.judge.pins.kept_by(point)) is None:
                continue
            each = _Seen(kept, more, are_lighter)
            if (text := repr(each.settings)) not in self._settings:
                self._settings.add(text)
                yield each

    def grow(self, point: Point, more: Settings | None = None) -> None:
        """Look at the layouts near a point, and at itself with each of the other `ways`."""
        for other in self.ways:
            self.look((point,), {**(more or {}), **other})
        self.look(neighbours(self.judge.base.spec, point), more)

    def drain(self, reserve: float = 0.0, *, alone: bool = False) -> None:
        """Plan queued layouts, the least bound first, until none can be faster than the best.

        With `alone`, look at none near them.
        """
        least = self.least
        while self.left > reserve:
            some = list(islice(self._next(least), self._at_once(reserve)))
            if not some:
                break
            plans = self._planned(some)
            for each, planned in zip(some, plans, strict=True):
                if planned is not None and planned.seconds < (1 - self.step) * least:
                    least = planned.seconds
                    if not alone:
                        self.grow(each.point, each.more)

    def plan_some(self, is_useful: Callable[[Point, float], bool], reserve: float) -> bool:
        """Plan the queued layouts of least bound that are useful, and drop others before them.

        Return whether there was any.
        """
        some, most = list[_Seen](), self._at_once(reserve)
        while self._queue and len(some) < most:
            bound, _, each = heappop(self._queue)
            if is_useful(each.point, bound):
                some.append(each)
        self._planned(some)
        return bool(some)

    def _at_once(self, reserve: float) -> int:
        """Return how many layouts may be planned together: what is left pays for all of them."""
        return max(1, min(self.width, int((self.left - reserve) / self._most_cost)))

    def _next(self, least: float) -> Iterator[_Seen]:
        """Yield queued layouts that may beat the best, or the best of their kind; drop others."""
        while self._queue:
            bound, _, each = self._queue[0]
            before = self._least_of.get(each.kind, INFINITE) if self.of_each_kind else least
            may_help = bound < (1 - self.step + self.slack) * before
            if not (may_help or self.of_each_kind):
                return
            heappop(self._queue)
            if may_help:
                yield each

    def _planned(self, some: Sequence[_Seen]) -> list[Planned | None]:
        """Plan layouts at once; those that fit are `found`, others become lighter."""
        most = self.left * _MOST_AT_ONCE
        judged = self.team.map("plan", [(each.settings, most) for each in some])
        pairs = list(zip(some, judged, strict=True))
        plans = [self._taken(*each) for each in pairs]
        self._lighten(e for e, said in pairs if said.is_too_large and not e.is_lighter)
        return plans

    def _taken(self, seen: _Seen, judged: Judgement) -> Planned | None:
        """Note what a plan said of a queued layout; return it if it fits: it is then `found`."""
        change = changed(self.judge.base.spec, "", seen.settings)
        return None if change is None else self.take(change, judged)

    def plan(self, change: Change) -> Planned | None:
        """Plan a legal change; return it if it fits and takes not too long to plan."""
        return self.take(change, self.judge.plan(change.settings, self.left * _MOST_AT_ONCE))

    def take(self, change: Change, judged: Judgement) -> Planned | None:
        """Note what a plan said of a change, and what it cost."""
        self.left -= judged.cost
        self._most_cost = max(self._most_cost, judged.cost)
        if not judged.is_planned:
            return None
        if not change.kind:
            change = replace(change, kind=kind_between(self.judge.base.spec, change.spec))
        self.tried[change.kind] += 1
        text, estimates = text_of(change), judged.estimates
        self.seen[text] = planned = None if estimates is None else Planned(change, estimates)
        if planned is not None:
            self.found.append(planned)
            before = self._least_of.get(change.kind, INFINITE)
            self._least_of[change.kind] = min(before, planned.seconds)
        return planned

    def same(self, change: Change) -> Planned | None:
        """Return what is known of a change, after planning it if it is new and legal."""
        text = text_of(change)
        if text not in self.seen and self.judge.legal(change.settings) is not None:
            self.plan(change)
        return self.seen.get(text)
