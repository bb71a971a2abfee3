"""Benches and calibrations on GPUs: times of the device, not of the host that is ahead of it."""

import math
import time
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.support.gpu_ranks import SIZES, TIMEOUT_SECONDS
from tests.support.specs import box, spec

from mimo_launch.bench.calibrate import calibrate
from mimo_launch.bench.measure_steps import bench
from mimo_launch.bench.result import BenchOptions, Shares
from mimo_launch.comm.step_clock import Section, StepClock
from mimo_launch.comm.world import device_for
from mimo_launch.estimate.device_constants import Calibration
from mimo_launch.launcher.run_on_ranks import Ranks
from mimo_launch.plan.plan import Plan
from mimo_launch.spec.spec import Spec
from mimo_launch.train.rank_session import RankSession

pytestmark = pytest.mark.gpu

MOE = {"layers": 2, "moe": {"experts": 4, "top_k": 2, "width": 16, "every": 2}}
LAYOUTS: dict[str, tuple[int, dict[str, Any], dict[str, Any]]] = {
    "one rank": (1, box(0), box(0)),
    "colocated dp2": (2, box(0, dp=2), box(0, dp=2)),
    "disjoint": (2, box(0), box(1)),
    "ep2 under dp2": (2, box(0, dp=2), box(0, dp=2, model=MOE, experts={"ep": 2})),
    "dp2 to pp2": (4, box(0, dp=2), box(2, pp=2)),
    "tp2 under cp2": (4, box(0, tp=2, dp=2), box(0, tp=2, cp=2)),
}
FITTING = [name for name, (size, _, _) in LAYOUTS.items() if size in SIZES]
# The first of a machine compiles and tunes kernels of all kinds, for four minutes.
CALIBRATION_SECONDS = 600
OPTIONS = BenchOptions(warmup=2, steps=3, calibration=Calibration(), command="bench")


def made_of(layout: str, precision: str = "bf16") -> Spec:
    _, vision, language = LAYOUTS[layout]
    return spec(
        {"vision": vision, "language": language},
        microbatches=4, mbs=2, max_patches=16, train={"precision": precision},
    )  # fmt: skip


def benched(made: Spec, kind: Any) -> Any:
    with RankSession(Plan.of(made), device=device_for(kind, dist.get_rank())) as session:
        return bench(session, OPTIONS, lambda event: None, lambda: 0)


def calibrated(made: Spec, kind: Any) -> Any:
    with RankSession(Plan.of(made), device=device_for(kind, dist.get_rank())) as session:
        return calibrate(session, OPTIONS, lambda event: None, lambda: 0)


@pytest.mark.parametrize("layout", FITTING)
def test_a_bench(run_on: Callable[..., list[Any]], device: str, layout: str) -> None:
    size, _, language = LAYOUTS[layout]
    result, *others = run_on(size, benched, made_of(layout), device)
    assert others == [0] * (size - 1)
    assert result.machine.device_kind == device
    assert (len(result.step_times_s), result.skipped) == (OPTIONS.steps, 0)
    assert min(result.step_times_s) > 0
    for rank in result.ranks:
        shares = [getattr(rank.shares, each.name) for each in fields(Shares)]
        assert sum(shares) == pytest.approx(1)
        assert min(shares) > -0.01
        assert rank.shares.compute > 0
        assert (rank.shares.all_to_all > 0) == ("experts" in language)
        if device == "cuda":
            assert 0 < rank.memory.allocated <= rank.memory.reserved <= rank.memory.used


def test_memory_of_gradients_is_there_for_activations(device: str) -> None:
    """What the allocator holds, but no tensor has, is less than half of the gradients.

    On new ranks: that of the others also holds what earlier tests left.
    """
    if device != "cuda":
        pytest.skip("looks at the allocator of CUDA")
    model = {"layers": 12, "hidden": 1024, "heads": 8, "kv_heads": 8, "mlp": 4096, "vocab": 8192}
    made = spec(
        {"language": box(0, model=model)},
        microbatches=2, mbs=8, seq=1024, train={"precision": "bf16"},
    )  # fmt: skip
    with Ranks(1, device="cuda") as ranks:
        [result] = ranks.run(benched, made, device, timeout_s=TIMEOUT_SECONDS)
    [memory] = [rank.memory for rank in result.ranks]
    gradients = 4 * (12 * (4 * 1024**2 + 3 * 1024 * 4096) + 2 * 8192 * 1024)
    assert memory.allocated > 4 * gradients
    assert memory.reserved - memory.allocated < gradients / 2


@pytest.mark.parametrize("layout", FITTING)
def test_a_calibration(ranks_of: Callable[[int], Ranks], device: str, layout: str) -> None:
    size, vision, language = LAYOUTS[layout]
    results: list[Any] = ranks_of(size).run(
        calibrated, made_of(layout), device, timeout_s=CALIBRATION_SECONDS
    )
    made, measured = results[0].constants, results[0].measured
    assert results[0].step_seconds > 0
    assert all(each == results[0] for each in results)
    assert {"fp32_speed", "memory_bandwidth", "layer_overhead"} <= set(measured)
    assert made.kernels.device == made.device
    assert made.kernels.source.startswith("measured on 2")
    on_gpu = device == "cuda"
    starts = {"dynamic_starts"} | ({"experts_starts"} if "experts" in language else set())
    assert (starts <= set(measured)) == on_gpu
    for name in measured:
        value = getattr(made, name)
        assert math.isfinite(value), name
        assert value >= 0, name
    disjoint = vision["ranks"] != language["ranks"]
    assert ("p2p_latency" in measured) == disjoint
    dp_or_tp = any(each["grid"][axis] > 1 for each in (vision, language) for axis in ("dp", "tp"))
    assert ("collective_latency" in measured) == dp_or_tp
    assert ({"context_memory", "allocator_slack"} <= set(measured)) == on_gpu
    assert made.network_bandwidth == Calibration().network_bandwidth


def spans(kind: Any) -> tuple[float, float, float]:
    """Return seconds of a span, of the host inside it, and of the same work waited for."""
    device = device_for(kind, dist.get_rank())
    size = 2048 if device.type == "cuda" else 256
    x = torch.randn(size, size, device=device)

    def work() -> None:
        for _ in range(200):
            x @ x

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    work()
    wait()
    begin = time.perf_counter()
    work()
    wait()
    waited = time.perf_counter() - begin
    clock = StepClock(device)
    began = clock.start()
    with clock.span(Section.STEP):
        work()
        host = time.perf_counter() - began
    [(_, start, end)] = clock.stop()
    assert began <= start <= end <= time.perf_counter() + 1e-3
    return end - start, host, waited


def test_the_clock_is_that_of_the_device(run_on: Callable[..., list[Any]], device: str) -> None:
    [(span, host, waited)] = run_on(1, spans, device)
    assert span == pytest.approx(waited, rel=0.5)
    if device == "cuda":
        assert span > 2 * host
