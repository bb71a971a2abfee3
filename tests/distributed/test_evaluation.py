"""Evaluation leaves training as it was, and may take longer than one collective may."""

import math
import time
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from tests.distributed.test_topologies import load, run_steps
from tests.support.graphs import flow, talker
from tests.support.histories import untimed
from tests.support.running_ranks import run_on_running_ranks
from tests.support.specs import box, spec
from torch import Tensor

from mimo_launch.data.build import build_dataset
from mimo_launch.data.dataset import Dataset
from mimo_launch.data.random_draws import Split
from mimo_launch.data.record_facts import RecordFacts, facts_of
from mimo_launch.kinds.vocabulary import IGNORE_LABEL
from mimo_launch.launcher.run_on_ranks import run_ranks
from mimo_launch.layout.layout import world_size
from mimo_launch.layout.step_data import SampleData
from mimo_launch.models.flow import FlowStage
from mimo_launch.plan.plan import Plan
from mimo_launch.runtime.progress import RunState
from mimo_launch.spec.spec import Spec
from mimo_launch.train.evaluation import DRAWING_STEPS, evaluate, greedy_answers
from mimo_launch.train.events import EvalFinished, StepFinished
from mimo_launch.train.loader import step_inputs
from mimo_launch.train.prefetch import StepReader
from mimo_launch.train.rank_session import RankSession


def numbers(made: Spec) -> list[tuple[list[dict[str, Any]], list[float]]]:
    """Train; return per rank what was said of steps, times left out, and held-out losses."""
    results = []
    for events in run_on_running_ranks(run_steps, made, world_size=world_size(made)):
        steps = [asdict(untimed(event)) for event in events if isinstance(event, StepFinished)]
        results.append((steps, [e.eval_loss for e in events if isinstance(e, EvalFinished)]))
    return results


@pytest.mark.parametrize(
    "name",
    [
        "colocated_fan_in",
        pytest.param("disjoint_pp2", marks=pytest.mark.sweep),
        pytest.param("full_sharding", marks=pytest.mark.sweep),
    ],
)
def test_training_is_the_same_to_the_last_bit_with_and_without_evaluation(name: str) -> None:
    """Exact equality of every number of every step, on every rank, in the spec's own precision."""
    path = Path(f"topologies/{name}.yaml")
    common = ["train.steps=3", "train.count_zero_grads=true", "data.max_digits=2"]
    without = numbers(load(path, *common, "eval=null"))
    with_eval = numbers(load(path, *common, "eval.every=1", "eval.samples=16"))
    assert [steps for steps, _ in with_eval] == [steps for steps, _ in without]
    assert len(without[0][0]) == len(with_eval[0][1]) == 3


def slow_evaluation(made: Spec) -> float:
    """Evaluate with answers that take longer, in all, than a collective may."""
    timeout = timedelta(seconds=2)
    dist.distributed_c10d._set_pg_timeout(timeout, dist.group.WORLD)
    with RankSession(Plan.of(made)) as session:
        choose = session.executor.choose

        def slowly(*args: Any) -> Any:
            time.sleep(0.15)
            return choose(*args)

        session.executor.choose = slowly  # type: ignore[method-assign]
        reader = StepReader(session, build_dataset(made), RunState(), lambda event: None)
        begin = time.monotonic()
        evaluate(session, reader, 5 * made.batch.global_, 1)
        return time.monotonic() - begin


def test_ranks_without_language_do_not_time_out_while_others_decode() -> None:
    """Five batches of four passes at 0.15 s each on rank 0; a collective may take 2 s on rank 1."""
    model = {"kind": "decoder", "layers": 1, "hidden": 16, "heads": 2, "vocab": "digits"}
    made = spec(
        {"language": box(0, model=model)},
        batch={"global": 2, "seq": 12},
        data={"kind": "digits", "min_digits": 3, "max_digits": 3},
        idle_ranks="1",
    )
    taken = run_ranks(slow_evaluation, made, world_size=2)
    assert min(taken) > 2.5


def held_out_loss(made: Spec, samples: int) -> EvalFinished:
    with RankSession(Plan.of(made), randomise=True) as session:
        reader = StepReader(session, build_dataset(made), RunState(), lambda event: None)
        return evaluate(session, reader, samples, 1)


class FiveHeldOut:
    """A data set with five held-out samples."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dataset, name)

    def facts(self, split: Split, ids: Any) -> RecordFacts:
        """Return what this data set says of each, not the one inside of it."""
        return facts_of([self.describe(split, index) for index in ids.tolist()])

    def num_samples(self, split: Split) -> int:
        """Return five, of any split."""
        return 5


def all_held_out(made: Spec) -> EvalFinished:
    with RankSession(Plan.of(made), randomise=True) as session:
        reader = StepReader(session, FiveHeldOut(build_dataset(made)), RunState(), print)
        return evaluate(session, reader, "all", 1)


SIZES = {"layers": 2, "hidden": 16, "heads": 2}
ONE_RANK: dict[str, dict[str, Any]] = {
    "batch 1": {},
    "batch 2": {"mbs": 2},
    "batch 4": {"mbs": 2, "microbatches": 2},
    "a microbatch without samples": {"mbs": 5, "microbatches": 2},
}


def digits_read_and_drawn(batch: dict[str, Any], grid: dict[str, Any] | None = None) -> Spec:
    data = {"kind": "digits", "tasks": ["read", "draw"], "max_digits": 3}
    models = {
        "vision": {"model": {"kind": "vit", "patch": 4, **SIZES}},
        "language": {"model": {"kind": "decoder", "vocab": "digits", **SIZES}},
        "drawer": flow(model={"kind": "flow", "patch": 4, **SIZES}),
    }
    modules = {name: box(0, **model, **(grid or {})) for name, model in models.items()}
    return spec(modules, data=data, seq=40, **batch)


def codes_said(batch: dict[str, Any], grid: dict[str, Any] | None = None) -> Spec:
    model = {**SIZES, "kv_heads": 2}
    modules = {
        "language": box(0),
        "voice": box(0, **(grid or {}), **talker(model=model, loss_weight=0.5)),
    }
    return spec(modules, seq=24, **batch)


@pytest.mark.parametrize("make", [digits_read_and_drawn, codes_said])
def test_every_held_out_sample_counts_once_whatever_batch_and_layout(make: Any) -> None:
    """Every number of an evaluation of five samples, of which two replicas have unequal parts.

    Answers of one replica are longer than those of the other; all gather weights as often.
    """
    found = {
        name: run_on_running_ranks(all_held_out, make(batch), world_size=1)
        for name, batch in ONE_RANK.items()
    }
    wide = make({"mbs": 2, "microbatches": 2}, {"dp": 2, "sharding": "full"})
    found["two ranks"] = run_on_running_ranks(all_held_out, wide, world_size=2)
    [right] = found["batch 1"]
    is_spoken = make is codes_said
    assert right.samples == 5
    assert (right.code_accuracy is not None) is is_spoken
    assert (right.drawn_recognised is None, right.digit_accuracy is None) == (is_spoken, is_spoken)
    for name, events in found.items():
        for event in events:
            told = asdict(event)
            told["eval_losses"] = pytest.approx(told["eval_losses"], rel=1e-12)
            told["eval_loss"] = pytest.approx(told["eval_loss"], rel=1e-12)
            assert asdict(right) == told, name


class WithoutLabels(FiveHeldOut):
    """Language learns nothing of its samples."""

    def text(self, split: Split, index: int) -> Any:
        tokens, labels = self._dataset.text(split, index)
        return tokens, np.full_like(labels, IGNORE_LABEL)

    def describe(self, split: Split, index: int) -> SampleData:
        return replace(self._dataset.describe(split, index), num_labels=0)


def held_out_without_labels(made: Spec) -> EvalFinished:
    with RankSession(Plan.of(made), randomise=True) as session:
        reader = StepReader(session, WithoutLabels(build_dataset(made)), RunState(), print)
        return evaluate(session, reader, "all", 1)


def test_a_loss_without_held_out_terms_is_left_out_and_none_at_all_is_no_loss_of_0() -> None:
    """That of the other module has its name and weight still: it is not the loss of language."""
    [found] = run_on_running_ranks(held_out_without_labels, codes_said({}), world_size=1)
    assert found.eval_loss > 0
    assert found.eval_losses == {"voice": 2 * found.eval_loss}
    alone = spec({"language": box(0)}, seq=24)
    [found] = run_on_running_ranks(held_out_without_labels, alone, world_size=1)
    assert math.isnan(found.eval_loss)
    assert found.eval_losses is None


def passes_of_a_flow(made: Spec) -> list[torch.dtype]:
    """Evaluate one batch of one group; return the type of what each pass of the generator gives."""
    forward, passes = FlowStage.forward, list[torch.dtype]()

    def noted(self: FlowStage, *args: Any) -> Any:
        passes.append((found := forward(self, *args)).dtype)
        return found

    FlowStage.forward = noted
    held_out_loss(made, made.batch.global_)
    return passes


def test_only_what_somebody_judges_is_drawn() -> None:
    """Also by a model in bf16, with losses and velocities in fp32."""
    data = {"kind": "digits", "tasks": ["draw"], "max_digits": 2}
    drawer = box(**flow(model={"kind": "flow", "patch": 4}))
    modules = {"language": box(model={"vocab": "digits"}), "drawer": drawer}
    judged = spec(modules, data=data, train={"steps": 1, "precision": "bf16"})
    random = spec({"language": box(), "drawer": drawer})
    wide = [torch.float32] * (1 + DRAWING_STEPS)
    assert run_ranks(passes_of_a_flow, judged, world_size=1) == [wide]
    assert run_ranks(passes_of_a_flow, random, world_size=1) == [[torch.float64]]


class WithAnswers:
    """A data set whose held-out labels are answers, which token 1 ends."""

    answer_ends = frozenset({1})
    scores = True

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dataset, name)

    def answer(self, split: Split, index: int) -> tuple[int, ...]:
        """Return the last three labels."""
        labels = self._dataset.text(split, index)[1]
        return tuple(labels[labels != IGNORE_LABEL][-3:].tolist())


def accuracy_of_any_answers(made: Spec) -> float | None:
    with RankSession(Plan.of(made), randomise=True) as session:
        dataset = WithAnswers(build_dataset(made))
        reader = StepReader(session, dataset, RunState(), lambda event: None)
        return evaluate(session, reader, 4, 1).digit_accuracy


def test_any_data_set_that_has_answers_is_scored() -> None:
    model = {"kind": "decoder", "layers": 1, "hidden": 16, "heads": 2, "vocab": 8}
    made = spec({"language": box(0, model=model)}, batch={"global": 2, "seq": 32})
    [accuracy] = run_ranks(accuracy_of_any_answers, made, world_size=1)
    assert accuracy is not None
    assert 0 <= accuracy <= 1


def said_up_to_each_token(made: Spec) -> list[list[tuple[int, ...]]]:
    """Return the answers that no token ends, then those that each token of the vocabulary ends."""
    inputs = step_inputs(WithAnswers(build_dataset(made)), "heldout", tuple(range(8)), 0)
    with RankSession(Plan.of(made), randomise=True) as session:
        step = session.executor.run_forward(session.mine.evaluation, inputs)
        return [
            [each.said for each in greedy_answers(session, step, inputs, frozenset({end}))]
            for end in range(-1, 20)
        ]


def test_what_is_said_behind_the_end_of_an_answer_does_not_count() -> None:
    model = {"kind": "decoder", "layers": 1, "hidden": 16, "heads": 2, "vocab": 20}
    made = spec({"language": box(0, model=model)}, mbs=8, seq=32)
    [(whole, *ended)] = run_on_running_ranks(said_up_to_each_token, made, world_size=1)
    assert len({token for said in whole for token in said}) > 1
    for end, found in enumerate(ended):
        assert found == [said[: said.index(end)] if end in said else said for said in whole]


class AnswersOfUnequalLength(WithAnswers):
    """Every other sample has its last three labels only: a short answer that starts late."""

    def text(self, split: Split, index: int) -> Any:
        tokens, labels = self._dataset.text(split, index)
        if index % 2:
            labels = labels.copy()
            labels[: np.flatnonzero(labels != IGNORE_LABEL)[-3]] = IGNORE_LABEL
        return tokens, labels

    def describe(self, split: Split, index: int) -> SampleData:
        found = self._dataset.describe(split, index)
        return replace(found, num_labels=3) if index % 2 else found


def said_by_counting(made: Spec) -> list[tuple[int, tuple[int, ...]]]:
    """Return where each answer begins, and what is said if each place chooses its own number."""
    dataset = AnswersOfUnequalLength(build_dataset(made))
    inputs = step_inputs(dataset, "heldout", (0, 1), 0)

    def count(_program: Any, _forwarded: Any, tokens: dict[int, Tensor]) -> dict[int, Tensor]:
        return {at: torch.arange(x.shape[1]).expand_as(x) for at, x in tokens.items()}

    with RankSession(Plan.of(made), randomise=True) as session:
        step = session.executor.run_forward(session.mine.evaluation, inputs)
        session.executor.choose = count  # type: ignore[method-assign]
        said = {
            each.sample: each.said for each in greedy_answers(session, step, inputs, frozenset())
        }
    labels = [dataset.text("heldout", index)[1] for index in (0, 1)]
    return [(int((x != IGNORE_LABEL).argmax()), said[i]) for i, x in enumerate(labels)]


def test_a_long_answer_may_stand_beside_one_that_ends_with_the_sequence() -> None:
    """More passes than there are places behind the late one change none of its tokens."""
    model = {"kind": "decoder", "layers": 1, "hidden": 16, "heads": 2, "vocab": 8}
    data = {"kind": "synthetic", "min_text": 31, "text_only": 1.0}
    made = spec({"language": box(0, model=model)}, batch={"global": 2, "seq": 32}, data=data)
    [[(first, long), (late, short)]] = run_ranks(said_by_counting, made, world_size=1)
    assert long == tuple(range(first, first + len(long)))
    assert short == tuple(range(late, 30))
    assert len(long) > len(short) > 0
