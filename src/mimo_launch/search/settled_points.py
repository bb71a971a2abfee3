"""What goes together at a point of the space of layouts.

Decides: which settings follow from others after a move, which save memory and cost time, and which
parts of a module may lie on the host.
Relies on: `layout.space` for what divides evenly.
Leaves: which points to look at to `moves`, `placements` and `ladders`.
"""

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import get_args

from mimo_launch.kinds.module_weights import has_backward
from mimo_launch.kinds.registry import kind_of
from mimo_launch.layout.space import Point, divisors, expert_grids, microbatch_numbers
from mimo_launch.spec.base import Grid
from mimo_launch.spec.module import Offloaded, Recompute
from mimo_launch.spec.spec import Spec

# What may be recomputed instead of whole layers, from the least time to the least memory.
LESS_AGAIN: tuple[Recompute, ...] = ("none", ("norms",), ("mlp", "norms"))
_OFFLOADED: tuple[Offloaded, ...] = get_args(Offloaded)


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
        if place.sequence_parallel and not cuts_tokens(spec, name, place.grid):
            point = point.moved(name, sequence_parallel=False)
        ranks = place.grid.tp * place.grid.cp * place.grid.dp
        own = place.experts
        if own is not None and ranks % (own.ep * own.tp):
            fitting = [e for e in expert_grids(ranks) if e.tp == 1 and own.ep % e.ep == 0]
            point = point.moved(name, experts=fitting[-1])
    return point


def cuts_tokens(spec: Spec, name: str, grid: Grid) -> bool:
    """Return whether the tp ranks of a module on a grid may share its tokens."""
    return grid.tp > 1 and kind_of(spec.modules[name].model).cuts.tokens


def _grouped(spec: Spec, point: Point) -> Point:
    """Return a point whose groups of microbatches divide evenly over the replicas of encoders."""
    if not spec.encoders:
        return replace(point, at_once=None)
    shared = sharing(spec, point)
    number, size = point.microbatches, spec.batch.global_ // point.microbatches
    own = min(number, point.at_once or (number if shared else 1))
    replicas = [point.places[name].grid.dp for name in shared or spec.encoders]
    legal = [k for k in divisors(number) if not any(size * k % dp for dp in replicas)]
    least = next((k for k in legal if k >= own), legal[-1] if legal else None)
    is_default = least is None or least == (number if shared else 1)
    return replace(point, at_once=None if is_default else least)


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


def sharing(spec: Spec, point: Point) -> list[str]:
    """Return the encoders that share ranks with language."""
    return [name for name in spec.encoders if shares_ranks(point, name)]


def shares_ranks(point: Point, name: str) -> bool:
    """Say whether a module runs on some of the ranks of language."""
    return meet(point.places[name].ranks, point.language.ranks)


def meet(one: range, other: range) -> bool:
    """Say whether two ranges have a rank in common."""
    return one.start < other.stop and other.start < one.stop


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
