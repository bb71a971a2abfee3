"""The training loop: take samples, run a step, update or skip, evaluate, save, tell listeners.

Decides: when a step is skipped, when to evaluate and save, and that a signal seen by one rank ends
the run on all of them after the same step.
Relies on: `session` for steps, `data.order` for samples, `checkpoint` for saving.
Leaves: showing and storing events to listeners.
"""

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from mimo_launch.optimizer.gradients import StepTotals
from mimo_launch.optimizer.lr import learning_rate
from mimo_launch.plan.identity import plan_hash
from mimo_launch.runtime.whereabouts import Phase
from mimo_launch.spec.model import Spec
from mimo_launch.train.data.dataset import build_dataset
from mimo_launch.train.data.order import GlobalOrder
from mimo_launch.train.evaluate import evaluate
from mimo_launch.train.events import (
    Event,
    Listener,
    RunFinished,
    RunStarted,
    RunStopped,
    StepFinished,
)
from mimo_launch.train.loader import step_inputs
from mimo_launch.train.profile import Profile
from mimo_launch.train.session import RankSession
from mimo_launch.train.state import RunState

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Saver(Protocol):
    """Keeps checkpoints; see `checkpoint.saver`."""

    def save(self, state: RunState) -> None:
        """Save weights, optimizer and `state`. Ranks: collective over the world."""

    def poll(self) -> list[Event]:
        """Return what became of earlier saves since the last call, on rank 0."""

    def finish(self) -> str | None:
        """Wait for the last save; return where it is, on rank 0, if it succeeded."""


@dataclass(frozen=True, slots=True)
class Hooks:
    """What a run needs besides its session: all optional.

    `stop` returns the number of a signal that asks this rank to stop, or 0.
    """

    saver: Saver | None = None
    stop: Callable[[], int] | None = None
    profile: Profile | None = None


def train(
    session: RankSession, emit: Listener, hooks: Hooks | None = None, state: RunState | None = None
) -> int:
    """Run the steps of the spec that `state` has not done; return the signal that ended it, or 0.

    `emit` is called on every rank with the same events; those of the saver only on rank 0. `state`
    is advanced in place.

    Ranks: collective over the world.
    """
    spec, hooks, state = session.spec, hooks or Hooks(), state or RunState()
    dataset = build_dataset(spec)
    order = GlobalOrder(dataset.num_samples("train"), spec.batch.global_, spec.train.seed)
    emit(
        RunStarted(
            name=spec.name,
            plan=plan_hash(spec),
            steps=spec.train.steps,
            world_size=session.world_size,
            log_every=spec.train.log_every,
            modules=tuple(m.name for m in session.layout.modules),
            first_step=state.step,
        )
    )
    begin, stopped = time.perf_counter(), 0
    while state.step < spec.train.steps and not stopped:
        session.where.enter(Phase.READING, state.step + 1)
        started = time.perf_counter()
        inputs = step_inputs(dataset, "train", order.take(state.samples), state.step)
        if hooks.profile is not None:
            hooks.profile.begin(state.step)
        totals = session.gradients(inputs, _flags(hooks))
        if hooks.profile is not None:
            hooks.profile.finish(state.step)
        # Every rank has the same totals, so all of them skip the same steps: moments, decay and
        # step count of a skipped step stay as they were.
        skip = not totals.finite or inputs.plan.num_labels == 0
        if not skip:
            session.update(state.step, totals)
        tokens = sum(sample.num_tokens for sample in inputs.plan.samples)
        seconds = time.perf_counter() - started
        emit(_finished(spec, state.step, totals, tokens=tokens, seconds=seconds, skipped=skip))
        state.step += 1
        state.samples += spec.batch.global_
        state.skipped += skip
        stopped = _stop_signal(totals)
        if spec.eval is not None and not stopped and _is_due(spec, state.step, spec.eval.every):
            session.where.enter(Phase.EVALUATING)
            emit(evaluate(session, dataset, spec.eval.samples, state.step))
        _save(session, emit, hooks.saver, state, stopped=stopped)
    _finish(session, emit, hooks.saver, state, stopped=stopped, begin=begin)
    return stopped


def _flags(hooks: Hooks) -> tuple[int, ...]:
    """Return, per stop signal, whether this rank has seen it."""
    seen = hooks.stop() if hooks.stop is not None else 0
    return tuple(int(seen == number) for number in STOP_SIGNALS)


def _stop_signal(totals: StepTotals) -> int:
    """Return the signal that any rank has seen, or 0."""
    flags = zip(STOP_SIGNALS, totals.flags, strict=True)
    return max((int(number) for number, count in flags if count), default=0)


def _is_due(spec: Spec, step: int, every: int | None) -> bool:
    """Return whether something is due after `step` steps; always after the last."""
    return step == spec.train.steps or (every is not None and step % every == 0)


def _save(
    session: RankSession, emit: Listener, saver: Saver | None, state: RunState, *, stopped: int
) -> None:
    if saver is None or session.spec.checkpoint is None:
        return
    if stopped or _is_due(session.spec, state.step, session.spec.checkpoint.every):
        session.where.enter(Phase.SAVING)
        saver.save(state)
    for event in saver.poll():
        emit(event)


def _finish(
    session: RankSession,
    emit: Listener,
    saver: Saver | None,
    state: RunState,
    *,
    stopped: int,
    begin: float,
) -> None:
    """Wait for the last save and say how the run ended."""
    saved = None
    if saver is not None:
        session.where.enter(Phase.SAVING)
        saved = saver.finish()
        for event in saver.poll():
            emit(event)
    if stopped:
        emit(RunStopped(step=state.step, signal=stopped, checkpoint=saved))
    else:
        seconds = time.perf_counter() - begin
        emit(RunFinished(steps=session.spec.train.steps, seconds=seconds, skipped=state.skipped))


def _finished(
    spec: Spec, step: int, totals: StepTotals, *, tokens: int, seconds: float, skipped: bool
) -> StepFinished:
    schedule, steps = spec.optimizer.schedule, spec.train.steps

    def rate(peak: float | None, warmup: int | None) -> float:
        return learning_rate(
            spec.optimizer.lr if peak is None else peak,
            schedule,
            schedule.warmup if warmup is None else warmup,
            step,
            steps,
        )

    return StepFinished(
        step=step + 1,
        loss=totals.loss,
        grad_norm=totals.norm,
        grad_norms=totals.norms,
        lr=rate(None, None),
        lrs={
            name: rate(module.optimizer.lr, module.optimizer.warmup)
            for name, module in spec.modules.items()
            if module.frozen is not True
        },
        tokens=tokens,
        tokens_per_s=tokens / seconds,
        skipped=skipped,
    )
