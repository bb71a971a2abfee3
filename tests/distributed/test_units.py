"""Blocks that are gathered and reduced in runs of several, as real models have them.

The models of proofs are so small that each stage would be one unit.
"""

from functools import partial
from typing import Any

import pytest
from tests.support.proof import failures
from tests.support.specs import box, spec
from torch.utils._python_dispatch import TorchDispatchMode

from mimo_launch.data.build import build_dataset
from mimo_launch.launcher.run_on_ranks import run_ranks
from mimo_launch.layers.parameter_segments import local_segments
from mimo_launch.layout import stages
from mimo_launch.layout.layout import build_layout
from mimo_launch.models import fsdp
from mimo_launch.plan.plan import Plan
from mimo_launch.spec.spec import Spec
from mimo_launch.train.loader import step_inputs
from mimo_launch.train.rank_session import RankSession
from mimo_launch.verify.proof import verify_spec

DEEP = {"layers": 5}


def made(vision: dict[str, Any], language: dict[str, Any], **more: Any) -> Spec:
    modules = {
        "vision": box(**vision, model=DEEP),
        "language": box(**language, model={**DEEP, "layers": 6, **more.pop("model", {})}),
    }
    return spec(
        modules,
        mbs=2,
        optimizer={"kind": "sgd", "lr": 0.1, "clip": 0.5},
        train={"steps": 2, "precision": "fp64"},
        **more,
    )


SPECS = {
    "dp 2, text-only": made({"dp": 2}, {"dp": 2}, microbatches=2, text_only=0.5),
    "one microbatch": made({}, {}),
    "pp 2 behind vision, tied": made(
        {}, {"first": 1, "pp": 2}, microbatches=4, model={"tied": True}
    ),
    "only the projector trains": made({"frozen": "except_projector"}, {"frozen": True}),
    "recomputed, tp 2 with sequence parallelism": made(
        {"tp": 2, "recompute": "full"},
        {"tp": 2, "sequence_parallel": True, "recompute": "full"},
        microbatches=2,
    ),
}


def use_units_of(parameters: int) -> None:
    stages.MIN_PARAMETERS_PER_UNIT = parameters


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        pytest.param(n, p, marks=() if p == 1 or n == next(iter(SPECS)) else pytest.mark.sweep)
        for n in SPECS
        for p in (1, 2000)
    ],
)
def test_units_of_any_size_compute_the_one_rank_gradients(name: str, parameters: int) -> None:
    assert failures(verify_spec(SPECS[name], prepare=partial(use_units_of, parameters))) == []


def test_the_sizes_above_make_units_of_one_block_and_of_several() -> None:
    sizes = {1: set(), 2000: set()}
    before = stages.MIN_PARAMETERS_PER_UNIT
    for parameters, found in sizes.items():
        use_units_of(parameters)
        modules = [module for each in SPECS.values() for module in build_layout(each).modules]
        found |= {len(unit) for each in modules for stage in each.stages for unit in stage.units}
    use_units_of(before)
    assert sizes[1] == {1}
    assert any(size > 1 for size in sizes[2000])


class Reductions(TorchDispatchMode):
    """Counts how often gradients are summed over replicas."""

    def __init__(self) -> None:
        super().__init__()
        self.num = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.num += "reduce_scatter" in func.__name__
        return func(*args, **(kwargs or {}))


def num_reductions(made: Spec) -> int:
    inputs = step_inputs(build_dataset(made), "train", tuple(range(made.batch.global_)), 0)
    with RankSession(Plan.of(made)) as session, Reductions() as reductions:
        session.gradients(inputs)
    return reductions.num


@pytest.mark.parametrize(("sharding", "expected"), [("optimizer", 1), ("full", 3 * 3)])
def test_gradients_are_reduced_once_a_step_or_by_fully_sharded_units_each_time(
    sharding: str, expected: int
) -> None:
    """Three microbatches; all weights are one unit, or two layers and the rest are three."""
    language = box(dp=2, sharding=sharding, model={"layers": 2})
    asked = spec({"language": language}, microbatches=3)
    assert run_ranks(num_reductions, asked, world_size=2) == [expected] * 2


def test_one_replica_has_no_hook_and_no_factor_in_fsdp() -> None:
    """A hook after FSDP2's all-reduce would let it give memory away too early; see comm.finite.

    A factor, even 1, would make it divide the gradients in a pass of its own.
    """
    run_ranks(nothing_to_sum, SPECS["one microbatch"], world_size=1)


def nothing_to_sum(made: Spec) -> None:
    with RankSession(Plan.of(made)) as session:
        for module in session.modules.values():
            for network in module.stages.values():
                for unit in fsdp.fsdp_modules(network):
                    group: Any = unit._get_fsdp_state()._fsdp_param_group
                    assert group._all_reduce_hook is None
                    assert group.gradient_divide_factor is None


def rows_of_parts(made: Spec) -> list[int]:
    with RankSession(Plan.of(made)) as session:
        declared = session.modules["language"].declared()
        parts = local_segments(declared, lambda parameter: parameter.detach())
        return [each.local.shape[0] for each in parts]


def test_a_rank_has_no_empty_part_of_a_weight() -> None:
    """Keys and values of two heads lie behind queries of four: shards end where segments do."""
    model = {"heads": 4, "kv_heads": 2, "head_dim": 4, "layers": 1}
    made = spec({"language": box(0, dp=2, sharding="full", model=model)}, microbatches=1)
    for rows in run_ranks(rows_of_parts, made, world_size=2):
        assert rows
        assert min(rows) > 0
