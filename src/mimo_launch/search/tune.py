"""Finds the fastest layouts of given models, data and batch on a number of GPUs.

Decides: where the search starts, when it looks further, and which layouts are listed.
Relies on: `search` for the search; `placements`, `moves` and `wide_moves` for layouts to look at.
Leaves: the table, and specs of the layouts, to `cli`.

Starting points are all placements of plain layouts. From there the search climbs: it looks at every
change of the best layouts, then jumps from them and draws points at random, by a fixed seed.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice, tee
from random import Random
from typing import Any

from mimo_launch.checks.all_checks import is_legal
from mimo_launch.checks.memory import TOLERANCE
from mimo_launch.diag.frozen import frozen
from mimo_launch.diag.quantities import counted, listed
from mimo_launch.estimate.device_constants import Calibration
from mimo_launch.estimate.estimates import Estimator
from mimo_launch.layout.layout import world_size
from mimo_launch.layout.space import Placement, Point, legal_grids, microbatch_numbers
from mimo_launch.plan.plan import Plan
from mimo_launch.search.changes import Change, with_settings
from mimo_launch.search.judge import Judge, Planned, text_of
from mimo_launch.search.moves import neighbours, parts_of_dp, varied
from mimo_launch.search.pins import Pins
from mimo_launch.search.placements import MICROBATCHES_PER_STAGE, placements, with_others
from mimo_launch.search.search import INFINITE, Search
from mimo_launch.search.team import Team
from mimo_launch.search.wastes import work_of
from mimo_launch.search.wide_moves import changes, drawn, jump
from mimo_launch.spec.base import AXES, LANGUAGE
from mimo_launch.spec.load import dump_spec, spec_from_data
from mimo_launch.spec.spec import Grid, Spec
from mimo_launch.spec.values import GPUS, MEASURED

# Small plans that a search makes in a second: on two cores it takes about that long.
PLANS_PER_SECOND = 80
# Layouts that are planned together, the best ones from which a search climbs and jumps, and those
# of them whose near changes come before all other changes.
_WIDTH, _BEAM, _NEAR = 8, 12, 2
# Jumps and random points that are looked at together, and how often without a better layout.
_JUMPS, _MOST_FRUITLESS = 60, 12
# Changes of a layout that are looked at together.
_AT_ONCE = 32
# Parts of all plans: what starting points may take; what is kept for the other layouts of the list,
# at least and at most, and how many plans for each; what is kept to estimate the best over the run.
_FOR_STARTS, _FOR_OTHERS, _PER_OTHER, _FOR_WHOLE = 0.4, (0.05, 0.2), 40, (0.1, 0.25)
# The part of all plans that further ways of starting points may take.
_FOR_VARIED = 0.2
# What a bound costs; this number of layers, which can be cut in many ways, doubles it.
_BOUND, _LAYERS_PER_BOUND = 0.4, 64
# The layouts that are estimated over the run if the plans suffice: a multiple of those that are
# listed, and a least number. One step says less about uneven layouts, so slightly worse ones, by a
# share of `_SLACK`, are planned, too.
_CLOSER, _LEAST_CLOSER, _SLACK = 2, 24, 0.01
# The share of a step that a layout without unusual settings may take longer.
_FOR_PLAIN = 0.002


class NoLayout(ValueError):
    """No layout on these GPUs is legal with what is pinned; `help` says what to do."""

    def __init__(self, message: str, help_: str) -> None:
        super().__init__(message)
        self.help = help_


@frozen(kw_only=True, slots=False)
class Wish:
    """What is sought: layouts on up to `gpus` GPUs with all `pins`, `top` of them, by `plans`."""

    gpus: int
    pins: Pins = field(default_factory=Pins)
    top: int = 10
    plans: float = 30 * PLANS_PER_SECOND
    processes: int = 1


@frozen
class Layouts:
    """The layouts that were found, the fastest first; `planned` of `compared` ones were planned.

    Each has its estimates over the whole run.
    """

    found: tuple[tuple[Planned, Estimator], ...]
    planned: int
    compared: int


Say = Callable[[float, float], None]


def tune(
    spec: Spec,
    wish: Wish,
    constants: Calibration | None = None,
    say: Say = lambda part, seconds: None,
) -> Layouts:
    """Return the fastest layouts of a spec whose own layout does not matter.

    `say` is told which part of the plans is spent, and the seconds of the best step so far.

    Raises: NoLayout.
    """
    start = next(_legal_starts(spec, wish), None)
    if start is None:
        pinned = f" with {listed([*wish.pins.settings])} as pinned" if wish.pins.settings else ""
        batch = f"take a batch that {counted(wish.gpus, 'rank')} can share"
        raise NoLayout(
            f"no layout on {counted(wish.gpus, 'GPU')} is legal{pinned}",
            "drop a --keep" if pinned else batch,
        )
    whole = Estimator.of(Plan.of(start), constants)
    base = whole.brief
    memory = start.nodes.memory if start.nodes else None
    limit = int((1 - TOLERANCE) * (memory or GPUS[MEASURED].memory))
    judge = Judge(base, limit, wish.pins, steps=len(whole.simulated))
    with Team(judge, wish.processes) as team:
        layers = sum(each.model.layers for each in start.modules.values())
        bound = _BOUND * (1 + layers / _LAYERS_PER_BOUND)
        search = Search(
            judge=judge, left=wish.plans, width=_WIDTH, slack=_SLACK, bound=bound, team=team
        )
        search.take(Change("", {}, start), judge.plan_of(start))
        work = work_of(base.layout, base.estimates())
        least, most = (part * wish.plans for part in _FOR_WHOLE)
        reserve = min(most, max(least, wish.top * judge.cost_of_whole(start)))
        _Climb(search, wish, Point.of(start), work, say).run(reserve)
        return _closer(search, wish)


@dataclass
class _Climb:
    """A search from all placements, then from its best layouts."""

    search: Search
    wish: Wish
    start: Point
    work: Mapping[str, float]
    say: Say
    _random: Random = field(default_factory=lambda: Random(0))
    _changes: dict[tuple[str, bool], Iterator[Point]] = field(default_factory=dict)

    def run(self, reserve: float) -> None:
        """Search until `reserve` plans are left, or nothing better is in sight."""
        search, spec, gpus = self.search, self.search.judge.base.spec, self.wish.gpus
        least, most = (part * self.wish.plans for part in _FOR_OTHERS)
        last = reserve + min(most, max(least, _PER_OTHER * (self.wish.top - 1)))
        for_starts = last + (1 - _FOR_STARTS) * (search.left - last)
        starts, again = tee(placements(spec, self.start, self.work, gpus))
        search.look(starts, {}, for_starts)
        others = (each for start in again for each in varied(spec, start))
        search.look(others, {}, max(for_starts, search.left - _FOR_VARIED * self.wish.plans))
        search.drain(for_starts, alone=True)
        if not search.found:
            search.drain(last, alone=True)
        fruitless = 0
        while search.left > last and fruitless < _MOST_FRUITLESS:
            self.say(1 - search.left / self.wish.plans, search.least)
            least = search.least
            beam = [each for _, each in islice(_first_of_each(search.best, _course), _BEAM)]
            near = self._next_near(beam)
            points = self._far([Point.of(each.change.spec) for each in beam])
            search.look(near or points, until=last)
            search.drain(last, alone=True)
            if search.least < least:
                fruitless = 0
            elif not near:
                fruitless += 1
        self._seek_others(reserve)

    def _next_near(self, beam: Sequence[Planned]) -> list[Point]:
        """Return some changes that were not looked at: near ones of the best, then all others.

        How fast a layout can be shows only when its pipeline, parts of dp and encoders suit it.
        """
        spec = self.search.judge.base.spec
        for is_near in (True, False):
            for each in beam[:_NEAR] if is_near else beam:
                key = text_of(each.change), is_near
                if key not in self._changes:
                    point = Point.of(each.change.spec)
                    near = chain(parts_of_dp(spec, point), neighbours(spec, point))
                    self._changes[key] = near if is_near else self._far_from(point)
                if some := list(islice(self._changes[key], _AT_ONCE)):
                    return some
        return []

    def _far_from(self, point: Point) -> Iterator[Point]:
        found = [*changes(self.search.judge.base.spec, point, self.wish.gpus)]
        return iter(self._random.sample(found, len(found)))

    def _seek_others(self, reserve: float) -> None:
        """Plan the layouts that place or cut modules otherwise, and take little longer.

        They are near the fastest; then come other settings of those that would be listed.
        """
        search, grown = self.search, set[str]()
        while search.left > reserve:
            listed = list(islice(_by_shape(search.best).items(), self.wish.top))
            todo = [each for _, each in listed if text_of(each.change) not in grown]
            is_best = bool(todo) and todo[0] is listed[0][1]
            if not is_best and search.plan_some(self._may_be_among(dict(listed)), reserve):
                continue
            if not todo:
                return
            grown.add(text_of(todo[0].change))
            # Near the fastest are other shapes, of which some are planned, too.
            until = (search.left + reserve) / 2 if is_best else reserve
            search.look(self._around(todo[0], may_reshape=is_best), until=until)

    def _around(self, planned: Planned, *, may_reshape: bool) -> Iterator[Point]:
        """Yield changes of a layout: of its settings, or also of its shape."""
        spec, point = self.search.judge.base.spec, Point.of(planned.change.spec)
        if may_reshape:
            yield from neighbours(spec, point)
            yield from changes(spec, point, self.wish.gpus)
        else:
            near = neighbours(spec, point)
            yield from (each for each in near if _shape(each) == _shape(point))

    def _may_be_among(self, listed: Mapping[Any, Planned]) -> Callable[[Point, float], bool]:
        """Return whether a layout with a bound may be the best of its shape, and be listed."""
        is_full = len(listed) == self.wish.top
        last = max((each.seconds for each in listed.values()), default=INFINITE)

        def may_be(point: Point, bound: float) -> bool:
            own = listed.get(_shape(point))
            return bound < (own.seconds if own else last if is_full else INFINITE)

        return may_be

    def _far(self, beam: Sequence[Point]) -> Iterator[Point]:
        """Yield points some random moves away from good ones, and points at random."""
        spec, gpus = self.search.judge.base.spec, self.wish.gpus
        for _ in range(_JUMPS):
            yield drawn(spec, self.start, gpus, self._random)
            if beam:
                yield jump(spec, self._random.choice(beam), gpus, self._random)


def _closer(search: Search, wish: Wish) -> Layouts:
    """Return the best layouts of each shape, estimated over the whole run."""
    base, chosen = search.judge.base, dict[str, Planned]()
    for each in _candidates(search.best, wish.top):
        plain = _plainer(search, each)
        if (text := text_of(plain.change)) not in chosen:
            search.left -= search.judge.cost_of_whole(plain.change.spec)
            if chosen and search.left < 0:
                break
            chosen[text] = plain
    whole = search.team.map("whole", [(each.change.spec,) for each in chosen.values()])
    found = [
        replace(each, estimates=estimates)
        for each, estimates in zip(chosen.values(), whole, strict=True)
        if estimates is not None
    ]
    shapes = _by_shape(sorted(found, key=lambda one: one.seconds))
    return Layouts(
        found=tuple(
            (each, Estimator.of(Plan.of(each.change.spec), base.constants))
            for each in islice(shapes.values(), wish.top)
        ),
        planned=sum(search.tried.values()),
        compared=search.compared,
    )


def _candidates(best: Sequence[Planned], top: int) -> list[Planned]:
    """Return the best layouts of the shapes that may be listed, then others.

    Layouts of a shape may change places when they are estimated over all steps.
    """
    of_shapes, most = list(_by_shape(best).values()), max(_LEAST_CLOSER, _CLOSER * top)
    return [*of_shapes[:top], *best[:most], *of_shapes[top:most]]


def _plainer(search: Search, found: Planned) -> Planned:
    """Return a layout without settings that hardly make it faster.

    These are orders of axes, parts of dp, and parts of modules on the host.
    """
    judge, own = search.judge, Point.of(found.change.spec)
    simple = own
    for name in own.places:
        simple = simple.moved(name, order=AXES, shard_over=None)
    simplest = simple
    for name in own.places:
        simplest = simplest.moved(name, offload=())
    for point in (simplest, simple):
        kept = judge.pins.kept_by(point)
        change = None if kept is None else judge.legal(kept.settings())
        if change is None or change.spec == found.change.spec:
            continue
        plain = search.same(change)
        if plain is not None and plain.seconds <= (1 + _FOR_PLAIN) * found.seconds:
            return plain
    return found


def _by_shape(best: Iterable[Planned]) -> dict[Any, Planned]:
    """Return the first layout of each shape."""
    return dict(_first_of_each(best, _shape))


def _first_of_each(
    best: Iterable[Planned], key: Callable[[Point], Any]
) -> Iterator[tuple[Any, Planned]]:
    """Yield each value of a key with the first layout that has it."""
    seen = set()
    for each in best:
        value = key(Point.of(each.change.spec))
        if value not in seen:
            seen.add(value)
            yield value, each


def _course(point: Point) -> Any:
    """Return how language is cut, and into which microbatches: most other settings suit these."""
    return point.language.ranks, point.language.grid, point.microbatches


def _shape(point: Point) -> Any:
    """Return where modules lie and how they are cut."""
    return tuple((each.ranks, each.grid) for each in point.places.values())


def bare(spec: Spec, gpus: int) -> dict[str, Any]:
    """Return the data of a spec without its layout."""
    data = dump_spec(spec)
    return with_settings(data, dict.fromkeys(Point.of(spec).settings()))


def _legal_starts(spec: Spec, wish: Wish) -> Iterator[Spec]:
    """Yield legal specs on these GPUs: as it is, then plain layouts."""
    if world_size(spec) <= wish.gpus and wish.pins.hold_in(spec) and is_legal(spec, files=False):
        yield spec
    data = bare(spec, wish.gpus)
    for point in _plain(spec, wish.gpus):
        if (kept := wish.pins.kept_by(point)) is None:
            continue
        try:
            made = spec_from_data(with_settings({"schedule": {}, **data}, kept.settings()))
        except ValueError:
            continue
        if is_legal(made, files=False) and wish.pins.hold_in(made):
            yield made


def _plain(spec: Spec, gpus: int) -> Iterator[Point]:
    """Yield plain layouts of all modules on the same ranks, on most GPUs first."""
    for number in range(gpus, 0, -1):
        grids = legal_grids(spec, LANGUAGE, number)
        for grid in sorted(grids, key=lambda each: (each.cp, each.tp * each.pp, each.pp)):
            legal = microbatch_numbers(spec, grid)
            least = MICROBATCHES_PER_STAGE * grid.pp if grid.pp > 1 else 1
            places = {name: Placement(ranks=range(number), grid=Grid()) for name in spec.modules}
            places[LANGUAGE] = Placement(ranks=range(number), grid=grid)
            others = dict.fromkeys([name for name in places if name != LANGUAGE], range(number))
            for many in [n for n in legal if n >= least] or legal[-1:]:
                yield from with_others(spec, Point(places=places, microbatches=many), others)
