"""Lighter layouts: the same ranks and grids with settings that need less memory.

Decides: in which order a layout that does not fit gets lighter: the settings that cost least time
first.
Relies on: `moves.settled` for what has to go with a change; `layout.space` for what divides evenly.
Leaves: which of them fit, and how fast they are, to `judge`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain, product
from typing import Any

from mimo_launch.kinds.registry import kind_of
from mimo_launch.layout.space import Point, microbatch_numbers
from mimo_launch.search.settled_points import (
    LESS_AGAIN,
    cuts_tokens,
    may_offload,
    settled,
    sharing,
    with_part,
)
from mimo_launch.spec.base import LANGUAGE
from mimo_launch.spec.module import Offloaded
from mimo_launch.spec.spec import ExpertGrid, Spec


def lighter(spec: Spec, point: Point) -> Iterator[Point]:
    """Yield the same layout with every mix of settings that need less memory."""
    return chain.from_iterable(ladders(spec, point))


def ladders(spec: Spec, point: Point) -> Iterator[list[Point]]:
    """Yield these mixes in lists, each from what costs least time to what needs least memory."""
    every, encoders = list(point.places), list(spec.encoders)
    cutting = [name for name, place in point.places.items() if place.grid.dp * place.grid.cp > 1]
    for name, place in point.places.items():
        if cuts_tokens(spec, name, place.grid):
            point = point.moved(name, sequence_parallel=True)
    pp, legal = point.language.grid.pp, microbatch_numbers(spec, point.language.grid)
    least = [min(legal[-1], factor * point.microbatches) for factor in (1, 2, 4, 8, 16)]
    numbers = dict.fromkeys(next(n for n in legal if n >= each) for each in least)
    recomputed = dict.fromkeys(map(tuple, ((), encoders, [LANGUAGE], every)))
    splits = [point, *_experts_per_host(spec, point)]
    cuts = dict.fromkeys(((), tuple(cutting)))
    for number, full, split in product(numbers, cuts, splits):
        other = _with(replace(split, microbatches=number), full, sharding="full")
        mixes = [_with(other, again, recompute="full") for again in recomputed]
        mixes.insert(1 + bool(encoders), other.moved(LANGUAGE, recompute=LESS_AGAIN[-1]))
        if sharing(spec, point) and number % pp == 0:
            # A group drains a pipeline, which may take longer than to recompute.
            mixes = [each for mix in mixes for each in (mix, replace(mix, at_once=pp))]
        yield [settled(spec, each) for each in mixes]
    for split, full in product(splits, cuts):
        if found := list(_on_host(spec, _with(split, full, sharding="full"))):
            yield [settled(spec, each) for each in found]


def _on_host(spec: Spec, point: Point) -> Iterator[Point]:
    """Yield a layout that keeps moments, activations, or both on the host.

    What a whole layer saves takes longer to copy than to recompute; the input of a layer does not.
    """
    again = _with(point, point.places, recompute="full")
    parts = {part for name in point.places for part in may_offload(spec, name)}
    if "optimizer" in parts:
        yield _offloading(spec, point, "optimizer")
        yield _offloading(spec, again, "optimizer")
    if "activations" in parts:
        yield (fewer := _offloading(spec, again, "activations"))
        if "optimizer" in parts:
            yield _offloading(spec, fewer, "optimizer")


def _offloading(spec: Spec, point: Point, part: Offloaded) -> Point:
    """Return a layout with one more part on the host, of each module that can."""
    for name, place in point.places.items():
        if part in may_offload(spec, name):
            point = point.moved(name, offload=with_part(place.offload or (), part))
    return point


def _experts_per_host(spec: Spec, point: Point) -> Iterator[Point]:
    """Yield a point with the experts of each module split over a host, if they are not."""
    per_host = spec.nodes.gpus if spec.nodes else len(point.language.ranks)
    other = point
    for name, module in spec.modules.items():
        moe, own = kind_of(module.model).moe, point.places[name].experts or ExpertGrid()
        if moe is not None and moe.experts % per_host == 0 and own.ep < per_host:
            other = other.moved(name, experts=own.replace(ep=per_host))
    if other is not point:
        yield other


def _with(point: Point, names: Iterable[str], **values: Any) -> Point:
    for name in names:
        point = point.moved(name, **values)
    return point
