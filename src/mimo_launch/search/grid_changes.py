"""Changes of ranks and grids, by which a step may be faster.

Decides: which placements and grids are tried, the nearest to the current ones first, and the
microbatches that go with them.
Relies on: the spec, and the GPU time of each module.
Leaves: other settings to `setting_changes`.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from mimo_launch.layout.layout import world_size
from mimo_launch.layout.space import Placement, Point, divisors, legal_grids, microbatch_numbers
from mimo_launch.search.changes import Ideas
from mimo_launch.search.setting_changes import MICROBATCHES_PER_STAGE, groups_for, in_phases
from mimo_launch.spec.base import LANGUAGE
from mimo_launch.spec.spec import Grid, Spec

_MAX_GRIDS = 10
# Shorter sequences are cut over cp only if they already are.
_LONG = 16_384


def grid_ideas(spec: Spec) -> Ideas:
    """Yield other grids of one module on its own ranks, language first."""
    for name in sorted(spec.modules, key=lambda name: name != LANGUAGE):
        for grid in nearest_grids(spec, name, len(spec.modules[name].rank_range)):
            settings: dict[str, Any] = {f"modules.{name}.grid": grid.model_dump()}
            if name == LANGUAGE:
                number = _microbatches(spec, grid, behind=not in_phases(spec))
                settings |= {"schedule.microbatches": number, "schedule.encoder_microbatches": None}
                settings |= {**_without_stages(grid), **groups_for(spec, number)}
            yield f"grid of {name}", settings


def placement_ideas(spec: Spec, work: Mapping[str, float]) -> Ideas:
    """Yield other ranks of modules: all on all ranks, or all encoders or one on separate ranks.

    `work` is the GPU time of each module in a step.
    """
    others = [name for name in spec.modules if name != LANGUAGE]
    world = world_size(spec)
    if not others:
        return
    if any(len(module.rank_range) < world for module in spec.modules.values()):
        for grid in (*_as_now(spec, world), *nearest_grids(spec, LANGUAGE, world)):
            everywhere = range(world)
            places = dict.fromkeys(spec.modules, everywhere)
            yield from _placed(spec, grid, places, _microbatches(spec, grid, behind=False))
    if spec.generators or world == 1:
        return
    needed = sum(work.get(name, 0.0) for name in others)
    share = work.get(LANGUAGE, 0.0) / max(1e-12, needed + work.get(LANGUAGE, 0.0))
    for shape in (*_as_now(spec, world), *nearest_grids(spec, LANGUAGE, world))[:3]:
        unit = shape.tp * shape.pp * shape.cp
        sizes = [n for n in divisors(spec.batch.global_) if n * unit < world]
        sizes.sort(key=lambda n: abs(n * unit - share * world))
        for dp in sizes[:3]:
            grid = shape.replace(dp=dp)
            yield from _apart(spec, grid, world, others)
            if len(others) == len(spec.encoders) > 1:
                # One separate encoder, the one with most work first.
                for name in sorted(others, key=lambda name: -work.get(name, 0.0)):
                    yield from _apart(spec, grid, world, [name])


def _apart(spec: Spec, grid: Grid, world: int, names: Collection[str]) -> Ideas:
    """Yield some modules on the ranks that language leaves, all others on language's ranks."""
    own = grid.num_ranks
    left = world - own
    first = left if left % grid.tp == 0 else 0
    rest = range(left) if first else range(own, world)
    ranks = range(first, first + own)
    places = {name: rest if name in names else ranks for name in spec.modules}
    yield from _placed(spec, grid, places, _microbatches(spec, grid, behind=True))


def _placed(spec: Spec, grid: Grid, places: Mapping[str, range], microbatches: int) -> Ideas:
    """Yield a placement, with this grid of language, unless a module has no grid on its ranks.

    Modules on ranks without language work on one microbatch at once, the others on all of a step.
    """
    own = places[LANGUAGE]
    found = {LANGUAGE: Placement(ranks=own, grid=grid)}
    for name, ranks in places.items():
        if name == LANGUAGE:
            continue
        samples = spec.batch.global_ // (1 if ranks == own else microbatches)
        fits = _narrowest(spec.modules[name].grid, len(ranks), samples)
        if fits is None:
            return
        found[name] = Placement(ranks=ranks, grid=fits)
    point = Point(places=found, microbatches=microbatches)
    yield "placement", {**point.settings(), **_without_stages(grid)}


def _narrowest(now: Grid, num_ranks: int, samples: int) -> Grid | None:
    """Return the grid with the least tp and equal shares of samples: tp 1, or no less than now."""
    unit = now.cp * now.pp
    if num_ranks % unit:
        return None
    sizes = [tp for tp in divisors(num_ranks // unit) if tp >= now.tp]
    for tp in (1, *sizes):
        dp = num_ranks // (tp * unit)
        if samples % dp == 0:
            return now.replace(tp=tp, dp=dp)
    return None


def _as_now(spec: Spec, num_ranks: int) -> Iterator[Grid]:
    """Yield language's grid with the dp that fills `num_ranks`, if there is one."""
    grid = spec.language.grid
    dp, rest = divmod(num_ranks, grid.tp * grid.cp * grid.pp)
    if rest == 0 and dp and spec.batch.global_ % dp == 0:
        yield grid.replace(dp=dp)


def nearest_grids(spec: Spec, name: str, num_ranks: int) -> list[Grid]:
    """Return other grids of a module on this many ranks, the nearest to the current one first."""
    now = spec.modules[name].grid
    cuts = {now.cp}
    if name == LANGUAGE and (now.cp > 1 or spec.batch.seq >= _LONG):
        cuts |= {2 * now.cp, max(1, now.cp // 2)}
    found = [
        grid
        for grid in legal_grids(spec, name, num_ranks)
        if grid.cp in cuts and (grid.tp, grid.pp, grid.cp) != (now.tp, now.pp, now.cp)
    ]
    found.sort(key=lambda grid: (_distance(grid, now), grid.pp, grid.cp))
    return found[:_MAX_GRIDS]


def _distance(grid: Grid, now: Grid) -> float:
    """Return how far a grid is from the current one: the sum of the factors between their sizes.

    A deeper pipeline counts twice: it waits longer, and a shallower one rarely does not fit.
    """
    deeper = 2 if grid.pp > now.pp else 1
    return _factor(grid.tp, now.tp) + deeper * _factor(grid.pp, now.pp) + _factor(grid.cp, now.cp)


def _factor(one: int, other: int) -> float:
    """Return the factor by which two sizes differ, 1 if they are equal."""
    return max(one, other) / min(one, other)


def _microbatches(spec: Spec, grid: Grid, *, behind: bool) -> int:
    """Return the microbatches for a grid of language; `behind` says that encoders use other ranks.

    There are enough to fill the pipeline, and none is larger than now.
    """
    legal = microbatch_numbers(spec, grid)
    now = spec.batch.global_ // (spec.language.grid.dp * spec.schedule.microbatches)
    stages = grid.pp + (behind and len(spec.modules) > 1)
    least = max(MICROBATCHES_PER_STAGE * stages if stages > 1 else 1, -(-legal[-1] // now))
    return next((number for number in legal if number >= least), legal[-1])


def _without_stages(grid: Grid) -> dict[str, Any]:
    """Return the order of a step without a pipeline, if a grid has none."""
    return {} if grid.pp > 1 else {"schedule.kind": "1f1b", "schedule.virtual_stages": 1}
