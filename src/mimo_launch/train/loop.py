"""Runs the training loop: take samples, run a step, evaluate, save, emit events.

Decides: when to evaluate and save; that a signal to one rank ends the run on all ranks after the
same step.
Relies on: `step` for steps, `data.order.sample_order` for samples, `checkpoint` for saving.
Leaves: showing and storing events to listeners.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from mimo_launch.comm.async_copies import MaxOverRanks
from mimo_launch.comm.world import peak_memory
from mimo_launch.data.build import build_dataset
from mimo_launch.data.dataset import Dataset
from mimo_launch.data.order.sample_order import global_order
from mimo_launch.optimizer.step_metrics import StepMetrics
from mimo_launch.runtime.progress import STOP_SIGNALS, EndOfRun, Phase, RunState
from mimo_launch.spec.sections import EvalSpec
from mimo_launch.spec.spec import Spec
from mimo_launch.train.best_evaluation import (
    ended_early,
    has_ended,
    is_due,
    judged,
    owes_evaluation,
    waited_enough,
)
from mimo_launch.train.evaluation import EvaluationStopped, evaluate
from mimo_launch.train.events import (
    CheckpointSaved,
    Event,
    Listener,
    RunFinished,
    RunStarted,
    RunStopped,
)
from mimo_launch.train.non_finite import NonFiniteRun
from mimo_launch.train.prefetch import StepReader
from mimo_launch.train.rank_session import RankSession
from mimo_launch.train.step import StepRunner, StepWatch


class Saver(Protocol):
    """Keeps checkpoints; see `checkpoint.saver`."""

    @property
    def error(self) -> str | None:
        """Return why the newest save failed, if it did."""

    def save(self, state: RunState) -> None:
        """Save weights, optimizer and `state`. Ranks: collective over the world."""

    def poll(self) -> list[Event]:
        """Return the outcomes of saves since the last call."""

    def newest_finite(self) -> str | None:
        """Return the newest checkpoint with only finite weights. Ranks: collective."""

    def finish(self) -> None:
        """Wait for the last save."""


class CheckpointNotWritten(EndOfRun):
    """A checkpoint could not be written, and the run must not continue or end without it."""

    restartable = True


@dataclass(frozen=True, slots=True)
class Hooks:
    """Optional parts of a run besides its session.

    `stop` returns the number of a signal that this rank got, or 0. `dataset` is the spec's data
    set, if it is already open.
    """

    saver: Saver | None = None
    stop: Callable[[], int] | None = None
    profiler: StepWatch | None = None
    dataset: Dataset | None = None


def train(
    session: RankSession, emit: Listener, hooks: Hooks | None = None, state: RunState | None = None
) -> int:
    """Run the remaining steps of the spec after `state`; return the signal that ended it, or 0.

    `emit` is called on every rank with the same events. `state` is advanced in place.

    Ranks: collective over the world. Raises, on all ranks: CheckpointNotWritten, after the last
    step or, with `train.on_write_error`, immediately; NonFiniteRun; NoUpdate; TooManyBadSamples.
    """
    spec, hooks, state = session.spec, hooks or Hooks(), state or RunState()
    dataset = hooks.dataset or build_dataset(spec)
    order = global_order(spec, dataset, state.order)
    emit(
        RunStarted(
            name=spec.name,
            plan=session.plan.identity,
            steps=spec.train.steps,
            world_size=session.world_size,
            log_every=spec.train.log_every,
            modules=tuple(m.name for m in session.layout.modules),
            first_step=state.step,
        )
    )
    begin = time.perf_counter()
    with StepReader(session, dataset, state, emit, stop=hooks.stop) as reader:
        steps = StepRunner(session, reader, order, state, emit, hooks.profiler)
        try:
            stop_signal_seen = _steps(session, steps, reader, emit, hooks)
        except EndOfRun as error:
            # A running save must not be lost: all ranks wait for it.
            if hooks.saver is not None:
                hooks.saver.finish()
                _tell(hooks.saver, emit)
                if isinstance(error, NonFiniteRun) and error.in_weights:
                    raise error.with_checkpoint(hooks.saver.newest_finite()) from None
            raise
        saved = None if hooks.saver is None else _finish_saves(session, emit, hooks.saver)
    (peak,) = MaxOverRanks((peak_memory(session.device),)).wait()
    if stop_signal_seen:
        emit(
            RunStopped(step=state.step, signal=stop_signal_seen, checkpoint=saved, peak_memory=peak)
        )
    else:
        seconds = time.perf_counter() - begin
        keeps = spec.saving is not None and spec.saving.keep_best
        ends = spec.eval is not None and spec.eval.stop_after is not None
        emit(
            RunFinished(
                steps=state.step,
                seconds=seconds,
                skipped=state.skipped,
                saved=hooks.saver is not None,
                peak_memory=peak,
                best=state.best if keeps or ends else None,
                ended_early=ended_early(spec, state.step, state.best),
            )
        )
    return stop_signal_seen


def _steps(
    session: RankSession,
    steps: StepRunner,
    reader: StepReader,
    emit: Listener,
    hooks: Hooks,
) -> int:
    """Run steps until the last one or a signal, and return the signal or 0; save and evaluate."""
    spec, state, save = session.spec, steps.state, False
    stop_signal_seen = _evaluate_first(session, reader, state, emit, hooks.saver)
    saving = None if hooks.saver is None else spec.saving
    while not (has_ended(spec, state.step, state.best) or stop_signal_seen):
        steps.start(step_flags(hooks, spec))
        evaluates = spec.eval is not None and is_due(spec, state.step, spec.eval.every)
        save = save or (
            saving is not None and is_due(spec, state.step, saving.every, saving.keep_every)
        )
        last = state.step == spec.train.steps
        metrics = steps.settle(all_steps=save or evaluates or last)
        stop_signal_seen = max(map(stop_signal, metrics), default=0)
        if stop_signal_seen:
            metrics += steps.settle()
        if last:
            steps.finish()  # Before the last save: a run that failed must not look finished.
        if hooks.saver is not None and any(map(write_failed, metrics)):
            _finish_saves(session, emit, hooks.saver)
        if spec.eval is not None and evaluates and not stop_signal_seen:
            stop_signal_seen = _evaluate(session, reader, spec.eval, state, emit)
            if waited_enough(spec, state.best) and not (last or stop_signal_seen):
                last, save = True, True
                steps.finish()
        if hooks.saver is not None:
            # While numbers are bad, the interval saves nothing: a run that fails because of them
            # resumes from before them. The best evaluation, the last step and a stop signal do.
            is_best = evaluates and state.best is not None and state.best.step == state.step
            keeps = saving is not None and saving.keep_best and is_best
            if stop_signal_seen or keeps or (save and (metrics[-1].finite or last)):
                session.progress.enter(Phase.SAVING)
                hooks.saver.save(state)
                save = False
            if not stop_signal_seen:  # A stopping run reports its last save at its end.
                _tell(hooks.saver, emit)
    return stop_signal_seen


def _evaluate_first(
    session: RankSession, reader: StepReader, state: RunState, emit: Listener, saver: Saver | None
) -> int:
    """Evaluate before the first step if the spec asks for it or an earlier run was stopped in it.

    Return as `_evaluate`.
    """
    spec, signal = session.spec, 0
    if spec.eval is not None and not state.step and spec.eval.at_start:
        return _evaluate(session, reader, spec.eval, state, emit)
    if spec.eval is not None and owes_evaluation(spec, state.step, state.evaluated):
        signal = _evaluate(session, reader, spec.eval, state, emit)
        if saver is not None and not signal:  # No later run owes it again.
            session.progress.enter(Phase.SAVING)
            saver.save(state)
    return signal


def _evaluate(
    session: RankSession, reader: StepReader, asked: EvalSpec, state: RunState, emit: Listener
) -> int:
    """Evaluate every set of held-out samples; return the signal that ended it before, or 0.

    Ranks: collective over the world.
    """
    session.progress.enter(Phase.EVALUATING)
    found = []
    try:
        for name, there in reader.dataset.heldout_sets().items():
            found.append(evaluate(session, reader, asked.samples, state.step, name or None, there))
            emit(found[-1])
    except EvaluationStopped as stopped:
        return stopped.signal
    if state.step:
        state.best = judged(asked, state.best, state.step, found)
    state.evaluated = state.step
    return 0


def step_flags(hooks: Hooks, spec: Spec) -> tuple[int, ...]:
    """Return 0 or 1 for each stop signal, and for a failed save that must end the run.

    All ranks act on the sum after the same step.
    """
    seen = hooks.stop() if hooks.stop is not None else 0
    broken = hooks.saver is not None and hooks.saver.error is not None
    stops = broken and spec.train.on_write_error == "stop"
    return (*(int(seen == number) for number in STOP_SIGNALS), int(stops))


def stop_signal(metrics: StepMetrics) -> int:
    """Return the signal that any rank has seen, or 0."""
    flags = zip(STOP_SIGNALS, metrics.flags[:-1], strict=True)
    return max((int(number) for number, count in flags if count), default=0)


def write_failed(metrics: StepMetrics) -> bool:
    """Return whether a save has failed on any rank and must end the run."""
    return bool(metrics.flags[-1])


def _finish_saves(session: RankSession, emit: Listener, saver: Saver) -> str | None:
    """Wait for the running save, and emit its outcome.

    Return the path of the newest checkpoint that was not reported before, or None. Raises:
    CheckpointNotWritten.
    """
    session.progress.enter(Phase.SAVING)
    saver.finish()
    events = _tell(saver, emit)
    if saver.error is not None:
        raise CheckpointNotWritten(f"the last checkpoint could not be written: {saver.error}")
    paths = [event.checkpoint for event in events if isinstance(event, CheckpointSaved)]
    return paths[-1] if paths else None


def _tell(saver: Saver, emit: Listener) -> list[Event]:
    """Emit the outcomes of saves, and return them."""
    events = saver.poll()
    for event in events:
        emit(event)
    return events
