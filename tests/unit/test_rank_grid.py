"""Ranks as a box with named axes: tables by hand, torch's DeviceMesh as an independent oracle."""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations, permutations, product
from math import prod

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.device_mesh import DeviceMesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from mimo_launch.layout.rank_grid import ExpertView, RankGrid
from mimo_launch.spec.base import EXPERT_AXES

AXES = ("tp", "cp", "dp", "pp")
TP2_DP3 = RankGrid(("tp", "cp", "dp", "pp"), (2, 1, 3, 1), first_rank=4)
TP2_DP2_PP2 = RankGrid(("tp", "cp", "dp", "pp"), (2, 1, 2, 2))
PP_FASTEST = RankGrid(("pp", "tp", "cp", "dp"), (2, 2, 1, 2))


@st.composite
def grids(draw: st.DrawFn) -> RankGrid:
    """Boxes of at most 64 ranks, axes in any order, sizes that are no powers of 2 included."""
    sizes: list[int] = []
    for _ in AXES:
        sizes.append(draw(st.integers(1, min(6, 64 // prod(sizes)))))
    axes = draw(st.permutations(AXES))
    return RankGrid(tuple(axes), tuple(draw(st.permutations(sizes))), draw(st.integers(0, 9)))


@contextmanager
def device_mesh(grid: RankGrid, rank: int) -> Iterator[DeviceMesh]:
    """Build the grid as torch does, seen from `rank`: no process, groups of the fake backend."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=grid.ranks.stop)
    try:
        # torch writes the slowest dimension first.
        ranks = torch.tensor(grid.ranks).view(grid.sizes[::-1])
        yield DeviceMesh("cpu", ranks, mesh_dim_names=grid.axes[::-1])
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(
    ("grid", "axes", "groups"),
    [
        (TP2_DP3, ("tp",), ((4, 5), (6, 7), (8, 9))),
        (TP2_DP3, ("dp",), ((4, 6, 8), (5, 7, 9))),
        (TP2_DP3, ("cp",), ((4,), (5,), (6,), (7,), (8,), (9,))),
        (TP2_DP3, ("dp", "tp"), ((4, 5, 6, 7, 8, 9),)),
        (TP2_DP2_PP2, ("tp",), ((0, 1), (2, 3), (4, 5), (6, 7))),
        (TP2_DP2_PP2, ("dp",), ((0, 2), (1, 3), (4, 6), (5, 7))),
        (TP2_DP2_PP2, ("pp",), ((0, 4), (1, 5), (2, 6), (3, 7))),
        (TP2_DP2_PP2, ("tp", "pp"), ((0, 1, 4, 5), (2, 3, 6, 7))),
        (PP_FASTEST, ("pp",), ((0, 1), (2, 3), (4, 5), (6, 7))),
        (PP_FASTEST, ("tp",), ((0, 2), (1, 3), (4, 6), (5, 7))),
        (PP_FASTEST, ("dp",), ((0, 4), (1, 5), (2, 6), (3, 7))),
        (PP_FASTEST, (), tuple((rank,) for rank in range(8))),
    ],
)
def test_groups_are_those_of_the_table(grid, axes, groups):
    assert grid.groups(*axes) == groups


@pytest.mark.parametrize(
    ("grid", "rank", "coords"),
    [
        (TP2_DP3, 4, {"tp": 0, "cp": 0, "dp": 0, "pp": 0}),
        (TP2_DP3, 7, {"tp": 1, "cp": 0, "dp": 1, "pp": 0}),
        (TP2_DP3, 9, {"tp": 1, "cp": 0, "dp": 2, "pp": 0}),
        (TP2_DP2_PP2, 6, {"tp": 0, "cp": 0, "dp": 1, "pp": 1}),
        (PP_FASTEST, 6, {"tp": 1, "cp": 0, "dp": 1, "pp": 0}),
    ],
)
def test_coordinates_are_those_of_the_table(grid, rank, coords):
    assert grid.coords_of(rank) == coords
    assert grid.rank_at(**coords) == rank


def test_coordinates_left_out_are_zero():
    assert TP2_DP3.rank_at() == 4
    assert TP2_DP3.rank_at(dp=2) == 8


def test_a_slice_is_every_rank_at_some_coordinates():
    assert TP2_DP2_PP2.slice(pp=1) == (4, 5, 6, 7)
    assert PP_FASTEST.slice(pp=1) == (1, 3, 5, 7)
    assert TP2_DP3.slice(dp=1) == (6, 7)
    assert TP2_DP3.slice(tp=1, dp=2) == (9,)
    assert TP2_DP3.slice() == (4, 5, 6, 7, 8, 9)


def test_a_slice_is_made_of_runs_of_consecutive_ranks():
    assert list(TP2_DP2_PP2.runs(pp=1)) == [range(4, 8)]
    assert list(PP_FASTEST.runs(pp=1)) == [range(1, 2), range(3, 4), range(5, 6), range(7, 8)]
    assert list(TP2_DP3.runs()) == [range(4, 10)]


@settings(deadline=None)
@given(grids(), st.sets(st.sampled_from(AXES)))
def test_runs_hold_the_ranks_of_a_slice(grid, fixed):
    coords = {axis: grid.size(axis) - 1 for axis in fixed}
    runs = [rank for run in grid.runs(**coords) for rank in run]
    assert runs == list(grid.slice(**coords))


@pytest.mark.parametrize("rank", [-1, 3, 10])
def test_a_rank_outside_the_box_has_no_coordinates(rank):
    assert rank not in TP2_DP3
    with pytest.raises(ValueError, match=rf"rank {rank} is not in 4-9"):
        TP2_DP3.coords_of(rank)


@settings(max_examples=80, deadline=None)
@given(grids(), st.data())
def test_groups_and_coordinates_equal_those_of_a_device_mesh(grid, data):
    """Oracle: real groups that torch makes of the same box, asked on one rank of it."""
    rank = data.draw(st.sampled_from(grid.ranks))
    with device_mesh(grid, rank) as mesh:
        coords = dict(zip(grid.axes[::-1], mesh.get_coordinate(), strict=True))
        assert grid.coords_of(rank) == coords
        for axis in grid.axes:
            ranks = tuple(dist.get_process_group_ranks(mesh.get_group(axis)))
            assert grid.group_of(rank, axis) == ranks
            assert grid.index(axis, rank) == mesh.get_local_rank(axis) == ranks.index(rank)
        for axes in combinations(grid.axes, 2):
            plane = mesh[axes[::-1]].mesh.flatten().tolist()
            assert grid.group_of(rank, *axes) == tuple(sorted(plane))


@settings(max_examples=60, deadline=None)
@given(grids())
def test_coordinates_and_ranks_are_inverse(grid):
    coords = [
        dict(zip(grid.axes, indices, strict=True))
        for indices in product(*(range(size) for size in grid.sizes))
    ]
    assert sorted(grid.rank_at(**c) for c in coords) == list(grid.ranks)
    assert all(grid.coords_of(grid.rank_at(**c)) == c for c in coords)


@settings(max_examples=60, deadline=None)
@given(grids(), st.integers(0, 4), st.data())
def test_groups_partition_the_ranks_in_increasing_order(grid, num_axes, data):
    axes = data.draw(st.sampled_from(list(permutations(grid.axes, num_axes))))
    groups = grid.groups(*axes)
    assert sorted(rank for group in groups for rank in group) == list(grid.ranks)
    assert [*groups] == sorted(tuple(sorted(group)) for group in groups)
    assert {len(group) for group in groups} == {prod(grid.size(axis) for axis in axes)}
    assert all(grid.group_of(rank, *axes) == group for group in groups for rank in group)


@settings(max_examples=60, deadline=None)
@given(grids(), st.data())
def test_a_slice_holds_exactly_the_ranks_with_those_coordinates(grid, data):
    rank = data.draw(st.sampled_from(grid.ranks))
    fixed = data.draw(st.lists(st.sampled_from(grid.axes), unique=True))
    coords = {axis: grid.coords_of(rank)[axis] for axis in fixed}
    assert grid.slice(**coords) == tuple(
        other for other in grid.ranks if coords.items() <= grid.coords_of(other).items()
    )


@settings(max_examples=60, deadline=None)
@given(grids(), st.data())
def test_slices_are_the_slice_at_every_position_of_an_axis(grid, data):
    axis, *others = data.draw(st.permutations(grid.axes))
    coords = {each: data.draw(st.integers(0, grid.size(each) - 1)) for each in others[:2]}
    every = [grid.slice(**{axis: index}, **coords) for index in range(grid.size(axis))]
    assert [*grid.slices(axis, **coords)] == every


@pytest.mark.parametrize("axes", [("tp", "cp", "dp", "pp"), ("tp", "pp", "cp", "dp")])
def test_an_expert_group_of_a_rank_is_that_which_holds_it(axes: tuple[str, ...]) -> None:
    grid = RankGrid(axes, tuple({"tp": 2, "cp": 2, "dp": 4, "pp": 3}[each] for each in axes), 5)
    view = ExpertView.of(grid, tp=2, ep=4)
    for axis in EXPERT_AXES:
        groups = view.groups(axis)
        assert all(view.group_of(rank, axis) == group for group in groups for rank in group)
        places = [view.slice(**{axis: index}) for index in range(view.size(axis))]
        assert [*map(list, places)] == [
            [rank for rank in grid.ranks if view.index(axis, rank) == index]
            for index in range(view.size(axis))
        ]


def test_places_of_experts_take_no_search_through_all_ranks() -> None:
    view = ExpertView.of(RankGrid(("tp", "cp", "dp", "pp"), (8, 1, 2048, 2)), tp=2, ep=64)
    start = time.process_time()
    places = [view.index("ep", rank) for stage in view.stages for rank in stage]
    assert time.process_time() - start < 2
    assert Counter(places) == dict.fromkeys(range(64), 512)
    with pytest.raises(KeyError):
        view.index("ep", 2**15)
