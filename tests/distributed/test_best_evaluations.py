"""The best evaluation of a run: its checkpoint stays, and without a better one the run ends."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.distributed.test_checkpoints import make_spec, run_anew, run_with_bad_steps

from mimo_launch.checkpoint import saver as saver_module
from mimo_launch.checkpoint.folder import all_checkpoints
from mimo_launch.launcher.run_on_ranks import RankError, run_ranks
from mimo_launch.runtime.progress import Best
from mimo_launch.train import loop
from mimo_launch.train.events import (
    CheckpointFailed,
    EvalFinished,
    RunFinished,
    RunResumed,
    StepFinished,
)

DISJOINT = "disjoint dp2, tp2"
# Held-out losses after 2, 4, ... steps.
LOSSES = {2: 5.0, 4: 3.0, 6: 4.0, 8: float("nan"), 10: 2.0, 12: 2.5}


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    def evaluate(session: Any, reader: Any, samples: Any, step: int, *_: Any) -> EvalFinished:
        return EvalFinished(step=step, eval_loss=LOSSES[step], digit_accuracy=None, samples=1)

    monkeypatch.setattr(loop, "evaluate", evaluate)


def asked(stop_after: int | None, layout: str = "one rank", **more: Any) -> Any:
    checkpoint = {"every": 3, "keep": 1, "keep_best": True}
    evaluation = {"every": 2, "samples": 1, "stop_after": stop_after, **more}
    return make_spec(layout, 12, eval=evaluation, checkpoint=checkpoint)


def kept(run: Path) -> list[int]:
    return [int(path.name[-2:]) for path in all_checkpoints(run) if not path.suffix]


@pytest.mark.usefixtures("planted")
def test_a_run_ends_early_and_keeps_its_best_also_where_it_resumes(tmp_path: Path) -> None:
    """Ended after step 8; then again from step 4, as after a kill; then with more patience."""
    run = tmp_path / "run"
    end = run_anew(asked(2, DISJOINT), run)[-1]
    assert isinstance(end, RunFinished)
    assert (end.steps, end.ended_early, end.best) == (8, True, Best(4, 3.0, since=2))
    assert kept(run) == [8, 4]
    all_checkpoints(run)[0].rename(tmp_path / "end")
    events = run_anew(asked(2, DISJOINT), run)
    assert [e.step for e in events if isinstance(e, StepFinished)] == [5, 6, 7, 8]
    assert (events[-1].steps, events[-1].best, kept(run)) == (8, end.best, [8, 4])
    # A run that has ended runs no step, until more is asked of it.
    assert not [e for e in run_anew(asked(2, DISJOINT), run) if isinstance(e, StepFinished)]
    events = run_anew(asked(3, DISJOINT), run)
    assert events[-1].best == Best(10, 2.0, since=1)
    assert (events[-1].steps, events[-1].ended_early, kept(run)) == (12, False, [12, 10])


@pytest.mark.usefixtures("planted")
def test_a_run_that_ends_early_without_an_update_does_not_end_well(tmp_path: Path) -> None:
    bad = tuple(range(1, 13))
    with pytest.raises(RankError, match="all 6 steps were skipped"):
        run_ranks(run_with_bad_steps, asked(1), tmp_path, bad, world_size=1)


@pytest.mark.usefixtures("planted")
def test_evaluations_of_something_else_are_not_compared(tmp_path: Path) -> None:
    run_anew(asked(2), tmp_path)
    events = run_anew(asked(2, samples=2), tmp_path)
    [resumed] = [e for e in events if isinstance(e, RunResumed)]
    assert "best evaluation: that of step 4 -> none" in resumed.changes
    assert events[-1].best == Best(10, 2.0, since=1)


@pytest.mark.usefixtures("planted")
def test_the_best_that_is_saved_stays_if_a_better_one_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write: Callable[..., None] = saver_module.complete

    def complete(unfinished: Path, final: Path, marker: Any) -> None:
        if final.name.endswith("10"):
            raise OSError("the disk is full")
        write(unfinished, final, marker)

    monkeypatch.setattr(saver_module, "complete", complete)
    events = run_anew(asked(None), tmp_path)
    assert [e.step for e in events if isinstance(e, CheckpointFailed)] == [10]
    assert events[-1].best == Best(10, 2.0, since=1)
    assert kept(tmp_path) == [12, 4]
