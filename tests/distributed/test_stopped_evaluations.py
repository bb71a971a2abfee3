"""A stop signal ends an evaluation after its batch; the resumed run evaluates what is owed."""

import json
import threading
from functools import partial
from pathlib import Path
from signal import SIGTERM
from typing import Any

import pytest
from tests.distributed.test_checkpoints import make_spec

from mimo_launch.checkpoint.loading import start_run
from mimo_launch.launcher.run_folder import newest_checkpoint
from mimo_launch.launcher.run_on_ranks import run_ranks
from mimo_launch.plan.plan import Plan
from mimo_launch.spec.spec import Spec
from mimo_launch.train.best_evaluation import owes_evaluation
from mimo_launch.train.events import EvalFinished, RunFinished, RunStopped, StepFinished
from mimo_launch.train.loop import Hooks, train
from mimo_launch.train.rank_session import RankSession
from mimo_launch.train.samples import LINES, write_samples

STEPS, BATCHES = 4, 4


def asked(steps: int = STEPS, **more: Any) -> Spec:
    """Evaluated after each of two steps on two ranks, in `BATCHES` batches."""
    evaluation = {"every": 2, "samples": 8 * BATCHES, **more}
    checkpoint = {"every": 3, "keep_best": True}
    return make_spec("colocated dp2, tp2", steps, eval=evaluation, checkpoint=checkpoint)


def run(made: Spec, folder: Path, step: int, batch: int) -> tuple[list[Any], int]:
    """Train; rank 1 gets a signal in a batch of the evaluation after `step`, or during `step`.

    Return the events, and the number of batches that were evaluated.
    """
    events: list[Any] = []
    batches, signal = 0, 0
    with RankSession(Plan.of(made), draw=False) as session:
        state, saver = start_run(session, folder, events.append)
        evaluated = session.executor.run_forward

        def stop() -> int:
            nonlocal batches, signal
            evaluating = threading.current_thread().name.startswith("reader")
            here = state.step == step and evaluating
            batches += here
            if session.rank and (batches > batch if batch else state.step == step - 1):
                signal = SIGTERM
            return signal

        ran = 0

        def run_forward(*args: Any) -> Any:
            nonlocal ran
            ran += 1
            return evaluated(*args)

        session.executor.run_forward = run_forward  # type: ignore[method-assign]
        ended_by = train(session, events.append, Hooks(saver=saver, stop=stop), state)
        assert ended_by == (SIGTERM if step >= 0 else 0)
    return events, ran


def told(events: list[Any], *kinds: type) -> list[tuple[str, int]]:
    return [(type(each).__name__, each.step) for each in events if isinstance(each, kinds)]


def evaluations(events: list[Any]) -> list[EvalFinished]:
    return [each for each in events if isinstance(each, EvalFinished)]


@pytest.mark.parametrize(
    ("step", "batch", "ran", "more"),
    [
        (2, 2, 2, {}),
        (4, 3, BATCHES + 3, {}),
        (2, 0, 0, {}),
        (0, 1, 1, {"at_start": True}),
        (1, 2, 2, {"every": 1, "steps": 2}),
    ],
    ids=["the first", "the last", "before the first", "at the start", "after one step"],
)
def test_a_run_that_is_stopped_in_an_evaluation_evaluates_where_it_resumes(
    step: int, batch: int, ran: int, more: dict[str, Any], tmp_path: Path
) -> None:
    made = asked(**more)
    whole, _ = run_ranks(run, made, tmp_path / "whole", -1, 0, world_size=2)[0]
    folder = tmp_path / "run"
    for events, number in run_ranks(run, made, folder, step, batch, world_size=2):
        assert told(events, RunStopped) == [("RunStopped", step)]
        assert evaluations(events) == [e for e in evaluations(whole) if 0 < e.step < step]
        assert number == ran
    saved = newest_checkpoint(folder)
    assert (saved is not None) == bool(step)
    if saved is not None:
        assert owes_evaluation(made, saved.step, saved.evaluated)
    again, _ = run_ranks(run, made, folder, -1, 0, world_size=2)[0]
    kinds = StepFinished, EvalFinished
    assert told(again, *kinds) == [
        (name, at)
        for name, at in told(whole, *kinds)
        if at > step or (at == step and name == "EvalFinished")
    ]
    assert evaluations(again) == [e for e in evaluations(whole) if e.step >= step]
    ends = [next(e.best for e in each if isinstance(e, RunFinished)) for each in (again, whole)]
    assert ends[0] == ends[1]
    last = newest_checkpoint(folder)
    assert last is not None
    assert not owes_evaluation(made, last.step, last.evaluated)
    assert last.best == ends[0]


def sampled(made: Spec, folder: Path) -> int:
    """Write samples; rank 1 gets a signal before the third batch. Return the signal that ended."""
    with RankSession(Plan.of(made)) as session:
        signals = iter([0, 0, SIGTERM])
        stop = partial(next, signals) if session.rank else lambda: 0
        wanted = {"samples": 8 * BATCHES, "steps": 1, "tokens": 2}
        return write_samples(session, folder, **wanted, emit=lambda event: None, stop=stop)


def test_samples_that_a_signal_ends_are_written_so_far(tmp_path: Path) -> None:
    assert run_ranks(sampled, asked(), tmp_path, world_size=2) == [SIGTERM] * 2
    last = (tmp_path / LINES).read_text().splitlines()[-1]
    assert json.loads(last)["sample"] == f"record {2 * 8 - 1}"
