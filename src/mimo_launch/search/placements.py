"""Placements of all modules on a number of ranks, with grids and microbatches for them.

Decides: which modules may share ranks or have ranks of their own, how many ranks those are, and
which grids are near the current one.
Relies on: `layout.space` for what divides evenly, `settled_points` for what goes with a grid.
Leaves: changes of one setting to `moves`, which points are fast to `bounds` and `advice`.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from mimo_launch.kinds.registry import kind_of
from mimo_launch.layout.layout import world_size
from mimo_launch.layout.space import Placement, Point, divisors, legal_grids, microbatch_numbers
from mimo_launch.search.settled_points import meet, plain, settled
from mimo_launch.spec.base import LANGUAGE
from mimo_launch.spec.spec import Grid, Spec

# Fewer leave the ranks of a pipeline idle for too long.
MICROBATCHES_PER_STAGE = 4
NEAR_GRIDS = 10
_MOST_GRIDS = 24
# Numbers of ranks that modules may have to themselves: parts of all ranks, and how many are tried.
_PARTS, _MOST_SIZES = 24, 3
# Shorter sequences are cut over cp only if they already are.
_LONG = 16_384


def placements(spec: Spec, point: Point, work: Mapping[str, float], world: int) -> Iterator[Point]:
    """Yield placements of all modules on so many ranks, with grids and microbatches for them.

    Modules share all ranks, or have some of language's, or ranks of their own in full or in part.
    `work` is the GPU time of each module in a step.
    """
    yield from _in_turn([_shared(spec, point, world), _apart(spec, point, world, work)])


def smaller_worlds(spec: Spec) -> list[int]:
    """Return smaller numbers of ranks, whole hosts where there are several, most first."""
    world = world_size(spec)
    unit = spec.nodes.gpus if spec.nodes and world > spec.nodes.gpus else 1
    found = {each // unit * unit for each in (world - unit, world * 3 // 4, world // 2)}
    return sorted((each for each in found if 0 < each < world), reverse=True)


def _in_turn(ways: Iterable[Iterator[Point]]) -> Iterator[Point]:
    """Yield an item of each iterator in turn."""
    left = list(ways)
    while left:
        for each in list(left):
            found = next(each, None)
            if found is None:
                left.remove(each)
            else:
                yield found


def _shared(spec: Spec, point: Point, world: int) -> Iterator[Point]:
    """Yield language on all ranks, and the other modules on all or on the first of them."""
    others = [name for name in point.places if name != LANGUAGE]
    for grid in _grids_of_language(spec, point, world):
        first = [world, world // grid.pp] if others else [world]
        kept = {len(point.places[name].ranks) for name in others}
        sizes = [n for n in dict.fromkeys((*first, *sorted(kept))) if 0 < n <= world]
        for number in numbers_for(spec, point, grid, ahead=False):
            bare = _with_language(point, range(world), grid, number)
            for size in sizes:
                yield from with_others(spec, bare, dict.fromkeys(others, range(size)))


def _apart(spec: Spec, point: Point, world: int, work: Mapping[str, float]) -> Iterator[Point]:
    """Yield some modules on ranks of their own, or with a part of language's, the rest with it."""
    others = [name for name in point.places if name != LANGUAGE]
    encoders = [name for name in others if name in spec.encoders]
    groups = [others, encoders, *([name] for name in sorted(others, key=lambda n: -work.get(n, 0)))]
    ways = [list(each) for each in dict.fromkeys(map(tuple, groups)) if each]
    for names in ways:
        share = sum(work.get(name, 0.0) for name in names) / max(1e-12, sum(work.values()))
        now = {len(point.places[name].ranks) for name in names}
        unit = max(1, world // _PARTS)
        near = sorted(range(unit, world, unit), key=lambda n: abs(n - share * world))
        legal = (n for n in near if _grids_of_language(spec, point, world - n))
        for size in dict.fromkeys((*islice(legal, _MOST_SIZES), *sorted(now))):
            if not 0 < size < world:
                continue
            for grid in _grids_of_language(spec, point, world - size)[: _MOST_GRIDS // 2]:
                for number in numbers_for(spec, point, grid, ahead=True):
                    first = size if size % grid.tp == 0 else 0
                    own = range(first, first + world - size)
                    rest = range(size) if first else range(world - size, world)
                    bare = _with_language(point, own, grid, number)
                    ranks = {name: rest if name in names else own for name in others}
                    yield from with_others(spec, bare, ranks)
            over = range(size // 2, world)
            for grid in (
                _grids_of_language(spec, point, len(over))[: NEAR_GRIDS // 2] if size > 1 else ()
            ):
                for number in numbers_for(spec, point, grid, ahead=False)[:1]:
                    bare = _with_language(point, over, grid, number)
                    ranks = {name: range(size) if name in names else over for name in others}
                    yield from with_others(spec, bare, ranks)


def _with_language(point: Point, ranks: range, grid: Grid, microbatches: int) -> Point:
    moved = plain(point.moved(LANGUAGE, ranks=ranks, grid=grid))
    return replace(moved, microbatches=microbatches, at_once=None)


def with_others(spec: Spec, point: Point, ranks: Mapping[str, range]) -> Iterator[Point]:
    """Yield a point with other modules on these ranks, unless one has no grid on them."""
    places: dict[str, Placement] = dict(point.places)
    own, batch = point.language.ranks, spec.batch.global_
    # Where some encoders share ranks with language, others take one microbatch at a time.
    alone = (
        batch // point.microbatches if any(meet(own, each) for each in ranks.values()) else batch
    )
    for name, mine in ranks.items():
        samples = batch if meet(own, mine) else alone
        grid = _narrowest(places[name].grid, len(mine), samples)
        if grid is None:
            # Some of the ranks divide the samples evenly, all do not.
            grid = Grid(dp=max(n for n in divisors(samples) if n <= len(mine)))
        places[name] = replace(places[name], ranks=mine[: grid.num_ranks], grid=grid)
    yield settled(spec, replace(point, places=places, at_once=None, idle=None))


def _narrowest(now: Grid, num_ranks: int, samples: int) -> Grid | None:
    """Return the grid with equal shares of samples: as now, but with tp 1 if that divides, too."""
    ways = (now.replace(tp=1), now, Grid())
    for grid in ways:
        dp, rest = divmod(num_ranks, grid.tp * grid.cp * grid.pp)
        if dp and not rest and samples % dp == 0:
            return grid.replace(dp=dp)
    return None


def _grids_of_language(spec: Spec, point: Point, num_ranks: int) -> list[Grid]:
    """Return grids of language on this many ranks, the ones like now first."""
    now = point.language.grid
    dp, rest = divmod(num_ranks, now.tp * now.cp * now.pp)
    same = [now.replace(dp=dp)] if not rest and dp and spec.batch.global_ % dp == 0 else []
    return [*same, *nearest_grids(spec, LANGUAGE, now, num_ranks)]


def nearest_grids(spec: Spec, name: str, now: Grid, num_ranks: int) -> list[Grid]:
    """Return other grids of a module on this many ranks, the nearest to the current one first."""
    cuts: Collection[int] = {now.cp, max(1, now.cp // 2), 1}
    if name == LANGUAGE and (now.cp > 1 or spec.batch.seq >= _LONG):
        cuts = {now.cp, 2 * now.cp, 4 * now.cp, max(1, now.cp // 2), 1}
    heads = kind_of(spec.modules[name].model).cuts.heads or 0
    found = [
        grid
        for grid in legal_grids(spec, name, num_ranks, heads=heads, cuts=cuts)
        if (grid.tp, grid.pp, grid.cp) != (now.tp, now.pp, now.cp)
    ]
    found.sort(key=lambda grid: (_distance(grid, now), grid.pp, grid.cp))
    return found[:_MOST_GRIDS]


def _distance(grid: Grid, now: Grid) -> float:
    """Return how far a grid is from the current one: the sum of the factors between their sizes.

    A deeper pipeline counts twice: it waits longer, and a shallower one rarely does not fit.
    """
    deeper = 2 if grid.pp > now.pp else 1
    return _factor(grid.tp, now.tp) + deeper * _factor(grid.pp, now.pp) + _factor(grid.cp, now.cp)


def _factor(one: int, other: int) -> float:
    """Return the factor by which two sizes differ, 1 if they are equal."""
    return max(one, other) / min(one, other)


def numbers_for(spec: Spec, point: Point, grid: Grid, *, ahead: bool) -> Sequence[int]:
    """Return numbers of microbatches for a grid of language: few, and as small ones as now.

    There are enough to fill the pipeline; `ahead` says that other modules run before it.
    """
    legal = microbatch_numbers(spec, grid)
    now = spec.batch.global_ // (point.language.grid.dp * point.microbatches)
    stages = grid.pp + (ahead and len(spec.modules) > 1)
    least = MICROBATCHES_PER_STAGE * stages if stages > 1 else 1
    wanted = (max(least, -(-legal[-1] // now)), least)
    found = (next((n for n in legal if n >= each), legal[-1]) for each in wanted)
    return list(dict.fromkeys(found))
