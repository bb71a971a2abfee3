"""Reading a step's numbers while the next one runs changes when they are told, and nothing else."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tests.distributed.test_checkpoints import make_spec
from tests.distributed.test_session import two_modules, weights_of
from tests.support.histories import untimed
from tests.support.poison import after_backwards
from tests.support.specs import spec

from mimo_launch.bench.profiling import Profiler
from mimo_launch.checkpoint.folder import all_checkpoints, read_marker
from mimo_launch.checkpoint.loading import start_run
from mimo_launch.comm.world import device_for
from mimo_launch.launcher.run_on_ranks import run_ranks
from mimo_launch.layout.layout import world_size
from mimo_launch.plan.plan import Plan
from mimo_launch.runtime.progress import RunState
from mimo_launch.runtime.step_state import StepState
from mimo_launch.spec.spec import Spec
from mimo_launch.train import step as step_module
from mimo_launch.train.events import (
    CheckpointSaved,
    EvalFinished,
    NonFinite,
    RunFinished,
    RunStopped,
    StepFinished,
)
from mimo_launch.train.loop import Hooks, train
from mimo_launch.train.rank_session import RankSession

Weights = dict[str, torch.Tensor]


def told(event: Any) -> Any:
    """What is said of a run, without times."""
    if isinstance(event, StepFinished):
        return untimed(event)
    if isinstance(event, RunFinished):
        return replace(event, seconds=0.0, peak_memory=0)
    return replace(event, peak_memory=0) if isinstance(event, RunStopped) else event


def whole_run(
    made: Spec, folder: Path, bad: set[int], late: int, kind: Any = "cpu"
) -> tuple[list[Any], Weights, RunState]:
    """Train; in the steps `bad`, from 1 on, one rank has an infinity among its gradients."""
    step_module.steps_late = lambda device: late
    events: list[Any] = []
    with RankSession(Plan.of(made), device=device_for(kind, dist.get_rank())) as session:

        def spoil(step: StepState) -> None:
            if step.data.step + 1 in bad and session.rank == 0:
                gradient = session.declared("vision")[0].parameter.grad
                gradient.to_local().view(-1)[:1] = float("inf")

        after_backwards(session, spoil)
        state, saver = start_run(session, folder, events.append)
        profiler = Profiler(session, folder / "profile", range(2, 4))
        train(session, events.append, Hooks(saver=saver, profiler=profiler), state)
        # When a save is done has nothing to do with steps.
        steps = [told(event) for event in events if not isinstance(event, CheckpointSaved)]
        return steps, {n: weight.cpu() for n, weight in weights_of(session).items()}, state


def outcome(
    made: Spec, folder: Path, bad: set[int], late: int
) -> tuple[list[tuple[list[Any], Weights, RunState]], dict[str, Any]]:
    ranks = run_ranks(whole_run, made, folder, bad, late, world_size=world_size(made))
    return ranks, {path.name: read_marker(path).updates for path in all_checkpoints(folder)}


def test_a_run_is_the_same_to_the_last_bit_however_late_its_numbers_are_read(
    tmp_path: Path,
) -> None:
    """AdamW that clips; skipped steps before an evaluation, before a save and at one."""
    made = make_spec(
        "disjoint dp2, tp2", 11,
        optimizer={"kind": "adamw", "lr": 5e-3, "weight_decay": 0.1, "clip": 0.5},
        checkpoint={"every": 4, "keep": 9}, eval={"every": 5, "samples": 8},
    )  # fmt: skip
    bad = {1, 4, 7, 8, 10}
    now, saved_now = outcome(made, tmp_path / "now", bad, 0)
    late, saved_late = outcome(made, tmp_path / "late", bad, 1)
    assert saved_late == saved_now
    assert sorted(saved_now) == ["step-00000005", "step-00000009", "step-00000011"]
    assert set(saved_now["step-00000009"].values()) == {5}, "of nine steps four moved nothing"
    kinds = (StepFinished, EvalFinished, NonFinite, RunFinished)
    for mine, theirs in zip(late, now, strict=True):
        assert mine[0] == theirs[0]
        assert [kind for kind in kinds if any(isinstance(e, kind) for e in mine[0])] == list(kinds)
        assert {e.step for e in mine[0] if isinstance(e, NonFinite)} == bad
        assert mine[2] == theirs[2]
        counts = RunState(step=11, samples=88, skipped=5, bad_samples=0, evaluated=11)
        assert replace(mine[2], best=None) == counts
        assert all(torch.equal(mine[1][name], theirs[1][name]) for name in theirs[1])


def order_of_things(made: Spec) -> list[str]:
    """Return what the host did: started the update of a step, or read a step's totals."""
    done: list[str] = []
    with RankSession(Plan.of(made)) as session:
        update = session.update

        def updating() -> None:
            update()
            done.append(f"start {session.ending.step.data.step + 1}")

        session.update = updating  # type: ignore[method-assign]
        train(session, lambda event: done.append(f"tell {event.step}") if told_of(event) else None)
    return done


def told_of(event: Any) -> bool:
    return isinstance(event, StepFinished | EvalFinished)


def test_the_next_step_has_started_before_numbers_are_read(late: int) -> None:
    made = two_modules(train={"steps": 4, "precision": "fp64"})
    expected = {
        0: ["start 1", "tell 1", "start 2", "tell 2", "start 3", "tell 3", "start 4", "tell 4"],
        1: ["start 1", "start 2", "tell 1", "start 3", "tell 2", "start 4", "tell 3", "tell 4"],
    }
    assert run_ranks(order_of_things, made, world_size=4) == [expected[late]] * 4


SLOW = 0.15


def times_of_steps(made: Spec) -> list[float]:
    """Return the seconds of each step that takes `SLOW` or longer, as told by its speed."""
    seconds: list[float] = []
    with RankSession(Plan.of(made)) as session:
        run_program = session.executor.run

        def slowly(*args: Any) -> Any:
            time.sleep(SLOW)
            return run_program(*args)

        session.executor.run = slowly  # type: ignore[method-assign]
        begin = time.perf_counter()
        train(
            session,
            lambda e: seconds.append(e.tokens / e.tokens_per_s) if told_of(e) else None,
        )
        assert sum(seconds) < time.perf_counter() - begin
    return seconds


def test_the_time_of_a_step_is_its_own_whenever_it_is_told(late: int) -> None:
    """The last two are read together, though they took one time each."""
    [seconds] = run_ranks(times_of_steps, spec({}, train={"steps": 4}), world_size=1)
    assert len(seconds) == 4
    assert all(each >= SLOW for each in seconds), seconds


def stopped_run(made: Spec, folder: Path, first: int) -> tuple[list[Any], RunState]:
    """Train; before step `first` one rank sees a signal."""
    events: list[Any] = []
    calls = 0

    def stop() -> int:
        nonlocal calls
        calls += 1
        return 15 if calls >= first and session.rank == 1 else 0

    with RankSession(Plan.of(made)) as session:
        state, saver = start_run(session, folder, events.append)
        assert train(session, events.append, Hooks(saver=saver, stop=stop), state) == 15
    return events, state


def test_a_stopped_run_saves_what_it_has_told_and_goes_on(late: int, tmp_path: Path) -> None:
    """The ranks hear of a signal with the numbers of the step before which one of them saw it."""
    made = make_spec("disjoint dp2, tp2", 6, checkpoint={"every": 9})
    results = run_ranks(stopped_run, made, tmp_path, 3, world_size=4)
    for events, state in results:
        assert [e.step for e in events if isinstance(e, StepFinished)] == list(range(1, 4 + late))
        [stopped] = [e for e in events if isinstance(e, RunStopped)]
        assert stopped.step == state.step == 3 + late
    [saved] = all_checkpoints(tmp_path)
    marker = json.loads((saved / "checkpoint.json").read_text())
    assert marker["counts"]["step"] == 3 + late
    again, _, _ = run_ranks(whole_run, made, tmp_path, set(), late, world_size=4)[0]
    whole, _, _ = run_ranks(whole_run, made, tmp_path / "whole", set(), late, world_size=4)[0]
    steps = [event for event in whole if isinstance(event, StepFinished)]
    assert [event for event in again if isinstance(event, StepFinished)] == steps[3 + late :]
