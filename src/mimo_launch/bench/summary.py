"""Compares what all ranks have measured with what the plan expected.

Decides: how the ranks' timelines are aligned; when an estimate can be compared.
Relies on: `time_shares` for where time went, `estimate` for FLOPs and estimates.
Leaves: measuring to `measure_steps`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from mimo_launch.bench.result import Memory, RankResult, Speed
from mimo_launch.bench.time_shares import RankStep, bubbles_of, shares_of, steps_of
from mimo_launch.comm.step_clock import Noted
from mimo_launch.estimate.rows import Estimates
from mimo_launch.estimate.workload import rate_of, step_flops
from mimo_launch.layout.layout import Layout
from mimo_launch.layout.step_data import StepData
from mimo_launch.spec.spec import Spec


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
    peak: float | None,
) -> Speed:
    """Return the speed of a step of `seconds`, with the mean work of the timed steps.

    `peak` is that of the device in TFLOP/s, or None.
    """
    per_step = [step_flops(spec, layout, data) for data in timed]
    mean = {name: sum(each[name] for each in per_step) / len(timed) for name in per_step[0]}
    rate = rate_of(mean, seconds, layout.world_size, peak)
    tokens = spec.batch.global_ * spec.batch.seq
    return Speed(
        tokens=tokens,
        tokens_per_s=tokens / seconds,
        tokens_per_s_per_rank=tokens / seconds / layout.world_size,
        tflop=rate.tflop,
        tflops_per_rank=rate.tflops_per_rank,
        peak_tflops=peak,
        mfu=rate.mfu,
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
