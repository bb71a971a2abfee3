"""What the ranks of a job are there for, once each has its session: to train, or to be measured.

Decides: what a run of each kind keeps and does.
Relies on: `train`, imported where it is used: a task is made in a launcher that needs no torch.
Leaves: connecting, telling of errors and leaving to `worker`.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from mimo_launch.spec.model import Spec
    from mimo_launch.train.bench.options import BenchOptions
    from mimo_launch.train.events import Listener
    from mimo_launch.train.listeners.guard import Closable
    from mimo_launch.train.session import RankSession

BENCH = "bench.json"


class RankTask(Protocol):
    """Travels with a job to its workers, so it must pickle."""

    def records(self, spec: "Spec", run_dir: Path, emit: "Listener") -> "list[Closable]":
        """Return what rank 0 keeps of the events in the run folder."""

    def run(
        self, session: "RankSession", run_dir: Path, emit: "Listener", stop: Callable[[], int]
    ) -> int:
        """Do it, as one rank; return the signal that ended it, or 0.

        `stop` returns a signal after which to stop, or 0. Ranks: collective over the world.
        """


@dataclass(frozen=True, slots=True)
class Training:
    """Run the steps of the spec, with metrics and checkpoints.

    `profile_steps` steps are measured, their timelines written to `profile/` of the run folder.
    """

    profile_steps: int = 0

    def records(self, spec: "Spec", run_dir: Path, emit: "Listener") -> "list[Closable]":
        """Open metrics and what `log` asks for."""
        from mimo_launch.train.listeners.build import listeners_of
        from mimo_launch.train.metrics import MetricsFile

        stops = spec.train.on_write_error == "stop"
        metrics = MetricsFile(run_dir / "metrics.jsonl", emit, stops_on_error=stops)
        return [metrics, *listeners_of(spec, run_dir, emit)]

    def run(
        self, session: "RankSession", run_dir: Path, emit: "Listener", stop: Callable[[], int]
    ) -> int:
        """Train, from the newest checkpoint if there is one. Raises: what `train` raises."""
        from mimo_launch.train.loop import Hooks, train
        from mimo_launch.train.profile import Profile
        from mimo_launch.train.start import start_run

        steps = self.profile_steps
        profile = Profile(session, run_dir / "profile", steps) if steps else None
        state, saver = start_run(session, run_dir, emit)
        return train(session, emit, Hooks(saver=saver, stop=stop, profile=profile), state)


@dataclass(frozen=True, slots=True)
class Benching:
    """Time steps of the spec; rank 0 writes `bench.json` and tells what it holds."""

    options: "BenchOptions"

    def records(self, spec: "Spec", run_dir: Path, emit: "Listener") -> "list[Closable]":
        """Keep nothing before the end."""
        return []

    def run(
        self, session: "RankSession", run_dir: Path, emit: "Listener", stop: Callable[[], int]
    ) -> int:
        """Measure. Raises: what `train` raises; OSError if the result cannot be written."""
        from mimo_launch.train.bench.measure import bench
        from mimo_launch.train.events import BenchFinished

        result = bench(session, self.options, emit, stop)
        if isinstance(result, int):
            return result
        record = result.record()
        (run_dir / BENCH).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        emit(BenchFinished(record=record))
        return 0


@dataclass(frozen=True, slots=True)
class Calibrating(Benching):
    """Measure the constants of `plan`; rank 0 writes them to `out` and tells them."""

    out: Path

    def run(
        self, session: "RankSession", run_dir: Path, emit: "Listener", stop: Callable[[], int]
    ) -> int:
        """Measure. Raises: what `train` raises; OSError if the file cannot be written."""
        from mimo_launch.plan.calibration import constants
        from mimo_launch.train.bench.calibrate import calibrate
        from mimo_launch.train.events import CalibrationFinished

        result = calibrate(session, self.options, emit, stop)
        if isinstance(result, int):
            return result
        made, measured = result
        if session.rank == 0:
            made.dump(self.out)
            values = {each.name: getattr(made, each.name) for each in constants()}
            emit(CalibrationFinished(file=str(self.out), constants=values, measured=measured))
        return 0
