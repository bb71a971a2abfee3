"""Runs one step: read, compute, update or skip, and emit its metrics.

Decides: which metrics a step has, and when they are read.
Relies on: `prefetch` for samples, `rank_session` for computing, `non_finite` for judging.
Leaves: choosing samples, evaluating and saving to `loop`; measuring to `bench.profiling`.

On CUDA the host is ahead of the device: it starts the next step before it reads the metrics of the
current one, so that the device always has work. The update does not need the metrics, and a bad
step updates nothing. Evaluations, saves and the end of the run first read the metrics of all steps.
"""

from collections import deque
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Protocol

import torch

from mimo_launch.comm.async_copies import Moment
from mimo_launch.comm.world import device_name, peak_memory
from mimo_launch.data.order.record_order import Sample, SampleOrder
from mimo_launch.data.random_draws import Split
from mimo_launch.estimate.workload import peak_tflops, rate_of, step_flops
from mimo_launch.kinds.registry import kind_of
from mimo_launch.layout.step_data import StepData
from mimo_launch.layout.step_views import Imbalance
from mimo_launch.optimizer.module_optimizers import rate_at
from mimo_launch.optimizer.step_metrics import PendingMetrics, StepMetrics
from mimo_launch.runtime.progress import EndOfRun, Phase, RunState
from mimo_launch.spec.spec import UserData
from mimo_launch.train.events import Listener, Reading, StepFinished, Usage
from mimo_launch.train.loader import ReadStep
from mimo_launch.train.non_finite import NonFiniteWatch, bad_weights, find_origin
from mimo_launch.train.rank_session import RankSession


def steps_late(device: torch.device) -> int:
    """Return the number of steps after which the metrics of a step are read."""
    return 1 if device.type == "cuda" else 0


class StepSource(Protocol):
    """Reads the steps of a run; see `prefetch.StepReader`."""

    def read(self, split: Split, ids: tuple[Sample, ...], step: int) -> ReadStep:
        """Return the samples `ids` of a step, which is counted from 0."""

    def read_ahead(self, ids: tuple[Sample, ...], step: int) -> None:
        """Start to read the next step of training."""


class StepWatch(Protocol):
    """Measures some of the steps; see `bench.profiling.Profiler`."""

    def begin(self, step: int) -> None:
        """Start to measure if this step, counted from 0, is wanted."""

    def finish(self, step: int) -> None:
        """Write the measurements of the step."""


@dataclass(frozen=True, slots=True)
class _Started:
    """A started step with metrics that have not been read.

    It begins at the end of the previous step, if the host did not wait for that step.
    """

    data: StepData
    left_out: int
    imbalance: dict[str, Imbalance]
    reading: Reading | None
    peak_memory: dict[str, int]
    from_cache: frozenset[str]
    begin: Moment
    end: Moment
    metrics: PendingMetrics


class StepRunner:
    """Runs steps one after another, and advances the state of the run."""

    def __init__(
        self,
        session: RankSession,
        reader: StepSource,
        order: SampleOrder,
        state: RunState,
        emit: Listener,
        profiler: StepWatch | None = None,
        *,
        last: int | None = None,
    ) -> None:
        """Run steps of `order` from `state` on.

        Nothing is read ahead after the `last` step, by default that of the spec.
        """
        self.state, self._last = state, session.spec.train.steps if last is None else last
        self._session, self._reader, self._order, self._emit = session, reader, order, emit
        self._profiler = profiler
        self._watch = NonFiniteWatch(session.spec.train.max_skipped, partial(bad_weights, session))
        self._late = steps_late(session.device)
        self._started: deque[_Started] = deque()
        self._reads = isinstance(session.spec.data, UserData)
        self._peak = peak_tflops(device_name(session.device), session.spec.train.numbers)

    def start(self, flags: tuple[int, ...]) -> None:
        """Start the next step; its metrics return `flags` summed over all ranks.

        Ranks: collective over the world. Raises, on all ranks: TooManyBadSamples, after `settle`
        has read the steps before, which may raise first.
        """
        session, state, order = self._session, self.state, self._order
        begin = self._started[-1].end if self._started else Moment(session.device)
        ids = order.take(state.samples)
        try:
            inputs = self._reader.read("train", ids, state.step)
        except EndOfRun:
            self.settle()
            raise
        after = order.after(state.samples)
        if state.step + 1 < self._last:
            self._reader.read_ahead(order.take(after), state.step + 1)
        if self._profiler is not None:
            self._profiler.begin(state.step)
        metrics = session.step(inputs, flags)
        if self._profiler is not None:
            self._profiler.finish(state.step)
        self._started.append(
            _Started(
                data=inputs.data,
                left_out=len(inputs.left_out),
                imbalance=inputs.imbalance,
                # Generated samples are not read.
                reading=inputs.reading if self._reads else None,
                peak_memory=inputs.peak_memory,
                from_cache=inputs.from_cache,
                begin=begin,
                end=Moment(session.device),
                metrics=metrics,
            )
        )
        state.step += 1
        state.samples = after

    def settle(self, *, all_steps: bool = True) -> list[StepMetrics]:
        """Read the metrics of started steps, judge them and emit events.

        Without `all_steps`, the newest steps may stay unread, so that the device has work.

        Ranks: collective over the world. Raises, on all ranks: NonFiniteRun.
        """
        read = []
        while len(self._started) > (0 if all_steps else self._late):
            read.append(self._settle_one(self._started.popleft()))
        return read

    def finish(self) -> None:
        """Judge the whole run. Raises: NonFiniteRun or NoUpdate if no step changed a weight."""
        self._watch.finish(self.state.step, self.state.skipped)

    def _settle_one(self, step: _Started) -> StepMetrics:
        self._session.progress.enter(Phase.REDUCING)
        metrics, own = step.metrics.read(), step.metrics.own
        # Every rank has the same totals, so all ranks have skipped the same steps, which did not
        # change weights, moments or step counts.
        skipped = not metrics.finite or own is None
        self.state.skipped += skipped
        spec, origin = self._session.spec, None
        if not metrics.finite and own is not None:
            origin = find_origin(self._session.layout, step.data, own)
            self._emit(origin)
        number = step.data.step
        tokens = step.data.num_tokens
        seconds = step.end.since(step.begin)
        has_experts = kind_of(spec.language.model).moe is not None
        self._emit(
            StepFinished(
                step=number + 1,
                loss=metrics.loss,
                losses=metrics.losses if len(metrics.losses) > 1 else None,
                source_losses=metrics.sources or None,
                grad_norm=metrics.norm,
                grad_norms=metrics.norms,
                lr=rate_at(spec, number),
                lrs={
                    name: rate_at(spec, number, name)
                    for name, module in spec.modules.items()
                    if module.frozen is not True
                },
                tokens=tokens,
                tokens_per_s=tokens / seconds,
                skipped=skipped,
                bad_samples=step.left_out,
                imbalance=step.imbalance,
                reading=step.reading,
                zero_grads=metrics.zeros,
                cached=self._cached(step),
                aux_loss=metrics.aux_loss if has_experts else None,
                usage=self._usage(step, seconds) if self._session.rank == 0 else None,
            )
        )
        if origin is not None:
            self._watch.bad(origin)
        elif not skipped:
            self._watch.good()
        return metrics

    def _cached(self, step: _Started) -> dict[str, int] | None:
        """Return the number of images with kept rows that were read, by encoder."""
        found = {module.name: 0 for module in self._session.layout.modules if module.keeps_rows}
        for name in step.from_cache:
            found[name] = step.data.num_images(name)
        return found or None

    def _usage(self, step: _Started, seconds: float) -> Usage:
        """Return the usage of a step, from the work of its samples and what this rank knows."""
        session, layout = self._session, self._session.layout
        flops = dict.fromkeys((module.name for module in layout.modules), 0.0)
        if step.metrics.own is not None:  # Otherwise there was nothing to learn; no program ran.
            flops = step_flops(session.spec, layout, step.data)
            flops |= dict.fromkeys(step.from_cache, 0.0)
        here = dict.fromkeys(session.modules, peak_memory(session.device))
        told = step.peak_memory
        return Usage(
            time=datetime.now(UTC).isoformat(timespec="milliseconds"),
            step_s=seconds,
            peak_memory={name: max(told.get(name, 0), here.get(name, 0)) for name in flops},
            **asdict(rate_of(flops, seconds, layout.world_size, self._peak)),
        )
