"""On GPUs the host starts steps without ever waiting for one, and tells the same of them.

Two witnesses: torch raises where it would synchronise, and the profiler lists the driver's calls.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.distributed.test_late_numbers import whole_run
from tests.support.gpu_ranks import DEVICE, SIZES
from tests.support.specs import box, spec
from torch.profiler import ProfilerActivity, profile, record_function

from mimo_launch.comm.world import device_for
from mimo_launch.data.build import build_dataset
from mimo_launch.data.order.sample_order import GlobalOrder
from mimo_launch.plan.plan import Plan
from mimo_launch.runtime.progress import RunState
from mimo_launch.spec.spec import Spec
from mimo_launch.train.events import StepFinished
from mimo_launch.train.prefetch import StepReader
from mimo_launch.train.rank_session import RankSession
from mimo_launch.train.step import StepRunner

pytestmark = pytest.mark.gpu

# Kernels are chosen, communicators made and pinned memory taken in the first steps.
WARM_UP, STEPS = 3, 3
SPAN = "start a step"
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy")

# Sizes for which one product serves all experts.
EXPERTS = {"hidden": 32, "moe": {"experts": 8, "top_k": 2, "width": 16, "aux_loss": 0.01}}
LAYOUTS: dict[str, tuple[int, dict[str, Any], dict[str, Any]]] = {
    "one rank": (1, box(0), box(0)),
    "colocated dp2": (2, box(0, dp=2), box(0, dp=2)),
    "disjoint": (2, box(0), box(1)),
    "dp2 to pp2": (4, box(0, dp=2), box(2, pp=2)),
    "dp2 to tp2": (4, box(0, dp=2), box(2, tp=2)),
    "dp4 and tp2 dp2": (4, box(0, dp=4), box(0, tp=2, dp=2)),
    "experts": (1, box(0), box(0, model=EXPERTS)),
}


def made_of(layout: str, **train: Any) -> Spec:
    _, vision, language = LAYOUTS[layout]
    return spec(
        {"vision": vision, "language": language},
        microbatches=4, mbs=2, max_patches=16,
        train={"steps": WARM_UP + STEPS, "precision": "bf16", **train},
        optimizer={"kind": "adamw", "lr": 1e-3, "clip": 0.1},
    )  # fmt: skip


def waits(made: Spec, kind: Any) -> list[str]:
    """Return the calls of the driver by which the host waited while it started steps."""
    device = device_for(kind, dist.get_rank())
    with RankSession(Plan.of(made), device=device) as session:
        dataset, state = build_dataset(made), RunState()
        order = GlobalOrder(dataset.num_samples("train"), made.batch.global_, 0)
        with StepReader(session, dataset, state, lambda event: None) as reader:
            runner = StepRunner(session, reader, order, state, lambda event: None)
            for _ in range(WARM_UP):
                runner.start((0,))
                runner.settle()
            activities = [ProfilerActivity.CPU]
            if device.type == "cuda":
                activities.append(ProfilerActivity.CUDA)
                torch.cuda.synchronize()
            with profile(activities=activities) as seen:
                if device.type == "cuda":
                    torch.cuda.set_sync_debug_mode("error")
                try:
                    for _ in range(STEPS):
                        with record_function(SPAN):
                            runner.start((0,))
                finally:
                    if device.type == "cuda":
                        torch.cuda.set_sync_debug_mode("default")
            runner.settle()
    events = seen.events() or []
    spans = [e.time_range for e in events if e.name == SPAN]
    assert len(spans) >= STEPS
    return [
        event.name
        for event in events
        if event.name in WAITS
        and any(
            span.start <= event.time_range.start and event.time_range.end <= span.end
            for span in spans
        )
    ]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_step_makes_the_host_wait(layout: str, run_on: Callable[..., list[Any]]) -> None:
    size = LAYOUTS[layout][0]
    assert run_on(size, waits, made_of(layout), DEVICE) == [[]] * size


@pytest.mark.parametrize("layout", [name for name, (size, *_) in LAYOUTS.items() if size in SIZES])
def test_what_is_told_late_is_what_happened(
    layout: str, run_on: Callable[..., list[Any]], tmp_path: Path
) -> None:
    """The same run with numbers read at once: the same steps are skipped, and the losses agree."""
    made = made_of(layout, steps=8, precision="fp64")
    size, bad = LAYOUTS[layout][0], {1, 4, 5}
    told = []
    for late in (0, 1):
        folder = tmp_path / f"late-{late}"
        [(events, *_), *_] = run_on(size, whole_run, made, folder, bad, late, DEVICE)
        told.append([event for event in events if isinstance(event, StepFinished)])
    now, late_ones = told
    assert [e.step for e in now if e.skipped] == [e.step for e in late_ones if e.skipped]
    assert {e.step for e in now if e.skipped} == bad
    assert [e.loss for e in late_ones] == pytest.approx([e.loss for e in now], rel=1e-9)
