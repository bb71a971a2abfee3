"""Moves from a point of the space of layouts to others that differ in one setting.

Decides: which points are near a point.
Relies on: `layout.space` for what divides evenly, `settled_points` for what goes with a setting.
Leaves: whole placements to `placements`, the rules of models to `checks`, lighter points to
`ladders`, which points are fast to `bounds` and `advice`.
"""

from collections.abc import Iterator
from dataclasses import replace

from mimo_launch.kinds.registry import kind_of
from mimo_launch.layout.space import Point, divisors, microbatch_numbers
from mimo_launch.layout.stages import even_stages
from mimo_launch.search.placements import (
    MICROBATCHES_PER_STAGE,
    NEAR_GRIDS,
    nearest_grids,
    numbers_for,
    with_others,
)
from mimo_launch.search.settled_points import (
    LESS_AGAIN,
    may_offload,
    plain,
    settled,
    shares_ranks,
    sharing,
    with_part,
    without_part,
)
from mimo_launch.spec.base import LANGUAGE
from mimo_launch.spec.spec import ExpertGrid, Spec

# More stages on a rank shorten bubbles by little, and send more activations.
_MOST_STAGES = 5
# Layers that the first and the last stage of language get, of more than two stages or of two.
_SHIFTS = ((0, -1), (0, 1), (-1, 0), (1, 0), (-1, -1), (0, -2))
_SHIFTS_OF_TWO = ((1, -1), (-1, 1), (2, -2))


def neighbours(spec: Spec, point: Point) -> Iterator[Point]:
    """Yield the points that differ in one setting, and in what has to go with it."""
    yield from _microbatches(spec, point)
    yield from _orders(spec, point)
    yield from _stages(spec, point)
    for name, place in point.places.items():
        yield from _keeping_more(spec, point, name)
        yield from _experts(spec, point, name)
        # One rank alone has nothing to share out, but copies what it gathers from itself.
        if place.grid.dp * place.grid.cp > 1 or place.sharding == "full":
            other = "optimizer" if place.sharding == "full" else "full"
            yield point.moved(name, sharding=other)
    for name in sorted(point.places, key=lambda name: name != LANGUAGE):
        place = point.places[name]
        for grid in nearest_grids(spec, name, place.grid, len(place.ranks))[:NEAR_GRIDS]:
            moved = point.moved(name, grid=grid)
            if name == LANGUAGE:
                for number in numbers_for(spec, point, grid, ahead=not sharing(spec, point)):
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
    if any(shares_ranks(point, name) for name in spec.generators):
        for size in dict.fromkeys((1, pp, own)):
            if own % size == 0:
                yield replace(point, drawn_at_once=None if size == 1 else size)


def varied(spec: Spec, point: Point) -> Iterator[Point]:
    """Yield a start with other microbatches, or a pipeline with several stages on each rank.

    These fill it with fewer microbatches.
    """
    pp = point.language.grid.pp
    legal = [n for n in microbatch_numbers(spec, point.language.grid) if n >= pp]
    if pp > 1 and (most := _most_stages(spec, pp)) > 1:
        for number in dict.fromkeys((point.microbatches, *legal[:1])):
            yield replace(
                point, kind="interleaved", virtual_stages=most, microbatches=number, at_once=None
            )
    elif legal and (middle := legal[len(legal) // 2]) != point.microbatches:
        yield settled(spec, replace(point, microbatches=middle, at_once=None))


def _most_stages(spec: Spec, pp: int) -> int:
    """Return how many stages a rank may have: each has a layer."""
    return min(_MOST_STAGES, spec.language.model.layers // pp)


def _orders(spec: Spec, point: Point) -> Iterator[Point]:
    """Yield other orders of the work of a pipeline."""
    pp = point.language.grid.pp
    if pp == 1:
        return
    yield replace(point, kind="1f1b", virtual_stages=1)
    for virtual in range(2, _most_stages(spec, pp) + 1):
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


def parts_of_dp(spec: Spec, point: Point) -> Iterator[Point]:
    """Yield modules whose moments are cut over the replicas of a host, of eight hosts, or all."""
    per_host = spec.nodes.gpus if spec.nodes else 1
    for name, place in point.places.items():
        replicas = max(1, per_host // (place.grid.tp * place.grid.cp))
        for over in (replicas, 8 * replicas, None):
            if over != place.shard_over and (over is None or 1 < over < place.grid.dp):
                yield settled(spec, point.moved(name, shard_over=over))


def _other_ranks(spec: Spec, point: Point, name: str) -> Iterator[Point]:
    """Yield a module on all, or on some, of the ranks of language."""
    own = point.language.ranks
    pp = point.language.grid.pp
    sizes = dict.fromkeys((len(own), len(own) // pp, len(own) // 2))
    for size in sizes:
        ranks = own[:size]
        if size and ranks != point.places[name].ranks:
            yield from with_others(spec, point, {name: ranks})
