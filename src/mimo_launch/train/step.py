"""One step of a run: read, compute, update or skip, and say what happened.

Decides: when a step is skipped, and what is told of it.
Relies on: `reading` for samples, `session` for computing, `numbers` for judging.
Leaves: which samples a step takes, evaluating and saving to `loop`.
"""

import time

from mimo_launch.optimizer.gradients import StepTotals
from mimo_launch.optimizer.lr import learning_rate
from mimo_launch.spec.model import Spec
from mimo_launch.train.events import Listener, StepFinished
from mimo_launch.train.loader import ReadInputs
from mimo_launch.train.numbers import NumberWatch, find_origin
from mimo_launch.train.profile import Profile
from mimo_launch.train.reading import StepReader
from mimo_launch.train.session import RankSession
from mimo_launch.train.state import RunState


class StepRunner:
    """Runs steps, one after another, and advances the state of the run by each."""

    def __init__(
        self, session: RankSession, reader: StepReader, emit: Listener, profile: Profile | None
    ) -> None:
        self._session, self._reader, self._emit = session, reader, emit
        self._profile = profile
        self._numbers = NumberWatch(session.spec.train.max_skipped)

    def run(self, state: RunState, ids: tuple[int, ...], flags: tuple[int, ...]) -> StepTotals:
        """Run the next step on the samples `ids`; `flags` come back summed over all ranks.

        Ranks: collective over the world. Raises, on all ranks alike: NonFiniteRun,
        TooManyBadSamples.
        """
        session, spec = self._session, self._session.spec
        started = time.perf_counter()
        inputs = self._reader.read("train", ids, state.step)
        if self._profile is not None:
            self._profile.begin(state.step)
        totals = session.gradients(inputs, flags)
        if self._profile is not None:
            self._profile.finish(state.step)
        # Every rank has the same totals, so all of them skip the same steps: moments, decay and
        # step count of a skipped step stay as they were.
        skip = not totals.finite or inputs.plan.num_labels == 0
        origin = None if totals.finite else find_origin(session, inputs.plan)
        if origin is not None:
            self._emit(origin)
        if not skip:
            session.update(state.step, totals)
        seconds = time.perf_counter() - started
        self._emit(_finished(spec, inputs, totals, seconds=seconds, skip=skip))
        state.step += 1
        state.samples += len(ids)
        state.skipped += skip
        if origin is not None:
            self._numbers.bad(origin)
        elif not skip:
            self._numbers.good()
        return totals

    def finish(self, state: RunState) -> None:
        """Judge the whole run. Raises: NonFiniteRun or NoUpdate if no step changed a weight."""
        self._numbers.finish(state.step, state.skipped)


def _finished(
    spec: Spec, inputs: ReadInputs, totals: StepTotals, *, seconds: float, skip: bool
) -> StepFinished:
    schedule, steps, step = spec.optimizer.schedule, spec.train.steps, inputs.plan.step
    tokens = sum(sample.num_tokens for sample in inputs.plan.samples)

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
        skipped=skip,
        bad_samples=len(inputs.left_out),
        zero_grads=totals.zeros,
    )
