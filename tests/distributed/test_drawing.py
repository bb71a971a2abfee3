"""What generators make in an evaluation: Euler steps by hand, and the same on any layout."""

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.graphs import flow, talker
from tests.support.running_ranks import run_on_running_ranks
from tests.support.specs import box, spec

from mimo_launch.data.build import build_dataset
from mimo_launch.data.random_draws import noises_of
from mimo_launch.launcher.run_on_ranks import run_ranks
from mimo_launch.models.encoder_inputs import EncoderInput, NoisedPatches
from mimo_launch.models.flow import FlowStage
from mimo_launch.plan.plan import Plan
from mimo_launch.spec.spec import Spec
from mimo_launch.train.evaluation import draw
from mimo_launch.train.loader import step_inputs
from mimo_launch.train.rank_session import RankSession

Drawings = dict[int, list[np.ndarray]]
NUM_STEPS = 3
# Sizes that every grid here can split.
DECODER = {"layers": 1, "hidden": 16, "heads": 2, "head_dim": 8, "mlp": 16, "vocab": 20}
SIZES = {"layers": 2, "hidden": 16, "heads": 2, "mlp": 32}
GENERATORS = {
    "flow": flow(model={"kind": "flow", **SIZES}),
    "talker": talker(model=SIZES | {"kv_heads": 2}),
}
SP: dict[str, Any] = {"sequence_parallel": True}
# The grid of the generator, behind language on rank 0 or on two ranks.
LAYOUTS: dict[str, dict[str, dict[str, Any]]] = {
    "tp": {"generator": {"first": 1, "tp": 2}},
    "cp": {"generator": {"first": 0, "cp": 2}},
    "tp and cp, sequence parallel": {"generator": {"first": 0, "tp": 2, "cp": 2, **SP}},
    "pp, language over cp": {"generator": {"first": 2, "pp": 2}, "language": {"cp": 2}},
    "dp, fully sharded": {"generator": {"first": 0, "dp": 2, "sharding": "full"}},
}


def made_by_a_rank(made: Spec) -> Drawings:
    """Return the arrays of each record that this rank has."""
    inputs = step_inputs(build_dataset(made), "heldout", tuple(range(made.batch.global_)), 0)
    with RankSession(Plan.of(made), randomise=True) as session:
        step = session.executor.run_forward(session.mine.evaluation, inputs)
        return {
            each.record: list(each.images) for each in draw(session, step, inputs.data, NUM_STEPS)
        }


def made_by_all(made: Spec, world_size: int) -> Drawings:
    found = run_on_running_ranks(made_by_a_rank, made, world_size=world_size)
    records = [record for each in found for record in each]
    assert len(records) == len(set(records))
    return {record: arrays for each in found for record, arrays in each.items()}


def asked(
    generator: dict[str, Any], language: dict[str, Any] | None = None, microbatches: int = 2
) -> tuple[Spec, int]:
    """Return a spec of four samples a step, and its ranks."""
    generator = {**generator}
    first = generator.pop("first", 0)
    made = spec(
        {
            "language": box(0, model=DECODER, **(language or {})),
            "generator": box(first, **generator),
        },
        microbatches=microbatches,
        mbs=4 // microbatches,
        max_images=2,
        max_patches=8,
        seq=32,
    )
    return made, max(module.rank_range.stop for module in made.modules.values())


@cache
def made_by_one(kind: str) -> Drawings:
    return made_by_all(*asked(GENERATORS[kind]))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", GENERATORS)
def test_every_layout_makes_the_same(kind: str, layout: str) -> None:
    right, grids = made_by_one(kind), LAYOUTS[layout]
    found = made_by_all(*asked(GENERATORS[kind] | grids["generator"], grids.get("language")))
    assert len(right) == 4
    assert found.keys() == right.keys()
    for record, arrays in right.items():
        for one, other in zip(arrays, found[record], strict=True):
            np.testing.assert_allclose(other, one, rtol=1e-6, atol=1e-6)
    values = [array.ravel() for arrays in right.values() for array in arrays]
    assert len(np.unique(np.concatenate(values))) > 2


def passes_of_a_flow(made: Spec) -> tuple[Drawings, list[tuple[torch.Tensor, ...]]]:
    """Return what is made, and patches, times and velocities of each pass."""
    passes, forward = [], FlowStage.forward

    def watched(self: FlowStage, hidden: Any, packed: EncoderInput) -> torch.Tensor:
        found = forward(self, hidden, packed)
        noised = packed.made
        if isinstance(noised, NoisedPatches) and noised.target is None:
            passes.append((noised.patches.values.clone(), noised.times, found))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FlowStage, "forward", watched)
        return made_by_a_rank(made), passes


def test_a_picture_is_noise_and_a_share_of_each_velocity() -> None:
    flow_alone, _ = asked(GENERATORS["flow"], microbatches=1)
    [(made, passes)] = run_ranks(passes_of_a_flow, flow_alone, world_size=1)
    data = step_inputs(build_dataset(flow_alone), "heldout", (0, 1, 2, 3), 0).data
    records = [record for sample in data.samples for record in sample.records]
    numbers = passes[0][0].shape[1]
    noises = [n.values for r in records for n in noises_of(0, data, r, "generator", numbers)]
    begun = np.sort(passes[0][0].float().ravel())
    np.testing.assert_array_equal(begun, np.sort(np.concatenate([n.ravel() for n in noises])))
    assert [time.unique().tolist() for _, time, _ in passes] == [[0.0], [1 / 3], [2 / 3]]
    expected = passes[0][0].clone()
    for patches, _, velocity in passes:
        torch.testing.assert_close(patches, expected)
        expected += velocity / NUM_STEPS
    pixels = np.concatenate([array.ravel() for arrays in made.values() for array in arrays])
    np.testing.assert_allclose(np.sort(pixels), np.sort(expected.float().ravel()), rtol=1e-6)
