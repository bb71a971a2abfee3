"""What generators make in an evaluation is what one rank makes, record by record, on any layout."""

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.graphs import flow, talker
from tests.support.running_ranks import run_on_running_ranks
from tests.support.specs import box, spec

from mimo_launch.data.build import build_dataset
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layout.layout import world_size
from mimo_launch.models.noise import HeldNoise, NoiseCanvas
from mimo_launch.plan.plan import Plan
from mimo_launch.runtime.progress import Phase, Progress
from mimo_launch.spec.spec import Spec, TalkerModel
from mimo_launch.train.evaluation import clip, draw
from mimo_launch.train.loader import step_inputs
from mimo_launch.train.rank_session import RankSession
from mimo_launch.verify.oracle import Oracle

# By generator and record.
Drawings = dict[tuple[str, int], list[np.ndarray]]
NUM_STEPS = 3
# Sizes that every grid here can split.
DECODER = {"layers": 1, "hidden": 16, "heads": 2, "head_dim": 8, "mlp": 16, "vocab": 20}
SIZES = {"layers": 2, "hidden": 16, "heads": 2, "mlp": 32}
GENERATORS = {
    "flow": flow(model={"kind": "flow", **SIZES, "patch": 2, "channels": 2}),
    "talker": talker(model=SIZES | {"kv_heads": 2}),
    "talker of frames": talker(
        model=SIZES
        | {"kv_heads": 2, "codebooks": 3, "predictor": {"layers": 1, "heads": 2, "vocab": 9}}
    ),
}
SP: dict[str, Any] = {"sequence_parallel": True}
# The grid of the generator, behind language on rank 0 or on two ranks.
LAYOUTS: dict[str, dict[str, dict[str, Any]]] = {
    "one rank": {"generator": {}},
    "tp": {"generator": {"first": 1, "tp": 2}},
    "cp": {"generator": {"first": 0, "cp": 2}},
    "tp and cp, sequence parallel": {"generator": {"first": 0, "tp": 2, "cp": 2, **SP}},
    "pp, language over cp": {"generator": {"first": 2, "pp": 2}, "language": {"cp": 2}},
    "dp, fully sharded": {"generator": {"first": 0, "dp": 2, "sharding": "full"}},
}


def made_by_a_rank(made: Spec) -> Drawings:
    """Return the arrays that this rank has."""
    inputs = step_inputs(build_dataset(made), "heldout", tuple(range(made.batch.global_)), 0)
    with RankSession(Plan.of(made), randomise=True) as session:
        step = session.executor.run_forward(session.mine.evaluation, inputs)
        drawn = draw(session, step, inputs.data, NUM_STEPS)
        return {(each.generator, each.record): list(each.images) for each in drawn}


def made_by_all(made: Spec, world_size: int) -> Drawings:
    found = run_on_running_ranks(made_by_a_rank, made, world_size=world_size)
    named = [name for each in found for name in each]
    assert len(named) == len(set(named))
    return {name: arrays for each in found for name, arrays in each.items()}


def asked(**modules: Any) -> Spec:
    """Return a spec of four samples a step; each module says its `first` rank."""
    boxes = {name: box(**{"first": 0, **module}) for name, module in modules.items()}
    return spec(boxes, microbatches=2, mbs=2, max_images=2, max_patches=8, seq=32)


def made_by_the_oracle(made: Spec) -> Drawings:
    """Return Euler steps over the oracle's velocity, or its likeliest codes from `start` on."""
    oracle = Oracle(made, randomise=True)
    with torch.no_grad():
        return {
            (name, index): arrays
            for index in range(made.batch.global_)
            for name, arrays in oracle.made(index, NUM_STEPS).items()
        }


@cache
def made_by_one(*kinds: str) -> Drawings:
    generators = {kind.split(maxsplit=1)[0]: GENERATORS[kind] for kind in kinds}
    made = asked(language={"model": DECODER}, **generators)
    [found] = run_on_running_ranks(made_by_the_oracle, made, world_size=1)
    return found


def compare(made: Spec, right: Drawings) -> None:
    found = made_by_all(made, world_size(made))
    assert found.keys() == right.keys()
    for name, arrays in right.items():
        for one, other in zip(arrays, found[name], strict=True):
            np.testing.assert_allclose(other, one, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", GENERATORS)
def test_every_layout_makes_what_one_rank_makes(kind: str, layout: str) -> None:
    right, grids = made_by_one(kind), LAYOUTS[layout]
    assert len(right) == 4
    assert max(len(arrays) for arrays in right.values()) == 2
    values = [array.ravel() for arrays in right.values() for array in arrays]
    assert len(np.unique(np.concatenate(values))) > 2
    language = {"model": DECODER, **grids.get("language", {})}
    generator = GENERATORS[kind] | grids["generator"]
    compare(asked(language=language, **{kind.split(maxsplit=1)[0]: generator}), right)


def test_one_generator_may_need_more_passes_than_another_on_its_ranks() -> None:
    """Rank 1 sends to a stage of one and receives for a stage of the other in one slot."""
    made = asked(
        language={"model": DECODER},
        flow=GENERATORS["flow"] | {"first": 1, "pp": 2},
        talker=GENERATORS["talker"] | {"first": 0, "pp": 2},
    )
    mixed = [{each.module for each in slot} for slot in Plan.of(made).drawing[1]]
    assert {"flow", "talker"} in mixed
    compare(made, made_by_one("flow", "talker"))


@pytest.mark.parametrize("predictor", [None, {"layers": 1, "heads": 2, "vocab": 13}])
def test_a_clip_ends_at_an_end_code_of_a_codebook_that_has_one(predictor: object) -> None:
    """With a predictor of later codes only the first codebook has an end: code 12."""
    model = SIZES | {"kv_heads": 2, "codebooks": 2, "vocab": 13, "predictor": predictor}
    codes = TalkerModel.model_validate({"kind": "talker", **model})
    first, later = [1, 2, 3, 12, 12, 5], [4, 12, 6, 7, 12, 5]
    found = clip(torch.tensor([first, later]).T, codes)
    last = 3 if predictor else 1
    assert found.tolist() == [first[:last], later[:last]]
    # Without an end it is as long as the true clip, after which the last row is.
    endless = clip(torch.tensor([[1, 2], [3, 4], [12, 12]]), codes)
    assert endless.tolist() == [[1, 3], [2, 4]]


def test_steps_of_a_drawing_are_summed_in_fp32_where_a_model_computes_in_bf16() -> None:
    """A bf16 number near 1 would not change by 1/1000."""
    ones, positions = torch.ones(2, 3), torch.ones(2, 2)
    noise = HeldNoise(ones.clone(), torch.zeros(2), torch.ones(2), torch.bfloat16)
    canvas = NoiseCanvas(noise, positions, ParallelContext(), 1000)
    for _ in range(canvas.passes):
        assert canvas.seen().patches.values.dtype == torch.bfloat16
        canvas.add(ones)
    torch.testing.assert_close(canvas.whole(), 2 * ones, rtol=0, atol=1e-4)


class Heard(Progress):
    """Counts signs of life."""

    beats = 0

    def beat(self, phase: Phase | None = None) -> None:
        self.beats += 1


def signs_of_life(made: Spec) -> list[tuple[int, int]]:
    """Return how often a rank says that it lives in each part of an evaluation, and should."""
    inputs, heard = step_inputs(build_dataset(made), "heldout", (0, 1, 2, 3), 0), Heard()
    found = list[tuple[int, int]]()
    with RankSession(Plan.of(made), progress=heard) as session:
        step = session.executor.run_forward(session.mine.evaluation, inputs)
        found.append((heard.beats, len(session.mine.evaluation)))
        heard.beats = 0
        assert list(draw(session, step, inputs.data, NUM_STEPS))
        found.append((heard.beats, NUM_STEPS))
    return found


def test_each_slot_of_a_forward_and_each_pass_of_a_drawing_is_a_sign_of_life() -> None:
    made = asked(language={"model": DECODER}, flow=GENERATORS["flow"])
    [found] = run_on_running_ranks(signs_of_life, made, world_size=1)
    for heard, wanted in found:
        assert heard == wanted > 1
