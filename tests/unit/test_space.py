"""The space of layouts: every grid, number and group that divides evenly, and nothing else."""

from itertools import product
from math import prod

import pytest
from tests.support.specs import box, spec

from mimo_launch.checks.all_checks import check
from mimo_launch.estimate.estimates import Estimator
from mimo_launch.layout.space import (
    Placement,
    Point,
    divisors,
    expert_grids,
    grids_on,
    group_sizes,
    legal_grids,
    microbatch_numbers,
    smaller_grids,
)
from mimo_launch.plan.plan import Plan
from mimo_launch.search.changes import changed
from mimo_launch.search.ladders import lighter
from mimo_launch.search.moves import neighbours
from mimo_launch.search.settled_points import plain
from mimo_launch.spec.base import AXES
from mimo_launch.spec.sections import NodesSpec
from mimo_launch.spec.spec import Grid


@pytest.mark.parametrize("number", [1, 2, 12, 36, 97])
def test_grids_and_experts_fill_or_divide_their_ranks(number: int) -> None:
    sizes = [n for n in range(1, number + 1) if number % n == 0]
    assert divisors(number) == sizes
    found = [tuple(getattr(grid, axis) for axis in AXES) for grid in grids_on(number)]
    assert len(set(found)) == len(found)
    assert sorted(found) == sorted(
        each for each in product(sizes, repeat=4) if prod(each) == number
    )
    experts = [(each.tp, each.ep) for each in expert_grids(number)]
    assert experts == [(tp, ep) for tp in sizes for ep in sizes if number % (tp * ep) == 0]


def test_smaller_grids_never_grow_and_keep_to_the_ranks() -> None:
    now = Grid(tp=4, cp=2, pp=3, dp=2)
    found = [
        tuple(getattr(each, axis) for axis in AXES)
        for each in smaller_grids(now, 12, tp_divides=False)
    ]
    wanted = [
        (tp, cp, dp, pp)
        for tp, cp, dp, pp in product(range(1, 5), range(1, 3), range(1, 3), range(1, 4))
        if tp * cp * dp * pp <= 12
    ]
    assert sorted(found) == wanted
    assert {each.tp for each in smaller_grids(now, 12, tp_divides=True)} == {1, 2, 4}


def test_legal_grids_suit_the_batch_the_host_and_the_layers() -> None:
    made = spec({"language": box(0, dp=8)}, microbatches=1, mbs=1)
    made = made.replace(nodes=NodesSpec(gpus=2))
    layers = made.language.model.layers
    for grid in grids_on(8):
        suits = made.batch.global_ % grid.dp == 0 and grid.tp <= 2 and grid.pp <= layers
        assert (grid in legal_grids(made, "language", 8)) == suits
    assert microbatch_numbers(made, Grid(dp=2)) == divisors(made.batch.global_ // 2)


def test_groups_share_their_samples_evenly() -> None:
    made = spec({"vision": box(2, dp=3), "language": box(0, dp=2)}, microbatches=6, mbs=1)
    assert group_sizes(made, ["vision"], 6) == [3, 6]
    assert group_sizes(made, [], 6) == [1, 2, 3, 6]


def test_the_settings_of_a_point_make_its_spec() -> None:
    made = spec({"vision": box(0, dp=4), "language": box(0, dp=4)}, microbatches=1, mbs=4)
    places = {
        "vision": Placement(ranks=range(2), grid=Grid(dp=2), recompute="full"),
        "language": Placement(ranks=range(2, 4), grid=Grid(dp=2)),
    }
    point = Point(places=places, microbatches=4, at_once=2)
    found = changed(made, "placement", point.settings())
    assert found is not None
    assert not [each for each in check(found.spec) if each.is_error]
    module = found.spec.modules["vision"]
    assert (module.ranks, module.grid.dp, module.recompute) == ("0-1", 2, "full")
    assert found.spec.schedule.encoder_microbatches == 2


def test_the_bound_of_memory_is_below_the_memory_of_the_fullest_rank() -> None:
    made = spec({"vision": box(0, dp=2), "language": box(0, pp=2)}, microbatches=4, mbs=2)
    estimator = Estimator.of(Plan.of(made))
    assert 0 < estimator.least_bytes < max(e.total_bytes for e in estimator.estimates().ranks)


def test_activations_on_the_host_are_among_the_moves_of_a_layout() -> None:
    again = {"dp": 2, "recompute": "full"}
    made = spec({"vision": box(0, **again), "language": box(0, **again)}, mbs=2)
    point, away = Point.of(made), ("activations",)
    near = [each.places for each in neighbours(made, point)]
    for name in made.modules:
        assert point.moved(name, recompute="none", offload=away).places in near
    lighter_ones = [each.places.values() for each in lighter(made, point)]
    assert any(all(place.offload == away for place in places) for places in lighter_ones)
    moved = point.moved("vision", recompute="none", offload=away)
    found = changed(made, "offload", moved.settings())
    assert found is not None
    assert found.text == "no recomputing of vision, keep activations of vision on the host"
    assert found.spec.modules["vision"].offloads
    assert plain(moved).places["vision"].offload == ()
