"""The training loop: take samples, run a step, update or skip, tell listeners.

Decides: when a step is skipped and when to evaluate.
Relies on: `session` for steps, `data.order` for samples.
Leaves: showing and storing events to listeners.
"""

import time

from mimo_launch.optimizer.gradients import StepTotals
from mimo_launch.optimizer.lr import learning_rate
from mimo_launch.plan.identity import plan_hash
from mimo_launch.spec.model import Spec
from mimo_launch.train.data.dataset import build_dataset
from mimo_launch.train.data.order import GlobalOrder
from mimo_launch.train.evaluate import evaluate
from mimo_launch.train.events import Listener, RunFinished, RunStarted, StepFinished
from mimo_launch.train.loader import step_inputs
from mimo_launch.train.profile import Profile
from mimo_launch.train.session import RankSession


def train(session: RankSession, emit: Listener, profile: Profile | None = None) -> None:
    """Run all steps of the spec; `emit` is called on every rank with the same events.

    `profile` measures some of the steps.

    Ranks: collective over the world.
    """
    spec = session.spec
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
        )
    )
    begin, skipped = time.perf_counter(), 0
    for step in range(spec.train.steps):
        started = time.perf_counter()
        inputs = step_inputs(dataset, "train", order.ids(step), step)
        if profile is not None:
            profile.begin(step)
        totals = session.gradients(inputs)
        if profile is not None:
            profile.finish(step)
        # Every rank has the same totals, so all of them skip the same steps: moments, decay and
        # step count of a skipped step stay as they were.
        skip = not totals.finite or inputs.plan.num_labels == 0
        if not skip:
            session.update(step, totals)
        skipped += skip
        tokens = sum(sample.num_tokens for sample in inputs.plan.samples)
        seconds = time.perf_counter() - started
        emit(_finished(spec, step, totals, tokens=tokens, seconds=seconds, skipped=skip))
        if _evaluates_after(spec, step) and spec.eval is not None:
            emit(evaluate(session, dataset, spec.eval.samples, step + 1))
    emit(RunFinished(steps=spec.train.steps, seconds=time.perf_counter() - begin, skipped=skipped))


def _evaluates_after(spec: Spec, step: int) -> bool:
    if spec.eval is None:
        return False
    last = step + 1 == spec.train.steps
    return last or (spec.eval.every is not None and (step + 1) % spec.eval.every == 0)


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
