"""What moves and lighter layouts keep of a spec: parts of modules on the host."""

from dataclasses import replace
from typing import Any

import pytest
from tests.support.graphs import flow
from tests.support.poor_specs import B8, TEXT, job, module
from tests.support.specs import box, spec

from mimo_launch.layout.space import Point
from mimo_launch.search.ladders import lighter
from mimo_launch.search.moves import neighbours
from mimo_launch.search.placements import numbers_for, placements
from mimo_launch.search.settled_points import plain, settled
from mimo_launch.search.tune import Wish, tune
from mimo_launch.search.wide_moves import changes
from mimo_launch.spec.spec import ExpertGrid, Grid, Spec

BOTH = ("activations", "optimizer")


@pytest.mark.parametrize(
    ("before", "replicas", "after"),
    [
        ({"ep": 4}, 6, {"ep": 2}),
        ({"ep": 2, "tp": 2}, 6, {"ep": 2}),
        ({"ep": 2, "tp": 2}, 8, {"ep": 2, "tp": 2}),
    ],
)
def test_experts_are_split_over_a_part_of_as_many_ranks_as_before_where_these_do_not_divide(
    before: dict[str, int], replicas: int, after: dict[str, int]
) -> None:
    moe = {"experts": 4, "top_k": 2, "width": 16}
    made = spec({"language": box(0, dp=4, model={"moe": moe}, experts=before)}, mbs=6)
    wider = Point.of(made).moved("language", ranks=range(replicas), grid=Grid(dp=replicas))
    assert settled(made, wider).language.experts == ExpertGrid(**after)


@pytest.mark.parametrize(("replicas", "over"), [(8, 4), (6, None), (4, 4), (2, None)])
def test_copies_of_shards_stay_where_they_divide_the_replicas(
    replicas: int, over: int | None
) -> None:
    made = spec({"language": box(0, dp=8, shard_over=4)}, mbs=3)
    point = Point.of(made).moved("language", ranks=range(replicas), grid=Grid(dp=replicas))
    assert settled(made, point).language.shard_over == over


@pytest.mark.parametrize(("asked", "found"), [(1, 2), (2, 2), (3, 4), (4, 4), (8, 8)])
def test_groups_of_microbatches_have_samples_for_each_replica_of_an_encoder(
    asked: int, found: int
) -> None:
    """Two samples in a microbatch, four replicas."""
    made = spec({"vision": box(0, dp=4), "language": box(4)}, microbatches=8, mbs=2)
    assert settled(made, replace(Point.of(made), at_once=asked)).at_once == found


@pytest.mark.parametrize(("microbatches", "at_once"), [(4, 2), (6, 2), (3, None), (1, None)])
def test_groups_of_generators_stay_where_they_divide_the_microbatches(
    microbatches: int, at_once: int | None
) -> None:
    modules = {"language": box(0), "flow": box(0, **flow())}
    made = spec(modules, microbatches=4, mbs=3, generator_microbatches=2)
    point = settled(made, replace(Point.of(made), microbatches=microbatches))
    assert (point.microbatches, point.drawn_at_once) == (microbatches, at_once)


def test_a_number_of_microbatches_that_a_grid_cannot_have_becomes_the_next_larger_one() -> None:
    made = spec({"language": box(0)}, mbs=24)
    found = [settled(made, replace(Point.of(made), microbatches=n)).microbatches for n in (5, 7, 8)]
    assert found == [6, 8, 8]


def test_a_pipeline_behind_encoders_has_microbatches_for_one_stage_more() -> None:
    alone = spec({"language": box(0)}, mbs=64)
    behind = spec({"vision": box(1), "language": box(0)}, mbs=64)
    for made, ahead, least in ((alone, True, 1), (behind, False, 1), (behind, True, 8)):
        assert min(numbers_for(made, Point.of(made), Grid(), ahead=ahead)) == least


def test_wide_moves_shard_over_every_part_of_the_replicas() -> None:
    made = spec({"language": box(0, dp=8)})
    found = {each.language.shard_over for each in changes(made, Point.of(made), 8)}
    assert found == {None, 2, 4}


def test_modules_close_up_where_another_gives_ranks_away() -> None:
    """Or else no layout with a smaller module before another one is a step away."""
    made = spec({"language": box(0, dp=4), "vision": box(4, dp=4)}, mbs=4)
    found = [
        {name: place.ranks for name, place in each.places.items()}
        for each in changes(made, Point.of(made), 8)
    ]
    assert {"language": range(2), "vision": range(2, 6)} in found
    for ranks in found:
        used = set().union(*ranks.values())
        assert used == set(range(len(used)))


def test_other_microbatches_are_encoded_in_groups_as_large_as_now() -> None:
    made = spec({"vision": box(0), "language": box(0, pp=1)}, microbatches=8, mbs=2)
    for at_once in (2, 4):
        point = replace(Point.of(made), at_once=at_once)
        others = [each for each in neighbours(made, point) if each.microbatches == 16]
        assert at_once in {each.at_once for each in others}


def two(**more: Any) -> Spec:
    """Return two modules on all of two ranks that recompute, with these settings of vision."""
    again = {"dp": 2, "recompute": "full"}
    return spec({"vision": box(0, **again, **more), "language": box(0, **again)}, mbs=2)


def offloads(points: Any, name: str = "vision") -> set[tuple[str, ...]]:
    return {each.places[name].offload for each in points}


@pytest.mark.parametrize("own", [["activations", "optimizer"], ["optimizer", "activations"]])
def test_moves_take_one_part_off_the_host_and_keep_the_others(own: list[str]) -> None:
    made = two(offload=own)
    point = Point.of(made)
    for near in (neighbours(made, point), changes(made, point, 2)):
        assert offloads(near) == {tuple(own), ("activations",), ("optimizer",)}
    assert offloads([plain(point)]) == {("optimizer",)}


def test_moves_bring_one_part_to_the_host_and_keep_the_others() -> None:
    made = two(offload=["optimizer"])
    point = Point.of(made)
    for near in (neighbours(made, point), changes(made, point, 2)):
        assert offloads(near) == {(), ("optimizer",), BOTH}
    assert offloads(placements(made, point, {}, 2)) == {("optimizer",)}
    assert offloads(lighter(made, point)) == {("optimizer",), BOTH}


def test_lighter_layouts_keep_moments_and_activations_on_the_host_in_turn() -> None:
    made = two()
    places = [each.places for each in lighter(made, Point.of(made))]
    found = {(each["vision"].offload, each["language"].offload) for each in places}
    assert found == {(part, part) for part in ((), ("activations",), ("optimizer",), BOTH)}


def test_encoders_of_lighter_layouts_recompute_or_work_in_groups_or_both() -> None:
    """A group drains the pipeline, which may take longer than to recompute."""
    made = spec({"vision": box(0, dp=2), "language": box(0, pp=2)}, microbatches=8, mbs=2)
    found = lighter(made, Point.of(made))
    ways = {(each.at_once, each.places["vision"].recompute) for each in found}
    assert ways == {(at_once, again) for at_once in (None, 2) for again in ("none", "full")}


def test_without_encoders_no_layouts_differ_in_their_microbatches_alone() -> None:
    made = spec({"language": box(0, pp=2)}, microbatches=8, mbs=2)
    found = [*neighbours(made, Point.of(made)), *changes(made, Point.of(made), 2)]
    assert {each.at_once for each in found} == {None}


@pytest.mark.parametrize("adamw", [{"kind": "sgd"}, {"offload": True}])
def test_moments_that_cannot_move_are_no_part_of_a_lighter_layout(adamw: dict[str, Any]) -> None:
    """SGD has none; `offload` of `optimizer` moved those of AdamW."""
    made = two()
    made = made.replace(optimizer=made.optimizer.replace(**adamw))
    point = Point.of(made)
    assert offloads(lighter(made, point)) == {(), ("activations",)}
    assert offloads(changes(made, point, 2)) == {(), ("activations",)}


def test_a_frozen_encoder_has_nothing_to_move() -> None:
    made = two(frozen=True)
    found = [each.places for each in lighter(made, Point.of(made))]
    assert {each["vision"].offload for each in found} == {()}
    assert {each["language"].offload for each in found} >= {("optimizer",), BOTH}


def test_one_module_in_fp8_leaves_activations_of_the_others_to_the_host() -> None:
    made = two()
    module = made.language.replace(backend="transformer_engine", fp8={"recipe": "delayed"})
    made = made.replace(modules={**made.modules, "language": module})
    found = [each.places for each in lighter(made, Point.of(made))]
    assert {each["vision"].offload for each in found} >= {("activations",), BOTH}
    assert {each["language"].offload for each in found} == {(), ("optimizer",)}


@pytest.mark.parametrize("own", [["optimizer"], []])
@pytest.mark.parametrize("grid", [{"tp": 2}, {"dp": 2}])
def test_tune_finds_a_layout_that_needs_moments_on_the_host(
    own: list[str], grid: dict[str, int]
) -> None:
    """Weights, gradients and moments of an 8B model need 64 GB on each of two GPUs."""
    language = module(B8, 0, 1, offload=own, recompute="full", sharding="full", **grid)
    made = job({"language": language}, 4, 2, seq=512, data=TEXT)
    assert made.nodes is not None
    made = made.replace(nodes=made.nodes.replace(gpus=2, gpu=None, gpu_memory="62GB"))
    best = tune(made, Wish(gpus=2, plans=40, top=1)).found[0][1].spec
    assert "optimizer" in best.language.offload
