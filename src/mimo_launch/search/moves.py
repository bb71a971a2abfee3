"""Moves from a point of the space of layouts to others.

Decides: which points are near a point, and which placements are worth a look at all.
Relies on: `layout.space` for what divides evenly.
Leaves: which grids suit hosts and batch to `layout.space`, the rules of models to `checks`, lighter
points to `ladders`, which points are fast to `bounds` and `advice`.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import get_args

from mimo_launch.kinds.module_weights import has_backward
from mimo_launch.kinds.registry import kind_of
from mimo_launch.layout.layout import world_size
from mimo_launch.layout.space import (
    Placement,
    Point,
    divisors,
    expert_grids,
    legal_grids,
    microbatch_numbers,
)
from mimo_launch.layout.stages import even_stages
from mimo_launch.spec.base import LANGUAGE
from mimo_launch.spec.module import Offloaded, Recompute
from mimo_launch.spec.spec import ExpertGrid, Grid, Spec

# Fewer leave the ranks of a pipeline idle for too long.
MICROBATCHES_PER_STAGE = 4
# More stages on a rank shorten bubbles by little, and send more activations.
_MOST_STAGES = 5
_MOST_GRIDS = 24
_NEAR_GRIDS = 10
# Numbers of ranks that modules may have to themselves: parts of all ranks, and how many are tried.
_PARTS, _MOST_SIZES = 24, 3
# Shorter sequences are cut over cp only if they already are.
_LONG = 16_384
# Layers that the first and the last stage of language get, of more than two stages or of two.
_SHIFTS = ((0, -1), (0, 1), (-1, 0), (1, 0), (-1, -1), (0, -2))
_SHIFTS_OF_TWO = ((1, -1), (-1, 1), (2, -2))
# What may be recomputed instead of whole layers, from the least time to the least memory.
LESS_AGAIN: tuple[Recompute, ...] = ("none", ("norms",), ("mlp", "norms"))
_OFFLOADED: tuple[Offloaded, ...] = get_args(Offloaded)


def neighbours(spec: Spec, point: Point) -> Iterator[Point]:
    """Yield the points that differ in one setting, and in what has to go with it."""
    yield from _microbatches(spec, point)
    yield from _orders(spec, point)
    yield from _stages(spec, point)
    for name, place in point.places.items():
        yield from _keeping_more(spec, point, name)
        yield from _experts(spec, point, name)
        if place.grid.dp * place.grid.cp > 1:
            other = "optimizer" if place.sharding == "full" else "full"
            yield point.moved(name, sharding=other)
    for name in sorted(point.places, key=lambda name: name != LANGUAGE):
        place = point.places[name]
        for grid in _nearest(spec, name, place.grid, len(place.ranks))[:_NEAR_GRIDS]:
            moved = point.moved(name, grid=grid)
            if name == LANGUAGE:
                for number in _numbers(spec, point, grid, ahead=not sharing(spec, point)):
                    yield settled(spec, plain(replace(moved, microbatches=number, at_once=None)))
            else:
                yield settled(spec, moved)
    for name in point.places:
        if name != LANGUAGE:
            yield from _other_ranks(spec, point, name)


def _keeping_more(spec: Spec, point: Point, name: str) -> Iterator[Point]:
    """Yield a module that recomputes less, keeps a part on the host instead, or one part less."""
    place = point.places[name]
    own = place.offload or ()
    if place.recompute != "none":
        for less in LESS_AGAIN:
            if less != place.recompute:
                yield point.moved(name, recompute=less)
        for part in may_offload(spec, name):
            if part not in own:
                yield point.moved(name, recompute="none", offload=with_part(own, part))
    for part in own:
        yield point.moved(name, offload=without_part(own, part))


def may_offload(spec: Spec, name: str) -> list[Offloaded]:
    """Return the parts of a module that its own setting can put on the host.

    FP8 products keep activations on the GPU, and without a backward there are none. Moments on the
    host need weights that train, and an optimizer that can; `offload` of `optimizer` moves them
    already.
    """
    module = spec.modules[name]
    trains = module.trains_besides_projector or module.projector_trains
    rules = spec.optimizer.rules(module.optimizer)
    moments = trains and not spec.optimizer.offload and any(rule.may_offload for rule in rules)
    activations = module.fp8 is None and has_backward(spec, name)
    can = {"activations": activations, "optimizer": moments}
    return [part for part in _OFFLOADED if can[part]]


def with_part(own: Collection[Offloaded], part: Offloaded) -> tuple[Offloaded, ...]:
    """Return the parts that are on the host, and one more."""
    return tuple(each for each in _OFFLOADED if each in own or each == part)


def without_part(own: Iterable[Offloaded], part: Offloaded) -> tuple[Offloaded, ...]:
    """Return the parts that are on the host, in their order, but for one."""
    return tuple(each for each in own if each != part)


def _microbatches(spec: Spec, point: Point) -> Iterator[Point]:
    """Yield other numbers of microbatches, in a step and in a group."""
    own, pp = point.microbatches, point.language.grid.pp
    legal = microbatch_numbers(spec, point.language.grid)
    full = MICROBATCHES_PER_STAGE * pp
    wanted = (2 * own, own // 2, full, 4 * own, 2 * full, 1)
    near = (min(legal, key=lambda each: (abs(each - number), each)) for number in wanted)
    for number in dict.fromkeys(near):
        if number != own:
            at_once = point.at_once if sharing(spec, point) else None
            yield settled(spec, replace(point, microbatches=number, at_once=at_once))
    groups = divisors(own)
    if sharing(spec, point):
        for size in dict.fromkeys((own, pp, 2 * pp, groups[len(groups) // 2])):
            if own % size == 0:
                yield replace(point, at_once=None if size == own else size)
    else:
        yield settled(spec, replace(point, at_once=None))
        yield settled(spec, replace(point, at_once=2 * (point.at_once or 1)))
    if any(_overlap(point, name) for name in spec.generators):
        for size in dict.fromkeys((1, pp, own)):
            if own % size == 0:
                yield replace(point, drawn_at_once=None if size == 1 else size)


def _orders(spec: Spec, point: Point) -> Iterator[Point]:
    """Yield other orders of the work of a pipeline."""
    pp = point.language.grid.pp
    if pp == 1:
        return
    most = spec.language.model.layers // pp
    stages = [number for number in range(2, _MOST_STAGES + 1) if number <= most]
    yield replace(point, kind="1f1b", virtual_stages=1)
    for virtual in stages:
        yield replace(point, kind="interleaved", virtual_stages=virtual)
    if sharing(spec, point):
        yield replace(point, kind="bubble_filling", virtual_stages=1)


def _stages(spec: Spec, point: Point) -> Iterator[Point]:
    """Yield other sizes of the first or the last stage of language; the others are equal.

    The last stage also computes the output layer, the first one may follow encoders.
    """
    number = point.language.grid.pp * (point.virtual_stages or 1)
    layers = spec.language.model.layers
    if number == 1 or layers < number:
        return
    even, own = even_stages(layers, number), point.language.stages
    if own is None or len(own) != number:
        own = even
    for first, last in _SHIFTS if number > 2 else _SHIFTS_OF_TWO:
        ends = (own[0] + first, own[-1] + last)
        rest = layers - sum(ends)
        if min(ends) < 1 or rest < number - 2:
            continue
        inside = even_stages(rest, number - 2) if number > 2 else ()
        sizes = (ends[0], *inside, ends[1])
        yield point.moved(LANGUAGE, stages=None if sizes == even else sizes)


def _experts(spec: Spec, point: Point, name: str) -> Iterator[Point]:
    """Yield other numbers of ranks over which experts are split: on a host, or on whole hosts."""
    moe, place = kind_of(spec.modules[name].model).moe, point.places[name]
    if moe is None:
        return
    per_host, own = spec.nodes.gpus if spec.nodes else 1, place.experts or ExpertGrid()
    for ep in dict.fromkeys((2 * own.ep, own.ep // 2, per_host, 8 * own.ep, moe.experts, 1)):
        fits_hosts = ep and (per_host % ep == 0 or ep % per_host == 0)
        if fits_hosts and ep != own.ep and moe.experts % ep == 0:
            yield point.moved(name, experts=ExpertGrid(ep=ep, tp=own.tp))


def _other_ranks(spec: Spec, point: Point, name: str) -> Iterator[Point]:
    """Yield a module on all, or on some, of the ranks of language."""
    own = point.language.ranks
    pp = point.language.grid.pp
    sizes = dict.fromkeys((len(own), len(own) // pp, len(own) // 2))
    for size in sizes:
        ranks = own[:size]
        if size and ranks != point.places[name].ranks:
            yield from with_others(spec, point, {name: ranks})


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
    for grid in _grids(spec, point, world):
        first = [world, world // grid.pp] if others else [world]
        kept = {len(point.places[name].ranks) for name in others}
        sizes = [n for n in dict.fromkeys((*first, *sorted(kept))) if 0 < n <= world]
        for number in _numbers(spec, point, grid, ahead=False):
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
        legal = (n for n in near if _grids(spec, point, world - n))
        for size in dict.fromkeys((*islice(legal, _MOST_SIZES), *sorted(now))):
            if not 0 < size < world:
                continue
            for grid in _grids(spec, point, world - size)[: _MOST_GRIDS // 2]:
                for number in _numbers(spec, point, grid, ahead=True):
                    first = size if size % grid.tp == 0 else 0
                    own = range(first, first + world - size)
                    rest = range(size) if first else range(world - size, world)
                    bare = _with_language(point, own, grid, number)
                    ranks = {name: rest if name in names else own for name in others}
                    yield from with_others(spec, bare, ranks)
            over = range(size // 2, world)
            for grid in _grids(spec, point, len(over))[: _NEAR_GRIDS // 2] if size > 1 else ():
                for number in _numbers(spec, point, grid, ahead=False)[:1]:
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
        batch // point.microbatches if any(_meet(own, each) for each in ranks.values()) else batch
    )
    for name, mine in ranks.items():
        samples = batch if _meet(own, mine) else alone
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


def _grids(spec: Spec, point: Point, num_ranks: int) -> list[Grid]:
    """Return grids of language on this many ranks, the ones like now first."""
    now = point.language.grid
    dp, rest = divmod(num_ranks, now.tp * now.cp * now.pp)
    same = [now.replace(dp=dp)] if not rest and dp and spec.batch.global_ % dp == 0 else []
    return [*same, *_nearest(spec, LANGUAGE, now, num_ranks)]


def _nearest(spec: Spec, name: str, now: Grid, num_ranks: int) -> list[Grid]:
    """Return other grids of a module on this many ranks, the nearest to the current one first."""
    cuts: Collection[int] = {now.cp, max(1, now.cp // 2), 1}
    if name == LANGUAGE and (now.cp > 1 or spec.batch.seq >= _LONG):
        cuts = {now.cp, 2 * now.cp, 4 * now.cp, max(1, now.cp // 2), 1}
    heads = kind_of(spec.modules[name].model).cuts.heads or 0
    found = [
        grid
        for grid in legal_grids(spec, name, num_ranks)
        if grid.cp in cuts
        and heads % grid.tp == 0
        and (grid.tp, grid.pp, grid.cp) != (now.tp, now.pp, now.cp)
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


def _numbers(spec: Spec, point: Point, grid: Grid, *, ahead: bool) -> Sequence[int]:
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


def settled(spec: Spec, point: Point) -> Point:
    """Return a point with what has to go with its grids: numbers that divide, no idle settings."""
    legal = microbatch_numbers(spec, point.language.grid)
    if point.microbatches not in legal:
        number = next((n for n in legal if n >= point.microbatches), legal[-1])
        point = replace(point, microbatches=number)
    point = _grouped(spec, point)
    if point.drawn_at_once and point.microbatches % point.drawn_at_once:
        point = replace(point, drawn_at_once=None)
    if point.language.grid.pp == 1 and point.kind is not None:
        point = replace(point, kind="1f1b", virtual_stages=1)
    for name, place in point.places.items():
        if place.shard_over and place.grid.dp % place.shard_over:
            point = point.moved(name, shard_over=None)
        if place.sequence_parallel and place.grid.tp == 1:
            point = point.moved(name, sequence_parallel=False)
        ranks = place.grid.tp * place.grid.cp * place.grid.dp
        own = place.experts
        if own is not None and ranks % (own.ep * own.tp):
            fitting = [e for e in expert_grids(ranks) if e.tp == 1 and own.ep % e.ep == 0]
            point = point.moved(name, experts=fitting[-1])
    return point


def _grouped(spec: Spec, point: Point) -> Point:
    """Return a point whose groups of microbatches divide evenly over the replicas of encoders."""
    shared = sharing(spec, point)
    number, size = point.microbatches, spec.batch.global_ // point.microbatches
    own = min(number, point.at_once or (number if shared else 1))
    replicas = [point.places[name].grid.dp for name in shared or spec.encoders]
    legal = [k for k in divisors(number) if not any(size * k % dp for dp in replicas)]
    least = next((k for k in legal if k >= own), legal[-1] if legal else None)
    is_default = least is None or least == (number if shared else 1)
    return replace(point, at_once=None if is_default else least)


def sharing(spec: Spec, point: Point) -> list[str]:
    """Return the encoders that share ranks with language."""
    return [name for name in spec.encoders if _overlap(point, name)]


def _overlap(point: Point, name: str) -> bool:
    return _meet(point.places[name].ranks, point.language.ranks)


def _meet(one: range, other: range) -> bool:
    return one.start < other.stop and other.start < one.stop


def plain(point: Point) -> Point:
    """Return the same layout without settings that save memory and cost time in each microbatch."""
    for name, place in point.places.items():
        point = point.moved(
            name,
            recompute="none",
            offload=without_part(place.offload or (), "activations"),
            sharding="optimizer",
            sequence_parallel=place.grid.tp > 1,
        )
    return point
