"""Transfers stay right, and end, when ranks and GPUs are late at random.

Schedules in which transfers, FSDP's gathers and compute share a GPU; before some slots the host
sleeps, or the GPU's stream does. Whatever the order in which things then arrive, the gradients are
those of the same steps without delays.
"""

import random
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.support.gpu_ranks import NUM_DEVICES, TIMEOUT_SECONDS
from tests.support.specs import box, spec

from mimo_launch.comm.world import device_for
from mimo_launch.data.build import build_dataset
from mimo_launch.data.order.sample_order import GlobalOrder
from mimo_launch.launcher.run_on_ranks import RankDevice, Ranks, run_ranks
from mimo_launch.layers.parameter_segments import local_tensor
from mimo_launch.plan.plan import Plan
from mimo_launch.runtime.progress import Progress
from mimo_launch.runtime.stage_transfers import StageEdges
from mimo_launch.spec.spec import Spec
from mimo_launch.train.loader import step_inputs
from mimo_launch.train.rank_session import RankSession

pytestmark = pytest.mark.gpu

STEPS = 12
SEEDS = (1, 2)
HOST_SECONDS = 0.004
# About as long, at 1.5 to 2 GHz.
GPU_CYCLES = 6_000_000


class Late(Progress):
    """Makes its rank late before slots, when it is told to: each is drawn from a seed."""

    def __init__(self) -> None:
        super().__init__()
        self.draws: random.Random | None = None
        self.num_delays = 0

    def at(self, position: int) -> None:
        super().at(position)
        if self.draws is None:
            return
        kind, share = self.draws.choice(("host", "gpu", "neither")), self.draws.random()
        self.num_delays += kind != "neither"
        if kind == "gpu" and torch.cuda.is_initialized():
            torch.cuda._sleep(int(share * GPU_CYCLES))
        elif kind != "neither":
            time.sleep(share * HOST_SECONDS)


def sums_of_gradients(session: RankSession, made: Spec) -> list[torch.Tensor]:
    """Run steps back to back, and return the sum of each gradient over them, on the device."""
    dataset = build_dataset(made)
    order = GlobalOrder(dataset.num_samples("train"), made.batch.global_, made.train.seed)
    sums: list[torch.Tensor] = []
    for step in range(STEPS):
        session.gradients(step_inputs(dataset, "train", order.ids(step), step))
        found = [
            local_tensor(item.parameter.grad)
            for name in session.modules
            for item in session.declared(name)
            if item.parameter.grad is not None
        ]
        # No rank waits here: a sum is one more kernel behind the step.
        sums = (
            [g.clone() for g in found]
            if not sums
            else [a + b for a, b in zip(sums, found, strict=True)]
        )
    return sums


def largest_change(made: Spec, seeds: tuple[int, ...], kind: RankDevice) -> tuple[float, int]:
    """Return the largest relative change of a gradient by delays, and the number of delays."""
    late, rank = Late(), dist.get_rank()
    worst = 0.0
    with RankSession(
        Plan.of(made), device=device_for(kind, rank), randomise=True, progress=late
    ) as session:
        undelayed = [grad.cpu() for grad in sums_of_gradients(session, made)]
        for seed in seeds:
            late.draws = random.Random(f"{seed} {rank}")
            for got, want in zip(sums_of_gradients(session, made), undelayed, strict=True):
                error = float((got.cpu() - want).norm()) / max(float(want.norm()), 1e-12)
                worst = max(worst, error if error == error else float("inf"))
    return worst, late.num_delays


CASES: dict[str, Spec] = {
    "colocated, pp 2, in phases, full sharding": spec(
        {
            "vision": box(0, dp=4, sharding="full"),
            "language": box(0, dp=2, pp=2, sharding="full", model={"layers": 4}),
        },
        microbatches=4,
        encoder_microbatches=2,
        mbs=2,
    ),
    "colocated, pp 2, bubbles filled": spec(
        {"vision": box(0, dp=4), "language": box(0, dp=2, pp=2, model={"layers": 4})},
        microbatches=4,
        encoder_microbatches=2,
        mbs=2,
        kind="bubble_filling",
    ),
    "disjoint, fan-in, interleaved": spec(
        {
            "vision": box(0, dp=2, sharding="full"),
            "language": box(2, pp=2, sharding="full", model={"layers": 4}),
        },
        microbatches=6,
        mbs=2,
        kind="interleaved",
        virtual_stages=2,
    ),
    "disjoint, encoder pp 2, language pp 2": spec(
        {"vision": box(0, pp=2), "language": box(2, pp=2, sharding="full")},
        microbatches=6,
        mbs=1,
    ),
    "colocated on two, pp 2, bubbles filled": spec(
        {"vision": box(0, dp=2), "language": box(0, pp=2, model={"layers": 4})},
        microbatches=4,
        encoder_microbatches=2,
        mbs=2,
        kind="bubble_filling",
    ),
    "colocated on two, interleaved": spec(
        {"vision": box(0, tp=2), "language": box(0, pp=2, model={"layers": 4})},
        microbatches=4,
        encoder_microbatches=2,
        mbs=2,
        kind="interleaved",
        virtual_stages=2,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_delays_change_no_gradient(
    name: str, ranks_of: Callable[[int], Ranks], device: RankDevice, say: Callable[[str], None]
) -> None:
    made = CASES[name]
    size = max(module.rank_range.stop for module in made.modules.values())
    begin = time.perf_counter()
    found = ranks_of(size).run(largest_change, made, SEEDS, device, timeout_s=TIMEOUT_SECONDS)
    worst, delays = max(worst for worst, _ in found), sum(number for _, number in found)
    seconds = time.perf_counter() - begin
    say(f"  {name} on {size}: {delays} delays, change {worst:.1e}, {seconds:.1f} s")
    assert delays > 100
    assert worst <= 1e-10


class Unwaited:
    """A transfer of which nobody waits for the end."""

    def __init__(self, work: Any) -> None:
        self.work = work

    def wait(self) -> None:
        pass


def change_without_waiting(made: Spec, kind: RankDevice) -> float:
    """Plant: the receives of a pipeline are used before they have arrived."""
    post = StageEdges.post

    def unwaited(edges: StageEdges, action: Any, *rest: Any) -> None:
        post(edges, action, *rest)
        if action in edges._incoming:
            incoming = edges._incoming[action]
            edges._incoming[action] = replace(incoming, work=Unwaited(incoming.work))

    StageEdges.post = unwaited
    return largest_change(made, SEEDS, kind)[0]


def test_a_transfer_that_is_not_waited_for_is_seen(device: RankDevice) -> None:
    """In ranks of their own, in which the fault is planted."""
    made = CASES["colocated on two, pp 2, bubbles filled"]
    if NUM_DEVICES < 2:
        pytest.skip("needs 2 GPUs")
    found = run_ranks(
        change_without_waiting, made, device, world_size=2, timeout_s=60, device=device
    )
    assert max(found) > 1e-6
