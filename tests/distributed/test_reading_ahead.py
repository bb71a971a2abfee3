"""The next step is read while one runs: no further ahead, and without a trace in the state."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from tests.distributed.test_bad_data import ids_of, small
from tests.support.damage import damaged
from tests.support.specs import box, spec

from mimo_launch.checkpoint.folder import all_checkpoints, read_marker
from mimo_launch.checkpoint.loading import start_run
from mimo_launch.comm.async_copies import MaxOverRanks
from mimo_launch.data.build import build_dataset
from mimo_launch.data.dataset import BadSample
from mimo_launch.data.synthetic import SyntheticSamples
from mimo_launch.launcher.run_on_ranks import RankError, run_ranks
from mimo_launch.plan.plan import Plan
from mimo_launch.runtime.progress import Phase, Progress, RunState
from mimo_launch.spec.sections import EvalSpec
from mimo_launch.spec.spec import Spec
from mimo_launch.train import loop
from mimo_launch.train.events import BadSamples, Reading, StepFinished
from mimo_launch.train.loop import Hooks, train
from mimo_launch.train.prefetch import StepReader
from mimo_launch.train.rank_session import RankSession


class Watched:
    """A data set that tells when a step is read; samples of a step are known by their ids."""

    def __init__(self, made: Spec) -> None:
        self._dataset = damaged(made, {})
        self._steps = {i: s for s in range(made.train.steps) for i in ids_of(made, s)}
        self.read = [threading.Event() for _ in range(made.train.steps)]
        self.thread: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._dataset, name)
        if name not in ("text", "images"):
            return found

        def ask(split: Any, index: int, *rest: Any) -> Any:
            self.thread.add(threading.current_thread().name.partition("_")[0])
            self.read[self._steps[index]].set()
            return found(split, index, *rest)

        return ask


def overlap(made: Spec) -> tuple[list[list[bool]], set[str]]:
    """Return which steps had been read while each one ran; each waits for the next to be read."""
    dataset, seen = Watched(made), []
    loop.build_dataset = lambda made: dataset
    with RankSession(Plan.of(made)) as session:
        run_program = session.executor.run

        def running(program: Any, inputs: Any, ending: Any) -> Any:
            following = dataset.read[inputs.data.step + 1 : inputs.data.step + 2]
            assert all(event.wait(20) for event in following), "the next step is not read meanwhile"
            result = run_program(program, inputs, ending)
            seen.append([event.is_set() for event in dataset.read])
            return result

        session.executor.run = running  # type: ignore[method-assign]
        train(session, lambda event: None)
    return seen, dataset.thread


def test_one_step_is_read_while_another_runs_and_no_more() -> None:
    made = small(4, 0)
    expected = [[step <= now + 1 for step in range(4)] for now in range(4)]
    assert run_ranks(overlap, made, world_size=4) == [(expected, {"reader"})] * 4


def reading_of_two_steps(made: Spec) -> list[Reading]:
    """Read a step on demand, then one ahead of its time; a text takes a tenth of a second."""
    dataset: Any = damaged(made, {})
    text, found = dataset.text, []

    def slowly(*asked: Any) -> Any:
        time.sleep(0.1)
        return text(*asked)

    dataset.text = slowly
    with (
        RankSession(Plan.of(made)) as session,
        StepReader(session, dataset, RunState(), lambda event: None) as reader,
    ):
        for step in range(2):
            if step:
                reader.read_ahead(ids_of(made, step), step)
                reader._ahead[-1].result()  # type: ignore[index]
            reading = reader.read("train", ids_of(made, step), step).reading
            assert reading is not None
            found.append(reading)
    return found


def test_a_step_waits_for_what_is_read_on_demand_and_not_for_what_is_there() -> None:
    """Four texts, 0.4 s of reading in both cases."""
    made = spec({"language": box(0)}, mbs=4)
    [(asked, ahead)] = run_ranks(reading_of_two_steps, made, world_size=1)
    assert asked.waited_s >= asked.read_s >= 0.4
    assert ahead.read_s >= 0.4 > ahead.waited_s


def texts_drawn(made: Spec) -> tuple[set[str], int]:
    """Return the threads that draw texts for the terms of a step, and the number of the terms."""
    threads, text = set[str](), SyntheticSamples.text

    def watched(*asked: Any) -> Any:
        threads.add(threading.current_thread().name.partition("_")[0])
        return text(*asked)

    SyntheticSamples.text = watched  # type: ignore[method-assign]
    with (
        RankSession(Plan.of(made)) as session,
        StepReader(session, build_dataset(made), RunState(), lambda event: None) as reader,
    ):
        data = reader.read("train", ids_of(made, 0), 0).data
        terms = [data.num_terms(loss.module, loss.depth) for loss in session.layout.losses]
    return threads, len(terms)


def test_labels_further_ahead_are_counted_in_the_thread_of_the_reader() -> None:
    made = spec({"language": box(0, model={"mtp": {"depth": 2}})}, mbs=4)
    assert run_ranks(texts_drawn, made, world_size=1) == [({"reader"}, 3)]


def saved_run(made: Spec, folder: Path, stop_after: int) -> tuple[list[Any], RunState]:
    """Train on data of which one sample of step 3 is damaged; stop after a step, or never."""
    faults = {("images", "train", ids_of(made, 2)[1]): BadSample("cut off")}
    loop.build_dataset = lambda made: damaged(made, faults)
    events: list[Any] = []

    def stop() -> int:
        return 15 if state.step + 1 == stop_after else 0

    with RankSession(Plan.of(made)) as session:
        state, saver = start_run(session, folder, events.append)
        train(session, events.append, Hooks(saver=saver, stop=stop), state)
    return events, state


def test_what_was_read_ahead_counts_only_once_its_step_comes(tmp_path: Path) -> None:
    """A run that stops after step 2 has read step 3, and found the bad sample in it."""
    made = small(4, 1, checkpoint={"every": 9})
    for events, state in run_ranks(saved_run, made, tmp_path, 2, world_size=4):
        assert (state.step, state.bad_samples) == (2, 0)
        assert not any(isinstance(event, BadSamples) for event in events)
    assert read_marker(all_checkpoints(tmp_path)[0]).counts["bad_samples"] == 0
    for events, state in run_ranks(saved_run, made, tmp_path, -1, world_size=4):
        assert (state.step, state.bad_samples) == (4, 1)
        [told] = [event for event in events if isinstance(event, BadSamples)]
        assert (told.step, told.total) == (3, 1)
        assert [e.bad_samples for e in events if isinstance(e, StepFinished)] == [1, 0]


def test_an_error_in_the_thread_is_told_with_the_place_where_it_arose() -> None:
    with pytest.raises(RankError, match=r"(?s)damage\.py.*in ask.*KeyError: 'planted'"):
        run_ranks(broken_reader, small(3, 0), world_size=4)


def test_an_evaluation_does_not_hide_an_error_of_what_was_read_ahead() -> None:
    """Its agreement on samples would meet that of the step which one rank could not read."""
    made = small(3, 0).model_copy(update={"eval": EvalSpec(every=1, samples=8)})
    with pytest.raises(RankError, match=r"(?s)KeyError: 'planted'"):
        run_ranks(broken_on_one_rank, made, world_size=4)


def broken_on_one_rank(made: Spec) -> None:
    """The first rank of language reads the text of the first sample; only there it is broken."""
    if dist.get_rank() == made.language.rank_range.start:
        broken_reader(made)
    else:
        with RankSession(Plan.of(made)) as session:
            train(session, lambda event: None)


def broken_reader(made: Spec) -> None:
    faults = {("text", "train", ids_of(made, 1)[0]): KeyError("planted")}
    loop.build_dataset = lambda made: damaged(made, faults)
    with RankSession(Plan.of(made)) as session:
        train(session, lambda event: None)


def beats(made: Spec) -> list[tuple[int, Phase]]:
    """Return where a rank was when its loader made progress: the step and the phase."""
    seen = []

    class Noting(Progress):
        def beat(self, phase: Phase | None = None) -> None:
            if phase is Phase.READING:
                seen.append((self._cells[1], Phase(self._cells[0])))
            super().beat(phase)

    with RankSession(Plan.of(made), progress=Noting()) as session:
        train(session, lambda event: None)
    return seen


def test_progress_of_the_thread_is_told_as_reading() -> None:
    """So that it counts only while the main thread waits for it: see `Progress.beat`."""
    made = spec({"vision": box(0)}, mbs=2, train={"steps": 3, "precision": "fp64"})
    [seen] = run_ranks(beats, made, world_size=1)
    # Texts, documents and images of two samples in each of three steps.
    assert len(seen) == 18
    assert seen[0] == (1, Phase.READING)


def largest() -> list[int]:
    group = dist.group.WORLD
    assert group is not None
    return MaxOverRanks((dist.get_rank(), 3 - dist.get_rank(), 1), group).wait()


def test_ranks_tell_each_other_their_largest_numbers() -> None:
    """So they agree on bad samples of the next step, and on memory."""
    assert run_ranks(largest, world_size=2) == [[1, 3, 1]] * 2
