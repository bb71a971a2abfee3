"""The tasks of the ranks of a job, once each has its session: to train or to measure.

Decides: what a run of each kind does and records; that a resumed run measures only the requested
steps that are left.
Relies on: `train`, imported where it is used: the launcher that makes a task needs no torch.
Leaves: connecting, reporting errors and exiting to `worker`; parsing options to `cli`.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from mimo_launch.plan.plan import Plan

if TYPE_CHECKING:
    from mimo_launch.bench.result import BenchOptions
    from mimo_launch.comm.world import DeviceKind
    from mimo_launch.spec.spec import Spec
    from mimo_launch.train.events import Listener
    from mimo_launch.train.listeners import Closable
    from mimo_launch.train.plan_watch import Forecast
    from mimo_launch.train.rank_session import RankSession

BENCH = "bench.json"


class NotWritten(Exception):
    """A result cannot be written; the message says where, and why."""

    restartable = False


class RankTask(ABC):
    """The work of a rank. Workers get it with the job, so it must pickle.

    A `resumable` task continues from its newest checkpoint; others start again. With
    `quick_weights` it needs only the distributions of the initial weights; others load weights, and
    draw the rest.
    """

    resumable: ClassVar[bool] = False
    quick_weights: ClassVar[bool] = False

    @property
    def in_common(self) -> str:
        """The options that must be equal on all hosts, or their ranks would wait forever."""
        return ""

    def records(self, spec: "Spec", run_dir: Path, emit: "Listener") -> "list[Closable]":
        """Return the listeners with which rank 0 records events in the run folder."""
        return []

    def with_forecast(self, forecast: "Forecast") -> "RankTask":
        """Return the task that compares what happens with a plan, if it is one that does."""
        return self

    @abstractmethod
    def run(
        self, session: "RankSession", run_dir: Path, emit: "Listener", stop: Callable[[], int]
    ) -> int:
        """Do the task as one rank; return the signal that ended it, or 0.

        `stop` returns a signal after which to stop, or 0. Ranks: collective over the world.
        """


@dataclass(frozen=True, slots=True)
class Training(RankTask):
    """Run the steps of the spec, with metrics and checkpoints.

    The steps in `profiled`, counted from 0, are measured. The folder `profile/` of the run gets
    timelines of all ranks and traces of the ranks in `traced`; with `memory`, also the allocations
    of the traced ranks. Rank 0 has the `forecast` of the plan.
    """

    resumable: ClassVar[bool] = True
    profiled: range = range(0)
    traced: frozenset[int] = frozenset()
    memory: bool = False
    forecast: "Forecast | None" = None

    def with_forecast(self, forecast: "Forecast") -> "Training":
        """Return the task with the forecast of its plan."""
        return replace(self, forecast=forecast)

    @property
    def in_common(self) -> str:
        """The measured steps: they begin with a barrier and end with a gather."""
        return repr(self.profiled)

    def records(self, spec: "Spec", run_dir: Path, emit: "Listener") -> "list[Closable]":
        """Open the metrics file and the records that `log` asks for."""
        from mimo_launch.train.listeners import listeners_of
        from mimo_launch.train.metrics_file import MetricsFile

        stops = spec.train.on_write_error == "stop"
        metrics = MetricsFile(run_dir / "metrics.jsonl", emit, stops_on_error=stops)
        return [metrics, *listeners_of(spec, run_dir, emit)]

    def run(
        self, session: "RankSession", run_dir: Path, emit: "Listener", stop: Callable[[], int]
    ) -> int:
        """Train, from the newest checkpoint if there is one. Raises: what `train` raises."""
        from mimo_launch.bench.profiling import Profiler, Traced
        from mimo_launch.checkpoint.loading import start_run
        from mimo_launch.data.build import build_dataset
        from mimo_launch.train.loop import Hooks, train

        emit = self._watching(session, emit)
        profiler, dataset = None, build_dataset(session.spec)
        state, saver = start_run(session, run_dir, emit, dataset)
        if self.profiled:
            traced = Traced(ranks=self.traced, memory=self.memory)
            profiler = Profiler(session, run_dir / "profile", self.profiled, traced, emit)
            profiler.tell_missing(state.step)
        hooks = Hooks(saver=saver, stop=stop, profiler=profiler, dataset=dataset)
        return train(session, emit, hooks, state)

    def _watching(self, session: "RankSession", emit: "Listener") -> "Listener":
        """Return a listener that compares the run with its plan, on the GPU of rank 0."""
        from mimo_launch.comm.world import device_name, memory_of
        from mimo_launch.train.plan_watch import Machine, PlanWatch
        from mimo_launch.train.step import steps_late

        device = session.device
        if self.forecast is None or session.rank or device.type != "cuda":
            return emit
        machine = Machine(
            gpu=device_name(device), memory=memory_of(device), steps_late=steps_late(device)
        )
        return PlanWatch(self.forecast, machine, emit)


@dataclass(frozen=True, slots=True)
class Benching(RankTask):
    """Time steps of the spec; rank 0 writes `bench.json` and emits its contents."""

    quick_weights: ClassVar[bool] = True
    options: "BenchOptions"

    @property
    def in_common(self) -> str:
        """The steps, and whether they are read: all ranks meet in each of them."""
        given = self.options
        return repr((given.warmup, given.steps, given.with_loader))

    def run(
        self, session: "RankSession", run_dir: Path, emit: "Listener", stop: Callable[[], int]
    ) -> int:
        """Measure. Raises: what `train` raises; NotWritten."""
        from mimo_launch.bench.measure_steps import bench
        from mimo_launch.runtime.progress import Phase
        from mimo_launch.train.events import BenchFinished

        result = bench(session, self.options, emit, stop)
        if isinstance(result, int):
            return result
        session.progress.enter(Phase.WRITING)
        record, file = result.record(), run_dir / BENCH
        emit(BenchFinished(record=record))  # First: the result matters more than its file.
        try:
            file.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise _not_written(file, error) from error
        return 0


@dataclass(frozen=True, slots=True)
class Calibrating(Benching):
    """Measure the constants of `plan`; rank 0 writes them to `out` and emits them."""

    out: Path

    def run(
        self, session: "RankSession", run_dir: Path, emit: "Listener", stop: Callable[[], int]
    ) -> int:
        """Measure. Raises: what `train` raises; NotWritten."""
        from mimo_launch.bench.calibrate import calibrate
        from mimo_launch.estimate.device_constants import constants
        from mimo_launch.runtime.progress import Phase
        from mimo_launch.train.events import CalibrationFinished

        result = calibrate(session, self.options, emit, stop)
        if isinstance(result, int):
            return result
        if session.rank:
            return 0
        session.progress.enter(Phase.WRITING)
        told = CalibrationFinished(
            file=str(self.out),
            constants={each.name: getattr(result.constants, each.name) for each in constants()},
            measured=result.measured,
            step_s=result.step_seconds,
            estimated_step_s=result.estimated_seconds,
        )
        try:
            result.constants.dump(self.out)
        except OSError as error:
            emit(replace(told, file=None))
            raise _not_written(self.out, error) from error
        emit(told)
        return 0


@dataclass(frozen=True, slots=True)
class Sampling(RankTask):
    """Load the weights of a checkpoint, and write the model's outputs for held-out samples."""

    checkpoint: Path
    folder: Path
    samples: int
    steps: int
    tokens: int

    def run(
        self, session: "RankSession", run_dir: Path, emit: "Listener", stop: Callable[[], int]
    ) -> int:
        """Load and write. Raises: CheckpointError, WeightsDoNotFit; NotWritten."""
        from mimo_launch.checkpoint.loading import load_all_weights
        from mimo_launch.train.samples import write_samples

        load_all_weights(session, self.checkpoint, emit)
        try:
            return write_samples(
                session,
                self.folder,
                samples=self.samples,
                steps=self.steps,
                tokens=self.tokens,
                emit=emit,
                stop=stop,
            )
        except OSError as error:
            raise _not_written(self.folder, error) from error


def _not_written(file: Path, error: OSError) -> NotWritten:
    return NotWritten(f"{file} cannot be written: {(error.strerror or str(error)).lower()}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A run to start: plan, run folder, task and device; `shown` ranks print to the console."""

    plan: Plan
    run: Path
    task: RankTask
    device: "DeviceKind" = "cpu"
    shown: frozenset[int] = field(default_factory=frozenset)
