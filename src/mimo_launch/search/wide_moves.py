"""Every change of one setting of a point, and points drawn at random: the far moves of a search.

Decides: which values each setting of a layout may take, and which ranks modules may move to.
Relies on: `moves.settled` for what has to go with a change; `layout.space` for grids and numbers.
Leaves: near moves, which a short search makes first, to `moves`; rules of models to `checks`.
"""

from collections.abc import Iterator
from dataclasses import replace
from random import Random

from mimo_launch.kinds.registry import kind_of
from mimo_launch.layout.space import (
    Point,
    divisors,
    expert_grids,
    grids_on,
    legal_grids,
    microbatch_numbers,
)
from mimo_launch.search.settled_points import (
    LESS_AGAIN,
    may_offload,
    settled,
    with_part,
    without_part,
)
from mimo_launch.spec.base import LANGUAGE
from mimo_launch.spec.spec import Grid, Spec
from mimo_launch.spec.values import SHARDINGS

_MOST_STAGES = 8
_ORDERS = (("tp", "cp", "dp", "pp"), ("tp", "cp", "pp", "dp"))
# Moves that a jump makes one after another.
_JUMP = (1, 2, 2, 3)


def changes(spec: Spec, point: Point, world: int) -> Iterator[Point]:
    """Yield every point that differs in one setting, and in what has to go with it."""
    yield from _of_step(spec, point)
    for name in point.places:
        yield from _of_module(spec, point, name)
        yield from _of_ranks(spec, point, name, world)


def _of_step(spec: Spec, point: Point) -> Iterator[Point]:
    for number in microbatch_numbers(spec, point.language.grid):
        yield settled(spec, replace(point, microbatches=number))
    sizes = (None, *divisors(point.microbatches))
    for size in sizes if spec.encoders else ():
        yield replace(point, at_once=size)
    for size in sizes if spec.generators else ():
        yield replace(point, drawn_at_once=size)
    if point.language.grid.pp > 1:
        most = spec.language.model.layers // point.language.grid.pp
        yield replace(point, kind="gpipe", virtual_stages=1)
        yield replace(point, kind="1f1b", virtual_stages=1)
        yield replace(point, kind="bubble_filling", virtual_stages=1)
        for stages in range(2, min(most, _MOST_STAGES) + 1):
            yield replace(point, kind="interleaved", virtual_stages=stages)


def _of_module(spec: Spec, point: Point, name: str) -> Iterator[Point]:
    place = point.places[name]
    # Settings that only save memory are for layouts that do not fit.
    for recompute in (*LESS_AGAIN, ("attention", "norms")) if place.recompute != "none" else ():
        yield point.moved(name, recompute=recompute)
    own = place.offload or ()
    yield from (point.moved(name, offload=without_part(own, part)) for part in own)
    if any(each.recompute != "none" for each in point.places.values()):
        others = (part for part in may_offload(spec, name) if part not in own)
        yield from (point.moved(name, offload=with_part(own, part)) for part in others)
    for sharding in SHARDINGS:
        yield point.moved(name, sharding=sharding)
    for over in (None, *divisors(place.grid.dp)[1:-1]):
        yield point.moved(name, shard_over=over)
    if place.grid.tp > 1:
        yield point.moved(name, sequence_parallel=not place.sequence_parallel)
    if place.grid.pp > 1 and place.grid.dp > 1:
        yield from (point.moved(name, order=order) for order in _ORDERS)
    moe = kind_of(spec.modules[name].model).moe
    if moe is not None:
        ranks = place.grid.tp * place.grid.cp * place.grid.dp
        yield from (point.moved(name, experts=each) for each in expert_grids(ranks)
                    if moe.experts % each.ep == 0)  # fmt: skip
    for grid in legal_grids(spec, name, len(place.ranks)):
        cut = point.moved(name, grid=grid, sequence_parallel=grid.tp > 1)
        yield settled(spec, cut)
        if name == LANGUAGE and not spec.batch.global_ % (4 * grid.pp * grid.dp):
            yield settled(spec, replace(cut, microbatches=4 * grid.pp))


def _of_ranks(spec: Spec, point: Point, name: str, world: int) -> Iterator[Point]:
    """Yield a module on the ranks of another, before or after them, or on a part of all."""
    own = point.places[name].ranks
    others = {other: place.ranks for other, place in point.places.items() if other != name}
    found = {range(world), *others.values()}
    for ranks in others.values():
        found |= {range(ranks.start), range(ranks.stop, world)}
        found |= {ranks[: len(ranks) // 2], ranks[len(ranks) // 2 :]}
    for step in {1, 2, 4, spec.nodes.gpus if spec.nodes else 1}:
        found |= {range(own.start, own.stop - step), range(own.start, min(world, own.stop + step))}
        found.add(range(max(0, own.start - step), own.stop))
        found.add(range(own.start + step, own.stop))
    for ranks in sorted(found, key=lambda each: (each.start, each.stop)):
        if ranks and ranks != own and ranks.stop <= world:
            yield from _placed(spec, point, name, ranks)


def _placed(spec: Spec, point: Point, name: str, ranks: range) -> Iterator[Point]:
    """Yield a point with a module on these ranks, by the grids most like its own."""
    now = point.places[name].grid

    def distance(grid: Grid) -> int:
        return sum(getattr(grid, axis) != getattr(now, axis) for axis in ("tp", "cp", "pp"))

    moved = _closed(replace(point.moved(name, ranks=ranks), idle=None))
    for grid in sorted(legal_grids(spec, name, len(ranks)), key=distance)[:3]:
        yield settled(spec, moved.moved(name, grid=grid, sequence_parallel=grid.tp > 1))


def _closed(point: Point) -> Point:
    """Return a point whose modules lie beside each other: no rank between them is unused."""
    used = sorted({rank for place in point.places.values() for rank in place.ranks})
    at = {rank: number for number, rank in enumerate(used)}
    for name, place in point.places.items():
        first = at[place.ranks[0]]
        point = point.moved(name, ranks=range(first, first + len(place.ranks)))
    return point


def jump(spec: Spec, point: Point, world: int, random: Random) -> Point:
    """Return a point some random moves away."""
    for _ in range(random.choice(_JUMP)):
        name = random.choice(list(point.places))
        ways = (
            _of_step(spec, point),
            _of_module(spec, point, name),
            _of_ranks(spec, point, name, world),
        )
        point = random.choice([*random.choice(ways)] or [point])
    return point


def drawn(spec: Spec, point: Point, world: int, random: Random) -> Point:
    """Return a random point: modules share all ranks, or lie side by side, or anywhere."""
    names = list(point.places)
    way, ends = random.randrange(3 if world >= len(names) else 1), 0
    for number, name in enumerate(names):
        ranks = range(world)
        if way == 1:
            rest = len(names) - number - 1
            size = world - ends if not rest else random.randint(1, max(1, world - ends - rest))
            ranks, ends = range(ends, ends + size), ends + size
        elif way == 2 and name != LANGUAGE:
            first = random.choice([0, *divisors(world)[:-1]])
            ranks = range(first, world)
        grids = legal_grids(spec, name, len(ranks)) or grids_on(len(ranks))[:1]
        grid = random.choice([each for each in grids if each.cp == 1] or grids)
        point = point.moved(
            name,
            ranks=ranks,
            grid=grid,
            sharding=random.choice([*SHARDINGS]),
            recompute=random.choice((*LESS_AGAIN, "full")),
            sequence_parallel=grid.tp > 1,
            experts=None,
            shard_over=None,
        )
    numbers = microbatch_numbers(spec, point.language.grid) or [1]
    point = replace(point, microbatches=random.choice(numbers), at_once=None, drawn_at_once=None)
    return settled(spec, replace(point, kind="1f1b", virtual_stages=1, idle=None))
