"""Biases of experts move on GPUs as on one rank, and the host waits for nothing."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.support.gpu_ranks import TIMEOUT_SECONDS
from tests.support.planted_experts import BIASED, routed
from tests.support.proof import failures

from mimo_launch.comm.world import device_for
from mimo_launch.data.build import build_dataset
from mimo_launch.data.order.sample_order import global_order, steps_of
from mimo_launch.launcher.run_on_ranks import RankDevice, Ranks
from mimo_launch.layers.router import ExpertBias
from mimo_launch.plan.plan import Plan
from mimo_launch.spec.spec import Spec
from mimo_launch.train.loader import step_inputs
from mimo_launch.train.rank_session import RankSession
from mimo_launch.verify.proof import verify_on
from mimo_launch.verify.shrink import shrink

pytestmark = pytest.mark.gpu

CASES: dict[str, tuple[int, Callable[[], Spec]]] = {
    "one rank": (1, lambda: routed({}, BIASED)),
    "ep2 over dp2": (2, lambda: routed({"ep": 2}, BIASED, dp=2)),
    "ep2 over tp2": (2, lambda: routed({"ep": 2}, BIASED, tp=2)),
    "ep2 over tp2 cp2, recomputed": (
        4, lambda: routed({"ep": 2}, BIASED, tp=2, cp=2, sequence_parallel=True, recompute="full"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_biases_are_those_of_one_rank(
    name: str, ranks_of: Callable[[int], Ranks], one_rank: Ranks
) -> None:
    """With all else of a proof, in float64."""
    size, made = CASES[name]
    found = verify_on(ranks_of(size), one_rank, shrink(made()), timeout_s=2 * TIMEOUT_SECONDS)
    assert failures(found) == []


@pytest.mark.parametrize("size", [1, 2])
def test_the_host_waits_for_no_bias(
    size: int, run_on: Callable[..., list[Any]], device: Any
) -> None:
    """In an update; choosing experts has waited before, for sizes."""
    grid = {"dp": 2} if size == 2 else {}
    found = run_on(size, biases_after_a_step, shrink(routed({}, BIASED, **grid)), device)
    assert all(each == found[0] for each in found)
    assert any(found[0])


def biases_after_a_step(spec: Spec, kind: RankDevice) -> list[float]:
    """Return how far the biases of this rank have moved."""
    dataset, device = build_dataset(spec), device_for(kind, dist.get_rank())
    ids = next(iter(steps_of(global_order(spec, dataset), 1)))
    with RankSession(Plan.of(spec), device=device) as session:
        session.gradients(step_inputs(dataset, "train", ids, 0))
        if device.type == "cuda":
            torch.cuda.set_sync_debug_mode("error")
        try:
            session.update()
        finally:
            if device.type == "cuda":
                torch.cuda.set_sync_debug_mode("default")
        modules = session.modules["language"].stages[0].modules()
        return [x for each in modules if isinstance(each, ExpertBias) for x in each.values.tolist()]
