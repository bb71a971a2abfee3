"""Measures the constants of `plan`'s estimates, on this machine and at the sizes of a spec.

Decides: which measurement becomes which constant; medians over ranks, groups and channels.
Relies on: `measure_kernels`, `measure_device` and `links` for the parts, steps of `measure_steps`
for the time that these do not explain.
Leaves: the formulas that use the constants to `estimate.cost_model`.

Constants that this spec cannot measure (the network on one host, transfers without a pipeline) keep
their values.
"""

import platform
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist

from mimo_launch.bench.links import MeasuredLink, channels, collectives
from mimo_launch.bench.measure_device import compute_rates, host_starts
from mimo_launch.bench.measure_kernels import measured_table
from mimo_launch.bench.measure_steps import measure
from mimo_launch.bench.result import BenchOptions
from mimo_launch.bench.time_shares import Measured, RankStep, align, step_seconds
from mimo_launch.comm.objects import gather_objects
from mimo_launch.comm.step_clock import Section
from mimo_launch.comm.world import device_name
from mimo_launch.estimate.communication_times import LinkTimes
from mimo_launch.estimate.cost_model import CostModel, StageCost
from mimo_launch.estimate.device_constants import Calibration
from mimo_launch.estimate.estimates import Estimator
from mimo_launch.estimate.kernel_table import KernelTable
from mimo_launch.estimate.rows import Estimates
from mimo_launch.estimate.step_work import first_work
from mimo_launch.kinds.layer import LayerKind
from mimo_launch.plan.plan import Plan
from mimo_launch.runtime.progress import Phase
from mimo_launch.spec.values import BF16_PEAKS, PRECISIONS
from mimo_launch.train.events import Listener
from mimo_launch.train.rank_session import RankSession

_MICRO, _MILLI, _GIGA = 1e-6, 1e-3, 1e9
# A step takes at most this many times as long as its kernels, unless they wait for the host.
_LONGER = 1.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """The result of a calibration: all constants, and the names of the measured ones.

    `step_seconds` is the median of the timed steps, `estimated_seconds` the estimate from the
    constants.
    """

    constants: Calibration
    measured: tuple[str, ...]
    step_seconds: float
    estimated_seconds: float


@dataclass(frozen=True, slots=True)
class _Parts:
    """One rank's measurements apart from steps."""

    host: str
    rates: dict[str, float]
    starts: dict[str, float]
    collectives: list[MeasuredLink]
    channels: list[MeasuredLink]


def calibrate(
    session: RankSession, options: BenchOptions, emit: Listener, stop: Callable[[], int]
) -> int | Calibrated:
    """Return the constants, or the signal that ended the measurements.

    Ranks: collective over the world. Raises: what `train` raises.
    """
    result = measure(session, options, emit, stop)
    if isinstance(result, int):
        return result
    measured, _ = result
    session.updates.clear()
    if session.device.type == "cuda":
        torch.cuda.empty_cache()
    session.progress.enter(Phase.MEASURING)
    rates = compute_rates(session)
    dist.barrier()
    session.progress.beat()
    parts: list[_Parts] = gather_objects(
        _Parts(
            platform.node(), rates, host_starts(session), collectives(session), channels(session)
        )
    )
    kernels = _kernels(session, options.calibration)
    of_ranks = _Measurements(session, parts, measured)
    found: dict[str, Any] = dict(of_ranks.constants())
    constants = replace(options.calibration, **found, kernels=kernels)
    found |= of_ranks.overheads(constants)
    plan = Plan.of(session.spec)
    estimates = Estimator.of(plan, replace(constants, context_memory=0.0)).estimates()
    if taken := contexts(estimates, measured):
        found["context_memory"] = max(0.0, statistics.median(taken) / _GIGA)
    made = replace(
        options.calibration,
        device=device_name(session.device),
        date=_today(),
        kernels=kernels,
        **found,
    )
    return Calibrated(
        constants=made,
        measured=tuple(found),
        step_seconds=statistics.median(step_seconds(of_ranks.by_rank)),
        estimated_seconds=Estimator.of(plan, made).estimates().step_seconds,
    )


def contexts(estimates: Estimates, measured: Sequence[Measured]) -> list[int]:
    """Return the bytes of the CUDA context of each rank on a GPU.

    It takes the memory in use that neither the allocator nor NCCL holds; the estimates count none.
    """
    return [
        own.used - own.allocated[1] - alike.memory.device
        for alike in estimates.ranks
        for own in (measured[rank] for rank in alike.ranks)
        if own.used is not None and own.allocated is not None
    ]


def _kernels(session: RankSession, given: Calibration) -> KernelTable:
    """Return the table of kernels, which rank 0 measures while the others wait."""
    made = given.kernels
    if session.rank == 0:
        name = device_name(session.device)
        measured = measured_table(session.device, name, _today(), session.progress.beat)
        made = measured.over(made)
    table: KernelTable = gather_objects(made)[0]
    return table


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


@dataclass(frozen=True)
class _Measurements:
    """The measurements of all ranks: parts of steps, and whole steps."""

    session: RankSession
    parts: Sequence[_Parts]
    measured: Sequence[Measured]

    @cached_property
    def by_rank(self) -> list[list[RankStep]]:
        """The steps of all ranks, aligned to one clock."""
        return align(self.measured)

    def constants(self) -> Iterator[tuple[str, float]]:
        """Yield every constant that does not depend on other constants."""

        def rate(name: str) -> float | None:
            return _median(part.rates[name] for part in self.parts if name in part.rates)

        matmul = {p: rate(f"matmul_{p}") or 1.0 for p in PRECISIONS}
        for name, precision in PRECISIONS.items():
            if precision.speed is not None:
                yield precision.speed, matmul[name] / matmul["bf16"]
        yield "peak", BF16_PEAKS.get(device_name(self.session.device), matmul["bf16"])
        yield "memory_bandwidth", rate("memory_bandwidth") or 1.0
        yield "sustained", rate("sustained") or 1.0
        yield from self.links()
        if self.session.device.type == "cuda":
            yield from self.starts()
        else:
            yield "collective_overlap", 0.0
            yield "copy_overlap", 0.0
        held = [each.allocated for each in self.measured if each.allocated is not None]
        if held:
            yield "allocator_slack", statistics.median(r / a - 1 for a, r in held)

    def starts(self) -> Iterator[tuple[str, float]]:
        """Yield how much longer than a block the host takes for other layers."""

        def again(name: str) -> float | None:
            return _median(part.starts[name] for part in self.parts if name in part.starts)

        encoder = again("encoder")
        block = again(LayerKind.BLOCK) or encoder
        for name, of, plain in (
            ("experts_starts", again(LayerKind.EXPERTS), block),
            ("recurrent_starts", again(LayerKind.MAMBA), block),
            ("deltanet_starts", again(LayerKind.DELTANET), block),
            ("engine_starts", again("engine"), block),
            ("dynamic_starts", again("dynamic"), encoder),
        ):
            if of is not None and plain:
                yield name, of / plain

    def links(self) -> Iterator[tuple[str, float]]:
        """Yield the constants of links inside a host and between hosts."""
        hosts = [part.host for part in self.parts]
        together = [link for part in self.parts for link in part.collectives]
        alone = [link for part in self.parts for link in part.channels]
        for latency, bandwidth, links in (
            ("collective_latency", "collective_bandwidth", together),
            ("p2p_latency", "p2p_bandwidth", alone),
        ):
            inside = [link for link in links if len({hosts[rank] for rank in link.ranks}) == 1]
            seconds = _median(link.seconds for link in inside)
            speed = _median(link.bandwidth for link in inside if link.bandwidth is not None)
            if seconds is not None:
                yield latency, seconds / _MICRO
            if speed is not None:
                yield bandwidth, speed
        across = [link for link in (*together, *alone) if len({hosts[r] for r in link.ranks}) > 1]
        network = _median(link.bandwidth for link in across if link.bandwidth is not None)
        if network is not None:
            yield "network_bandwidth", network

    def overheads(self, constants: Calibration) -> dict[str, float]:
        """Return the time of an action and of a step that the other constants do not explain."""
        layer_overhead = self.layer_overhead(constants)
        constants = replace(
            constants, action_overhead=0.0, step_overhead=0.0, layer_overhead=layer_overhead
        )
        beyond = []
        for costs, own in zip(self.costs(constants), self.by_rank, strict=True):
            expected = sum(times * sum(cost.mean) for cost, times in costs)
            found = [_computing(step) for step in own]
            if any(number for _, number in found):
                each = ((seconds - expected) / max(1, number) for seconds, number in found)
                beyond.append(max(0.0, statistics.median(each)))
        rest = []
        each_step = zip(*self.by_rank, strict=True)
        for seconds, steps in zip(step_seconds(self.by_rank), each_step, strict=True):
            # The program runs from the first slot of any rank to the end of the last.
            slots = [(start, end) for step in steps for _, start, end in step.slots]
            program = max(e for _, e in slots) - min(start for start, _ in slots) if slots else 0.0
            updates = [step.sections.get(Section.UPDATE, (0.0, 0.0)) for step in steps]
            rest.append(seconds - program - max(end - start for start, end in updates))
        links = LinkTimes(self.session.spec, constants)
        after = statistics.median(rest) - links.sum_of_metrics(len(self.by_rank))
        return {
            "layer_overhead": layer_overhead,
            "action_overhead": (_median(beyond) or 0.0) / _MICRO,
            "step_overhead": max(0.0, after) / _MILLI,
        }

    def layer_overhead(self, constants: Calibration) -> float:
        """Return the host's time for one pass of a layer, in microseconds.

        Ranks with forwards and backwards longer than their kernels show it; on other ranks, the
        time of a pass is an upper bound. Processors have no kernels to start.
        """
        if self.session.device.type != "cuda":
            return 0.0
        # With an overhead of 1, the estimated time of the host is the number of passes.
        unit = replace(constants, action_overhead=0.0, layer_overhead=1.0)
        starting: list[float] = []
        most = [constants.layer_overhead]
        for costs, steps in zip(self.costs(unit), self.by_rank, strict=True):
            passes = sum(times * sum(cost.starting) for cost, times in costs) / _MICRO
            kernels = sum(times * sum(cost.mean) for cost, times in costs)
            seconds = _median(_computing(step)[0] for step in steps)
            if not passes or seconds is None:
                continue
            each = seconds / passes / _MICRO
            (starting if seconds > _LONGER * kernels else most).append(each)
        return _median(starting) or min(most)

    def costs(self, constants: Calibration) -> Iterator[list[tuple[StageCost, int]]]:
        """Yield for each rank the costs of its stages, and how often they run."""
        session = self.session
        step = first_work(session.spec, session.layout)
        model = CostModel(session.spec, session.layout, step, constants)
        for stages in session.layout.roles:
            yield [(model.stages[stage], len(model.work[stage[0]])) for stage in stages]


def _computing(step: RankStep) -> tuple[float, int]:
    """Return the seconds and the number of a rank's forwards and backwards in a step."""
    times = [end - start for (action, *_), start, end in step.slots if action.kind.is_compute]
    return sum(times), len(times)


def _median(values: Iterator[float] | Sequence[float]) -> float | None:
    found = list(values)
    return statistics.median(found) if found else None
