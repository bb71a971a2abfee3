"""Samples that cannot be read: left out alike on all ranks, reported, and never too many."""

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import pytest
from tests.support.damage import damaged
from tests.support.planted import colocated, disjoint, piped
from tests.support.specs import box, spec

from mimo_launch.data.build import build_dataset
from mimo_launch.data.dataset import BadSample
from mimo_launch.data.order.sample_order import GlobalOrder
from mimo_launch.launcher.run_on_ranks import RankError, run_ranks
from mimo_launch.layout.layout import world_size
from mimo_launch.plan.plan import Plan
from mimo_launch.runtime.progress import RunState
from mimo_launch.spec.spec import Spec
from mimo_launch.train import loop
from mimo_launch.train.events import BadSamples, EvalFinished, RunFinished, StepFinished
from mimo_launch.train.loop import train
from mimo_launch.train.prefetch import StepReader, TooManyBadSamples
from mimo_launch.train.rank_session import RankSession
from mimo_launch.verify.compare import TensorPiece, compare_numbers, compare_tensors, pieces_of
from mimo_launch.verify.oracle import Oracle
from mimo_launch.verify.shrink import shrink

Faults = dict[tuple[str, str, int], Exception]


def ids_of(made: Spec, step: int) -> tuple[int, ...]:
    order = GlobalOrder(build_dataset(made).num_samples("train"), made.batch.global_, 0)
    return order.ids(step)


def one_step(made: Spec, faults: Faults) -> tuple[float, list[TensorPiece], list[Any], int]:
    """Return loss and gradients of the first step on this rank, and what it was told."""
    events: list[Any] = []
    state = RunState()
    with RankSession(Plan.of(made), randomise=True) as session:
        reader = StepReader(session, damaged(made, faults), state, events.append)
        inputs = reader.read("train", ids_of(made, 0), 0)
        metrics = session.gradients(inputs).read()
        return metrics.loss, pieces_of(session, attrgetter("grad")), events, state.bad_samples


@pytest.mark.parametrize("build", [disjoint, colocated, piped, lambda: piped(max_documents=4)])
def test_a_step_with_bad_samples_is_the_step_without_them(build: Callable[[], Spec]) -> None:
    """One damaged image, known to encoder ranks only; one damaged text, known to language only."""
    made = shrink(build())
    ids = ids_of(made, 0)
    faults: Faults = {
        ("images", "train", ids[1]): OSError("image file is truncated"),
        ("text", "train", ids[-2]): BadSample("no such record"),
    }
    results = run_ranks(one_step, made, faults, world_size=world_size(made))
    oracle = Oracle(made, randomise=True)
    good = [sample for sample in ids if sample not in (ids[1], ids[-2])]
    loss, grads = oracle.loss_and_gradients(good)
    verdicts = [compare_numbers("loss", "language", result[0], loss) for result in results]
    pieces = [piece for result in results for piece in result[1]]
    verdicts += compare_tensors("gradients", made.modules, pieces, grads)
    assert [failure for verdict in verdicts for failure in verdict.failures] == []
    reasons = {ids[1]: "OSError: image file is truncated", ids[-2]: "no such record"}
    expected = BadSamples(step=1, reasons=reasons, total=2)
    assert all(result[2:] == ([expected], 2) for result in results)


def what_was_read(made: Spec) -> dict[str, int]:
    with RankSession(Plan.of(made)) as session:
        dataset = damaged(made, {})
        StepReader(session, dataset, RunState(), lambda event: None).read(
            "train", ids_of(made, 0), 0
        )
        read = dict(dataset.asked)
        dataset.asked.clear()
        loop.build_dataset = lambda made: dataset
        train(session, lambda event: None)
        assert dict(dataset.asked) == read, "the step reads what it read ahead, and only once"
    return read


def test_a_rank_reads_what_its_stages_need() -> None:
    """Vision pp 2 dp 2 on ranks 0-3, language pp 3 on 4-6; four samples, two per vision replica."""
    made = spec({"vision": box(0, dp=2, pp=2), "language": box(4, pp=3)}, microbatches=2, mbs=2)
    first, later, both = {"images": 2}, {}, {"text": 4, "documents": 4}
    assert run_ranks(what_was_read, made, world_size=7) == [
        first, first, later, later, both, {"documents": 4}, both,
    ]  # fmt: skip


def training(
    made: Spec, faults: Faults, state: RunState | None = None
) -> tuple[list[Any], str, RunState]:
    """Train on damaged data; return the events, and how the run failed on this rank."""
    loop.build_dataset = lambda made: damaged(made, faults)
    events: list[Any] = []
    state = state or RunState()
    with RankSession(Plan.of(made)) as session:
        try:
            train(session, events.append, state=state)
        except TooManyBadSamples as error:
            return events, str(error), state
    return events, "", state


def small(steps: int, allowed: int, **sections: Any) -> Spec:
    """Vision dp 2 before language dp 2, four samples a step."""
    made = spec(
        {"vision": box(0, dp=2), "language": box(2, dp=2)},
        microbatches=2,
        train={"steps": steps, "precision": "fp64"},
        **sections,
    )
    return made.model_copy(
        update={"data": made.data.model_copy(update={"max_bad_samples": allowed})}
    )


def test_bad_samples_are_counted_alike_on_all_ranks_and_the_run_goes_on() -> None:
    made = small(3, 2)
    second = ids_of(made, 1)
    faults: Faults = {("images", "train", s): ValueError("bad header") for s in second[:2]}
    results = run_ranks(training, made, faults, world_size=4)
    for events, error, state in results:
        assert error == ""
        assert state == RunState(step=3, samples=12, skipped=0, bad_samples=2)
        steps = [event for event in events if isinstance(event, StepFinished)]
        assert [event.bad_samples for event in steps] == [0, 2, 0]
        plans = [build_dataset(made).describe("train", sample) for sample in second[2:]]
        assert steps[1].tokens == sum(plan.num_tokens for plan in plans)
        [told] = [event for event in events if isinstance(event, BadSamples)]
        assert told.reasons == dict.fromkeys(second[:2], "ValueError: bad header")


def test_a_bad_sample_of_training_counts_in_each_epoch() -> None:
    made = spec({"language": box()}, mbs=4, train={"steps": 3})
    data = made.data.model_copy(update={"samples": 4, "max_bad_samples": 2})
    faults: Faults = {("text", "train", 1): BadSample("cut off")}
    made = made.model_copy(update={"data": data})
    [(events, error, state)] = run_ranks(training, made, faults, world_size=1)
    assert [each.total for each in events if isinstance(each, BadSamples)] == [1, 2, 3]
    assert error.startswith("3 samples could not be read, `data.max_bad_samples` allows 2")
    assert state.bad_samples == 3


@pytest.mark.usefixtures("late")
def test_too_many_bad_samples_end_the_run_on_all_ranks() -> None:
    assert not TooManyBadSamples.restartable
    made = small(3, 1)
    second = ids_of(made, 1)
    faults: Faults = {("text", "train", s): BadSample("cut off") for s in second[:2]}
    for events, error, _ in run_ranks(training, made, faults, world_size=4):
        assert error.startswith("2 samples could not be read, `data.max_bad_samples` allows 1")
        assert f"sample {second[1]} (train): cut off" in error
        assert not any(isinstance(event, RunFinished) for event in events)
        assert sum(isinstance(event, BadSamples) for event in events) == 1


@pytest.mark.usefixtures("late")
def test_a_step_of_bad_samples_only_is_skipped() -> None:
    made = small(2, 4)
    faults: Faults = {("images", "train", s): EOFError() for s in ids_of(made, 0)}
    for events, error, state in run_ranks(training, made, faults, world_size=4):
        assert (error, state.skipped) == ("", 1)
        first, second = (event for event in events if isinstance(event, StepFinished))
        assert (first.skipped, first.loss, first.tokens) == (True, 0.0, 0)
        assert not second.skipped


def test_an_error_that_is_no_sign_of_damage_is_a_bug() -> None:
    made = small(2, 100)
    faults: Faults = {("images", "train", ids_of(made, 1)[0]): KeyError("no such key")}
    with pytest.raises(RankError, match="no such key"):
        run_ranks(training, made, faults, world_size=4)


def evaluated(modules: dict[str, Any]) -> Spec:
    """Digits read on `modules`, evaluated after each of two steps on seven held-out strips."""
    models = {
        "vision": {"kind": "vit", "layers": 1, "hidden": 16, "heads": 2, "patch": 4},
        "language": {"kind": "decoder", "layers": 2, "hidden": 16, "heads": 2, "vocab": "digits"},
    }
    return spec(
        {name: {**module, "model": models[name]} for name, module in modules.items()},
        schedule={"microbatches": 2},
        batch={"global": 4, "seq": 36},
        data={"kind": "digits"},
        train={"steps": 2, "precision": "fp64"},
        eval={"every": 1, "samples": 7},
    )


def test_bad_held_out_samples_are_left_out_and_count_once() -> None:
    """Ranks 0-1 cannot read an image, 2-3 a text; one rank that lacks both evaluates the same."""
    faults: Faults = {
        ("images", "heldout", 2): OSError("truncated"),
        ("text", "heldout", 5): BadSample("cut off"),
    }
    alone = run_ranks(
        training, evaluated({"vision": box(0), "language": box(0)}), faults, world_size=1
    )
    wide = evaluated({"vision": box(0, dp=2), "language": box(2, pp=2)})
    wanted = [event for event in alone[0][0] if isinstance(event, EvalFinished)]
    for events, error, state in run_ranks(training, wide, faults, world_size=4):
        assert (error, state.bad_samples) == ("", 0)
        found = [event for event in events if isinstance(event, EvalFinished)]
        assert [event.samples for event in found] == [5, 5]
        for mine, theirs in zip(found, wanted, strict=True):
            assert mine.eval_loss == pytest.approx(theirs.eval_loss, rel=1e-9)
            assert mine.digit_accuracy == theirs.digit_accuracy
        told = [event for event in events if isinstance(event, BadSamples)]
        assert {(event.split, event.step, event.total) for event in told} == {
            ("heldout", 1, 1), ("heldout", 1, 2), ("heldout", 2, 2),
        }  # fmt: skip


def test_bad_held_out_samples_count_once_however_often_a_run_is_resumed() -> None:
    made = evaluated({"vision": box(0), "language": box(0)})
    data = made.data.model_copy(update={"max_bad_samples": 2})
    train_ = made.train.model_copy(update={"steps": 1})
    made = made.model_copy(update={"data": data, "train": train_})
    faults: Faults = {
        ("text", "train", ids_of(made, 0)[0]): BadSample("cut off"),
        ("text", "heldout", 5): BadSample("cut off"),
    }
    state = RunState()
    for steps in (1, 2, 3):
        longer = made.model_copy(update={"train": made.train.model_copy(update={"steps": steps})})
        [(events, error, state)] = run_ranks(training, longer, faults, state, world_size=1)
        told = [event.total for event in events if isinstance(event, BadSamples)]
        assert (error, told[-1], state.step) == ("", 2, steps)
