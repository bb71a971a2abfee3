"""Initial values follow from the seed, the name and the place."""

import torch
from tests.support.specs import box, spec

from mimo_launch.layers.initial_weights import initial_values
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.parameter_segments import (
    Segment,
    declared_parameters,
    replicated,
    sharded,
)
from mimo_launch.layout.layout import build_layout
from mimo_launch.models.build import build_network


def whole(rows: int, columns: int) -> Segment:
    return replicated("weight", (rows, columns), "complete", counted=True, std=0.5)


def test_values_follow_from_seed_and_name() -> None:
    """Others for another seed or name; the same for the same."""
    segment = whole(300, 200)
    values = initial_values("m.weight", segment, 7)
    assert values.equal(initial_values("m.weight", segment, 7))
    for other in (initial_values("m.weight", segment, 8), initial_values("n.weight", segment, 7)):
        together = torch.corrcoef(torch.stack([values.flatten(), other.flatten()]))
        assert abs(together[0, 1]) < 0.02


def test_tiles_of_a_tensor_are_independent() -> None:
    """Each has a stream of its own, below and beside."""
    values = initial_values("m.weight", whole(256, 256), 0)
    tiles = torch.stack([t.flatten() for half in values.split(128) for t in half.split(128, 1)])
    assert (torch.corrcoef(tiles) - torch.eye(4)).abs().max() < 0.05


def test_any_cut_of_a_tensor_has_the_values_of_that_place() -> None:
    """Rows, columns, and some rows of a share of them."""
    values = initial_values("m.weight", whole(300, 200), 3)
    for axis, part in ((0, range(100, 290)), (1, range(50, 150))):
        cut = sharded("weight", (300, 200), axis, part, std=0.5)
        assert initial_values("m.weight", cut, 3).equal(values.narrow(axis, part.start, len(part)))
    rows = sharded("weight", (300, 200), 0, range(100, 290), std=0.5)
    assert initial_values("m.weight", rows, 3, rows=range(20, 60)).equal(values[120:160])


def test_biases_start_as_zeros() -> None:
    made = spec({"vision": box(0), "language": box(1, model={"qkv_bias": True})})
    biases = [
        placed
        for module in build_layout(made).modules
        for stage in module.stages
        for declared in declared_parameters("", build_network(made, stage, ParallelContext()))
        for placed in declared.placed
        if placed.name.endswith(".bias")
    ]
    assert {placed.name.split(".")[-2] for placed in biases} >= {"q", "k", "v", "o"}
    assert {placed.segment.init for placed in biases} == {"zeros"}
