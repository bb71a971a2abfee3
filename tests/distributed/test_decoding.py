"""The next tokens that a model chooses are the same on any layout, and are choices."""

from typing import Any

import pytest
import torch
from tests.support.running_ranks import run_on_running_ranks
from tests.support.specs import box, spec

from mimo_launch.data.build import build_dataset
from mimo_launch.launcher.run_on_ranks import run_ranks
from mimo_launch.layers.vocab_parallel import greedy_choice
from mimo_launch.models.language_input import read_text
from mimo_launch.plan.plan import Plan
from mimo_launch.spec.spec import Spec
from mimo_launch.train.loader import step_inputs
from mimo_launch.train.rank_session import RankSession

Choices = dict[int, list[int]]
DECODER = {
    "layers": 2, "hidden": 32, "heads": 4, "kv_heads": 2, "head_dim": 8, "mlp": 32,
    "vocab": 20, "vocab_multiple": 4,
}  # fmt: skip


def choices_of(made: Spec) -> Choices:
    """Return the next token at every place of each sample of this rank's language replica."""
    inputs = step_inputs(build_dataset(made), "train", tuple(range(made.batch.global_)), 0)
    with RankSession(Plan.of(made), randomise=True) as session:
        step = session.executor.run_forward(session.mine.evaluation, inputs)
        language, samples = session.layout.language, session.layout.samples
        if session.rank not in language.grid:
            return {}
        replica = language.grid.index("dp", session.rank)
        views = (step.views.language(replica, index) for index in range(samples.microbatches))
        tokens = {
            index: read_text(view, inputs, session.device).tokens
            for index, view in enumerate(views)
        }
        found = session.executor.choose(session.mine.decoding, step, tokens)
        return {
            sample: row
            for microbatch, rows in found.items()
            for sample, row in zip(
                samples.language(replica, microbatch), rows.tolist(), strict=True
            )
        }


# The second layer has no rotary positions, the first attends in chunks.
UNTURNED = {
    "nope": {"layers": [1], "query_scaling": {"beta": 0.5, "length": 3, "first_position": 1}},
    "sliding_window": {"size": 5, "chunked": True, "full": [1]},
}  # fmt: skip


def made(language: dict[str, Any], mbs: int, **model: Any) -> Spec:
    ranks = language.pop("first")
    modules = {"vision": box(0, dp=2), "language": box(ranks, model=DECODER | model, **language)}
    return spec(modules, microbatches=2, mbs=mbs, seq=24)


@pytest.fixture(scope="module")
def right() -> Choices:
    """The choices of one rank."""
    [found] = run_ranks(choices_of, alone(), world_size=1)
    return found


def test_layers_without_rotary_positions_choose_the_same_tokens_over_cp(right: Choices) -> None:
    [one] = run_on_running_ranks(choices_of, alone(**UNTURNED), world_size=1)
    assert one != right
    asked = made({"first": 2, "cp": 2}, 4, **UNTURNED)
    for found in run_on_running_ranks(choices_of, asked, world_size=4)[2:]:
        assert found == one


@pytest.mark.parametrize(
    "language",
    [{"first": 2, "pp": 2}, {"first": 0, "tp": 2}, {"first": 2, "cp": 2}, {"first": 2, "dp": 2}],
    ids=["pp", "tp", "cp", "dp"],
)
def test_every_layout_chooses_the_same_tokens(language: dict[str, Any], right: Choices) -> None:
    size = language["first"] + 2
    replicas = language.get("dp", 1)
    assert len({token for row in right.values() for token in row}) > 2
    asked = made(dict(language), 4 // replicas)
    found = run_on_running_ranks(choices_of, asked, world_size=size)
    for rank in range(language["first"], size):
        assert found[rank] == {sample: right[sample] for sample in found[rank]}
    assert sorted({sample for each in found for sample in each}) == sorted(right)


def alone(**model: Any) -> Spec:
    modules = {"vision": box(0), "language": box(0, model=DECODER | model)}
    return spec(modules, microbatches=2, mbs=4, seq=24)


def of_equal_ones(made: Spec) -> list[int]:
    """Return what both ranks choose if each has the same logits for its half of the words."""
    with RankSession(Plan.of(made)) as session:
        tp = session.modules["language"].context.tp
        logits = torch.tensor([[1.0, 3.0, 3.0, 0.0], [2.0, 2.0, 2.0, 2.0], [0.0, 0.0, 0.0, 5.0]])
        return greedy_choice(logits, range(4 * tp.index, 4 * tp.index + 4), tp).tolist()


def test_of_equally_probable_words_the_first_is_chosen_whatever_rank_has_it() -> None:
    """One rank chooses so as well: a layout changes no answer."""
    two = spec({"language": box(0, tp=2, model={"vocab": 8, "vocab_multiple": 8})})
    assert run_on_running_ranks(of_equal_ones, two, world_size=2) == [[1, 0, 3]] * 2
