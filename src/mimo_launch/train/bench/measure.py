"""Times steps of a spec: the very steps that `train` runs, on samples that are in memory.

Decides: what is timed and when it begins; that the ranks' timelines are laid over each other.
Relies on: `step` for steps, `runtime.clock` for times, `plan` for operations and estimates.
Leaves: where the time went to `shares`, the constants of `plan` to `calibrate`.
"""

import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import torch.distributed as dist

from mimo_launch.comm.objects import gather_objects
from mimo_launch.plan.calibration import Calibration
from mimo_launch.runtime.clock import Noted, Section
from mimo_launch.train.bench.flops import step_flops
from mimo_launch.train.bench.machine import (
    device_name,
    peak_allocated,
    peak_resident,
    reset_peak,
    versions,
)
from mimo_launch.train.bench.result import (
    BenchResult,
    Machine,
    Memory,
    RankResult,
    Speed,
    spread,
)
from mimo_launch.train.bench.rotation import Rotation
from mimo_launch.train.bench.shares import RankStep, bubbles_of, shares_of, step_seconds, steps_of
from mimo_launch.train.data.dataset import build_dataset
from mimo_launch.train.data.order import GlobalOrder
from mimo_launch.train.events import Listener
from mimo_launch.train.loop import Hooks, step_flags, stop_signal
from mimo_launch.train.reading import StepReader
from mimo_launch.train.session import RankSession
from mimo_launch.train.state import RunState
from mimo_launch.train.step import StepRunner


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """How to measure: steps before, steps timed, the device's constants, the command to note."""

    warmup: int
    steps: int
    calibration: Calibration
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    """What one rank has measured; `began` is its host's clock when the timed steps began."""

    host: str
    began: float
    noted: list[Noted]
    allocated: tuple[int, int] | None
    resident: int
    skipped: int


def bench(
    session: RankSession, options: BenchOptions, emit: Listener, stop: Callable[[], int]
) -> int | BenchResult:
    """Run and time steps; return the result, or the signal that ended it before.

    `stop` returns a signal after which to stop, or 0. Ranks: collective over the world. Raises:
    what `train` raises.
    """
    state, dataset = RunState(), build_dataset(session.spec)
    order = GlobalOrder(
        dataset.num_samples("train"), session.spec.batch.global_, session.spec.train.seed
    )
    with StepReader(session, dataset, state, emit) as reader:
        samples = Rotation(reader, order, session.where)
    runner = StepRunner(session, samples, emit, None)
    loop = _Loop(session, runner, state, order, Hooks(stop=stop))
    if ended_by := loop.run(options.warmup):
        return ended_by
    skipped = state.skipped
    reset_peak(session.device)
    dist.barrier()
    began = session.executor.clock.start()
    ended_by = loop.run(options.steps)
    noted = session.executor.clock.stop()
    if ended_by:
        return ended_by
    measured: list[_Measured] = gather_objects(
        _Measured(
            host=platform.node(),
            began=began,
            noted=noted,
            allocated=peak_allocated(session.device),
            resident=peak_resident(),
            skipped=state.skipped - skipped,
        )
    )
    return _result(session, options, measured, samples)


@dataclass(frozen=True, slots=True)
class _Loop:
    """Runs steps one after another, as `loop` does."""

    session: RankSession
    runner: StepRunner
    state: RunState
    order: GlobalOrder
    hooks: Hooks

    def run(self, steps: int) -> int:
        """Run steps to the last or to a signal, which is returned."""
        session, state = self.session, self.state
        for number in range(1, steps + 1):
            flags = step_flags(self.hooks, session.spec)
            with session.executor.clock.span(Section.STEP):
                self.runner.start(state, self.order, flags)
                totals = self.runner.settle(state, all_steps=number == steps)
            if stopped := max(map(stop_signal, totals), default=0):
                self.runner.settle(state)
                return stopped
        return 0


def _result(
    session: RankSession,
    options: BenchOptions,
    measured: Sequence[_Measured],
    samples: Rotation,
) -> BenchResult:
    by_rank = _aligned(measured)
    times = step_seconds(by_rank)
    return BenchResult(
        command=options.command,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        name=session.spec.name,
        plan_hash=session.plan_hash,
        machine=Machine(
            device=device_name(session.device),
            device_kind=session.device.type,
            hosts=len({each.host for each in measured}),
            versions=versions(session.device),
        ),
        precision=session.spec.train.precision,
        warmup=options.warmup,
        steps=options.steps,
        skipped=measured[0].skipped,
        step_s=spread(times),
        step_times_s=tuple(times),
        estimated_step_s=None,
        speed=_speed(session, options, samples, spread(times).median),
        ranks=tuple(_rank_results(session, measured, by_rank)),
    )


def _aligned(measured: Sequence[_Measured]) -> list[list[RankStep]]:
    """Return the steps of all ranks on one clock: on every host, 0 is when its first rank began.

    All ranks left one barrier then. Ranks of one host share its clock.
    """
    zeros: dict[str, float] = {}
    for each in measured:
        zeros[each.host] = min(zeros.get(each.host, each.began), each.began)
    return [steps_of(each.noted, -zeros[each.host]) for each in measured]


def _speed(session: RankSession, options: BenchOptions, samples: Rotation, seconds: float) -> Speed:
    spec, layout = session.spec, session.layout
    per_step = [step_flops(spec, layout, inputs.plan) for inputs in samples.steps]
    timed = [
        per_step[step % len(per_step)]
        for step in range(options.warmup, options.warmup + options.steps)
    ]
    tflop = {name: sum(each[name] for each in timed) / len(timed) / 1e12 for name in timed[0]}
    tokens = spec.batch.global_ * spec.batch.seq
    tflops = sum(tflop.values()) / seconds / layout.world_size
    peak = _peak(session, options.calibration)
    return Speed(
        tokens=tokens,
        tokens_per_s=tokens / seconds,
        tokens_per_s_per_rank=tokens / seconds / layout.world_size,
        tflop=tflop,
        tflops_per_rank=tflops,
        peak_tflops=peak,
        mfu=None if peak is None else tflops / peak,
    )


def _peak(session: RankSession, calibration: Calibration) -> float | None:
    """Return the peak in the precision of the run, if the calibration is one of this device."""
    if device_name(session.device) != calibration.device:
        return None
    factors = {"bf16": 1.0, "fp32": calibration.fp32_speed, "fp64": calibration.fp64_speed}
    return calibration.peak * factors[session.spec.train.precision]


def _rank_results(
    session: RankSession, measured: Sequence[_Measured], by_rank: Sequence[Sequence[RankStep]]
) -> list[RankResult]:
    shares, bubbles = shares_of(session.layout, by_rank), bubbles_of(by_rank)
    results = []
    for rank, own in enumerate(measured):
        allocated, reserved = own.allocated or (None, None)
        results.append(
            RankResult(
                rank=rank,
                modules=tuple(module.name for module in session.layout.modules_of(rank)),
                shares=shares[rank],
                bubble=bubbles[rank],
                memory=Memory(
                    allocated=allocated,
                    reserved=reserved,
                    resident=own.resident,
                    estimated=None,
                ),
            )
        )
    return results
