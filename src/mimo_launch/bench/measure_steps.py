"""Times steps of a spec: the steps that `train` runs, on samples in memory or as they are read.

Decides: what is timed and when timing begins; how many different steps there are: their samples are
read once and used in turn, so that a bench never waits for storage or decoders, unless it measures
the loader, too; when an estimate of the plan can be compared with the measurement.
Relies on: `step` for steps, `comm.step_clock` for times, `train.prefetch` for samples; `estimate`
for FLOPs and estimates.
Leaves: where the time went to `time_shares`, the constants of `plan` to `calibrate`.
"""

import platform
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from typing import Protocol

import torch.distributed as dist

from mimo_launch.bench.result import (
    BenchOptions,
    BenchResult,
    Loading,
    Machine,
    Memory,
    RankResult,
    Speed,
    spread,
)
from mimo_launch.bench.time_shares import (
    Measured,
    RankStep,
    align,
    bubbles_of,
    shares_of,
    step_seconds,
)
from mimo_launch.comm.objects import gather_objects
from mimo_launch.comm.step_clock import Section
from mimo_launch.comm.world import (
    device_name,
    peak_allocated,
    peak_resident,
    reset_peak,
    used_of_device,
    versions,
)
from mimo_launch.data.build import build_dataset
from mimo_launch.data.order.record_order import Sample, SampleOrder
from mimo_launch.data.order.sample_order import global_order, steps_of
from mimo_launch.data.random_draws import Split
from mimo_launch.estimate.estimates import Estimator
from mimo_launch.estimate.rows import Estimates
from mimo_launch.estimate.workload import peak_tflops, rate_of, step_flops
from mimo_launch.layout.layout import Layout
from mimo_launch.layout.step_data import StepData
from mimo_launch.plan.plan import Plan
from mimo_launch.runtime.progress import Phase, Progress, RunState
from mimo_launch.spec.base import LANGUAGE
from mimo_launch.spec.spec import Spec
from mimo_launch.train.events import Listener, Reading
from mimo_launch.train.loader import ReadStep
from mimo_launch.train.loop import Hooks, step_flags, stop_signal
from mimo_launch.train.prefetch import StepReader
from mimo_launch.train.rank_session import RankSession
from mimo_launch.train.step import StepRunner, StepSource

# Steps differ in lengths and images. More steps would fill memory, and the warm-up would not cover
# all of them.
NUM_STEPS = 4


class Samples(StepSource, Protocol):
    """The samples of the steps of a bench."""

    def data_of(self, step: int) -> StepData:
        """Return the lengths and sizes of a step's samples."""

    def readings(self, steps: range) -> list[Reading]:
        """Return the reading of each of these steps; nothing if their samples are in memory."""


class Rotation:
    """Reads steps from memory, in place of a `StepReader`."""

    def __init__(self, reader: StepReader, order: SampleOrder, progress: Progress) -> None:
        """Read the first steps of a run; `progress` notes each step that is used.

        Ranks: collective over the world.
        """
        self._progress = progress
        first = enumerate(steps_of(order, NUM_STEPS))
        self._steps = [reader.read("train", ids, step) for step, ids in first]

    def read(self, split: Split, ids: tuple[Sample, ...], step: int) -> ReadStep:
        """Return the samples of one of the steps, under the number `step`."""
        self._progress.enter(Phase.READING, step + 1)
        # A training step begins without the views of an earlier pass.
        return replace(self._steps[step % NUM_STEPS], data=self.data_of(step), views=None)

    def data_of(self, step: int) -> StepData:
        """Return the lengths and sizes of a step's samples."""
        return replace(self._steps[step % NUM_STEPS].data, step=step)

    def read_ahead(self, ids: tuple[Sample, ...], step: int) -> None:
        """Do nothing: all steps are in memory."""

    def readings(self, steps: range) -> list[Reading]:
        """Return nothing: no step is read."""
        return []


class Loader:
    """Reads each step as training does, and keeps what it was and how long it took."""

    def __init__(self, reader: StepReader) -> None:
        self._reader = reader
        self._read: list[tuple[StepData, Reading]] = []

    def read(self, split: Split, ids: tuple[Sample, ...], step: int) -> ReadStep:
        """Return the samples `ids` of a step. Ranks: collective. Raises: TooManyBadSamples."""
        inputs = self._reader.read(split, ids, step)
        if inputs.reading is not None:
            self._read.append((inputs.data, inputs.reading))
        return inputs

    def data_of(self, step: int) -> StepData:
        """Return the lengths and sizes of a step's samples."""
        return self._read[step][0]

    def read_ahead(self, ids: tuple[Sample, ...], step: int) -> None:
        """Start to read the next step."""
        self._reader.read_ahead(ids, step)

    def readings(self, steps: range) -> list[Reading]:
        """Return the reading of each of these steps."""
        return [self._read[step][1] for step in steps]


def bench(
    session: RankSession, options: BenchOptions, emit: Listener, stop: Callable[[], int]
) -> int | BenchResult:
    """Run and time steps; return the result on rank 0, else 0, or the signal that ended it.

    `stop` returns a signal after which to stop, or 0. Ranks: collective over the world. Raises:
    what `train` raises.
    """
    found = measure(session, options, emit, stop)
    if isinstance(found, int):
        return found
    if session.rank != 0:
        return 0
    measured, samples = found
    spec, layout, constants = session.spec, session.layout, options.calibration
    by_rank = align(measured)
    times = step_seconds(by_rank)
    machine = Machine(
        device=device_name(session.device),
        device_kind=session.device.type,
        hosts=len({each.host for each in measured}),
        versions=versions(session.device),
    )
    as_run = constants if options.with_loader else constants.without_reading
    expected = Estimator.of(Plan.of(spec), as_run).estimates()
    known = machine.device == constants.rated_device
    peak = peak_tflops(machine.device, spec.train.numbers, constants)
    timed = [samples.data_of(options.warmup + number) for number in range(options.steps)]
    return BenchResult(
        command=options.command,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        name=spec.name,
        plan_hash=session.plan.identity,
        machine=machine,
        precision=spec.train.precision,
        warmup=options.warmup,
        steps=options.steps,
        skipped=measured[0].skipped,
        with_loader=options.with_loader,
        twin_of=options.twin_of,
        step_s=spread(times),
        step_times_s=tuple(times),
        estimated_step_s=expected.step_seconds if known else None,
        speed=speed_of(spec, layout, timed, spread(times).median, peak),
        ranks=tuple(rank_results(layout, measured, by_rank, expected, known=known)),
    )


def measure(
    session: RankSession, options: BenchOptions, emit: Listener, stop: Callable[[], int]
) -> int | tuple[list[Measured], Samples]:
    """Run and time steps; return the measurements of all ranks, or the signal that ended them.

    Ranks: collective over the world. Raises: what `train` raises.
    """
    state, dataset = RunState(), build_dataset(session.spec)
    order = global_order(session.spec, dataset)
    with ExitStack() as stack:
        reader = stack.enter_context(StepReader(session, dataset, state, emit, caches=False))
        samples: Samples = Loader(reader)
        if not options.with_loader:
            samples = Rotation(reader, order, session.progress)
            stack.close()  # Nothing else is read.
        last = options.warmup + options.steps
        runner = StepRunner(session, samples, order, state, emit, last=last)
        hooks = Hooks(stop=stop)
        if ended_by := _run(session, runner, hooks, options.warmup):
            return ended_by
        skipped = state.skipped
        reset_peak(session.device)
        dist.barrier()
        began = session.executor.clock.start()
        ended_by = _run(session, runner, hooks, options.steps)
        noted = session.executor.clock.stop()
        if ended_by:
            return ended_by
    session.progress.enter(Phase.GATHERING)
    measured: list[Measured] = gather_objects(
        Measured(
            host=platform.node(),
            began=began,
            noted=noted,
            allocated=peak_allocated(session.device),
            used=used_of_device(session.device),
            resident=peak_resident(),
            skipped=state.skipped - skipped,
            readings=samples.readings(range(options.warmup, last)),
        )
    )
    return measured, samples


def _run(session: RankSession, runner: StepRunner, hooks: Hooks, steps: int) -> int:
    """Run steps like the training loop, until the last or a signal; return the signal or 0."""
    for number in range(1, steps + 1):
        with session.executor.clock.span(Section.STEP):
            runner.start(step_flags(hooks, session.spec))
            metrics = runner.settle(all_steps=number == steps)
        if stopped := max(map(stop_signal, metrics), default=0):
            runner.settle()
            return stopped
    return 0


def speed_of(
    spec: Spec, layout: Layout, timed: Sequence[StepData], seconds: float, peak: float | None
) -> Speed:
    """Return the speed of a step that takes `seconds`, with the mean work of the timed steps.

    `peak` is the peak of the device in TFLOP/s, or None.
    """
    per_step = [step_flops(spec, layout, data) for data in timed]
    mean = {name: sum(each[name] for each in per_step) / len(timed) for name in per_step[0]}
    rate = rate_of(mean, seconds, layout.world_size, peak)
    tokens = spec.batch.global_ * spec.batch.seq
    per_rank = tokens / seconds / layout.world_size
    return Speed(
        tokens=tokens,
        tokens_per_s=tokens / seconds,
        tokens_per_s_per_rank=per_rank,
        language_tokens_per_s_per_rank=per_rank * sum(mean.values()) / mean[LANGUAGE],
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
    """Return each rank's measurements and `expected` values; times only for a `known` device."""
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
                loading=loading_of(own.readings, by_rank[rank]),
            )
        )
    return results


def loading_of(readings: Sequence[Reading], steps: Sequence[RankStep]) -> Loading | None:
    """Return how long the steps of a rank waited for their samples; None if none was read."""
    if not readings:
        return None
    waited = [reading.waited_s for reading in readings]
    return Loading(
        waited_s=spread(waited),
        read_s=spread([reading.read_s for reading in readings]),
        share=sum(waited) / (steps[-1].span[1] - steps[0].span[0]),
    )
