"""Compares what all ranks have measured with what the plan expected.

Decides: how the ranks' timelines are aligned; when an estimate can be compared; that the FLOPs of a
step are those of its own images and records, padding included.
Relies on: `time_shares` for where time went, `estimate` for FLOPs and estimates.
Leaves: measuring to `measure_steps`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from mimo_launch.bench.result import Memory, RankResult, Speed
from mimo_launch.bench.time_shares import RankStep, bubbles_of, shares_of, steps_of
from mimo_launch.comm.step_clock import Noted
from mimo_launch.estimate.device_constants import Calibration
from mimo_launch.estimate.rows import Estimates
from mimo_launch.estimate.workload import (
    backward_flops,
    encoder_workload,
    forward_flops,
    language_spans,
)
from mimo_launch.kinds.layer import Workload
from mimo_launch.layout.layout import Layout, ModuleLayout
from mimo_launch.layout.step_data import StepData
from mimo_launch.layout.step_views import EncoderView
from mimo_launch.spec.spec import Spec


def step_flops(spec: Spec, layout: Layout, data: StepData) -> dict[str, float]:
    """Return the FLOPs of one step by module: forward and backward, without recomputation."""
    flops = {}
    for module in layout.modules:
        work, total = _work(layout, data, module), 0.0
        for stage in module.stages:
            forward = forward_flops(spec, stage, work)
            total += forward.total + backward_flops(spec, layout, module, stage, forward).total
        flops[module.name] = total
    return flops


def _work(layout: Layout, data: StepData, module: ModuleLayout) -> Workload:
    """Return the whole step as if it were one forward: the FLOPs of its samples add up."""
    if module.is_language:
        spans = tuple(n for s in data.samples for n in language_spans(s, layout.seq))
        return Workload(spans=spans, held=sum(spans), rows=0, forwards=1)
    view = EncoderView(module, data, 0, tuple(range(len(data.samples))))
    return encoder_workload(view, times=1, forwards=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one rank has measured; `began` is the time on its host when the timed steps began.

    `allocated` holds the peaks of the GPU's allocator, in tensors and reserved; `used` is all
    memory of the GPU in use.
    """

    host: str
    began: float
    noted: list[Noted]
    allocated: tuple[int, int] | None
    used: int | None
    resident: int
    skipped: int


def aligned(measured: Sequence[Measured]) -> list[list[RankStep]]:
    """Return the steps of all ranks on one clock: on every host, 0 is when its first rank began.

    All ranks left the same barrier then. Ranks on one host share its clock.
    """
    zeros: dict[str, float] = {}
    for each in measured:
        zeros[each.host] = min(zeros.get(each.host, each.began), each.began)
    return [steps_of(each.noted, -zeros[each.host]) for each in measured]


def speed_of(
    spec: Spec,
    layout: Layout,
    timed: Sequence[StepData],
    seconds: float,
    calibration: Calibration | None,
) -> Speed:
    """Return the speed of a step of `seconds`, with the mean work of the timed steps.

    `calibration` is that of this device, or None.
    """
    per_step = [step_flops(spec, layout, data) for data in timed]
    tflop = {name: sum(each[name] for each in per_step) / len(timed) / 1e12 for name in per_step[0]}
    tokens = spec.batch.global_ * spec.batch.seq
    tflops = sum(tflop.values()) / seconds / layout.world_size
    peak = None
    if calibration is not None:
        speeds = {"bf16": 1.0, "fp32": calibration.fp32_speed, "fp64": calibration.fp64_speed}
        peak = calibration.peak * speeds[spec.train.precision]
    return Speed(
        tokens=tokens,
        tokens_per_s=tokens / seconds,
        tokens_per_s_per_rank=tokens / seconds / layout.world_size,
        tflop=tflop,
        tflops_per_rank=tflops,
        peak_tflops=peak,
        mfu=None if peak is None else tflops / peak,
    )


def rank_results(
    layout: Layout,
    measured: Sequence[Measured],
    by_rank: Sequence[Sequence[RankStep]],
    expected: Estimates,
    *,
    known: bool,
) -> list[RankResult]:
    """Return what each rank did beside what was `expected`; times only for a `known` device."""
    shares, bubbles = shares_of(layout, by_rank), bubbles_of(by_rank)
    estimates = {rank: alike for alike in expected.ranks for rank in alike.ranks}
    results = []
    for rank, own in enumerate(measured):
        allocated, reserved = own.allocated or (None, None)
        estimate = estimates.get(rank)
        results.append(
            RankResult(
                rank=rank,
                modules=tuple(module.name for module in layout.modules_of(rank)),
                shares=shares[rank],
                bubble=bubbles[rank],
                estimated_bubble=estimate.bubble if estimate is not None and known else None,
                memory=Memory(
                    allocated=allocated,
                    reserved=reserved,
                    used=own.used,
                    resident=own.resident,
                    estimated_allocated=None if estimate is None else estimate.allocated_bytes,
                    estimated_total=None if estimate is None else estimate.total_bytes,
                ),
            )
        )
    return results
