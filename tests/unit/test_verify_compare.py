"""When tensors and numbers of a layout equal the oracle's."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.support.graphs import talker
from tests.support.specs import box, spec

from mimo_launch.train.events import EvalFinished, StepFinished
from mimo_launch.verify.compare import (
    ModuleVerdict,
    TensorPiece,
    compare_numbers,
    compare_tensors,
    merge,
    unused_heads,
    unused_states,
)
from mimo_launch.verify.coverage import not_reached
from mimo_launch.verify.oracle_run import RightEvaluation, RightNumbers, RightRun
from mimo_launch.verify.training_proof import RankRun, compare_runs

WANT = {
    "vision.a.weight": torch.zeros(3, dtype=torch.float64),
    "language.a.weight": torch.full((4,), 2.0, dtype=torch.float64),
}


def with_noise(size: float) -> list[TensorPiece]:
    """Return the tensors of a rank on which those of vision are not zero."""
    return [
        TensorPiece(name, (0,) * tensor.ndim, tensor + size * name.startswith("vision"))
        for name, tensor in WANT.items()
    ]


@pytest.mark.parametrize(("size", "passes"), [(0.0, True), (1e-18, True), (1e-12, False)])
def test_gradients_that_are_zero_may_be_rounding_but_no_more(size: float, passes: bool) -> None:
    vision, language = compare_tensors("gradients", ("vision", "language"), with_noise(size), WANT)
    assert vision.passed is passes
    assert language.passed
    norm = compare_numbers("gradient norm", "vision", size * 3**0.5, 0.0, largest=4.0)
    assert norm.passed is passes


def test_it_is_said_of_which_module_every_gradient_is_zero() -> None:
    """With `text_only: 1`, or few samples with images, no row of an encoder reaches a loss."""
    none = compare_tensors("gradients", ("vision", "language"), with_noise(0.0), WANT)
    frozen = compare_tensors("gradients", ["drawer"], [], {})
    [remark] = not_reached(merge([*none, *frozen]))
    assert (remark.section, remark.key) == ("run", "gradients of `vision`")
    some = {name: tensor + 1 for name, tensor in WANT.items()}
    got = [TensorPiece(name, (0,), tensor) for name, tensor in some.items()]
    one = compare_tensors("gradients", ("vision", "language"), got, some)
    assert not list(not_reached(merge([*none, *one])))


@pytest.mark.parametrize(("size", "passes"), [(0.0, True), (5e-21, True), (1e-12, False)])
def test_so_may_those_of_an_expert_whose_tokens_reach_no_loss(size: float, passes: bool) -> None:
    """Their backward passes through sums over later documents, whose terms cancel."""
    name = "language.layers.0.moe.experts.4.up.weight"
    want = WANT | {name: torch.zeros(2, dtype=torch.float64)}
    got = [*with_noise(0.0), TensorPiece(name, (0,), want[name] + size)]
    [language] = compare_tensors("gradients", ["language"], got, want)
    assert language.passed is passes


@pytest.mark.parametrize(("size", "passes"), [(1e-13, True), (1e-11, False)])
def test_a_moment_in_which_gradients_cancel_is_judged_by_their_size(
    size: float, passes: bool
) -> None:
    """Here gradients are a thousand times as large as what is left of them."""
    name = "language.layers.2.mamba.D"
    first, summed = (torch.tensor([x], dtype=torch.float64) for x in (2e-5, 2e-2))
    root = summed.clone()
    moments = {"exp_avg": first + size, "exp_avg_sq": root**2}
    tensors = {key: [TensorPiece(name, (0,), values)] for key, values in moments.items()} | {
        "weights": []
    }
    right = RightRun(
        state={"exp_avg": {name: first}, "exp_avg_sq": {name: root}},
        summed={"exp_avg": {name: summed}},
    )
    verdicts = compare_runs(spec({"language": box(0)}), [RankRun([], tensors)], right)
    assert [v.what for v in verdicts if v.tensors] == ["moments after training"] * 2
    assert all(verdict.passed for verdict in verdicts) is passes
    assert not any(verdict.by_floor for verdict in verdicts)


@pytest.mark.parametrize("sizes", [(1.0, 0.0), (0.0, 1.0)])
def test_every_copy_of_a_part_is_judged(sizes: tuple[float, float]) -> None:
    """A rank with a wrong copy shows, whichever rank comes last."""
    got = [piece for size in sizes for piece in with_noise(size)]
    vision, language = compare_tensors("gradients", ("vision", "language"), got, WANT)
    assert (vision.passed, language.passed) == (False, True)


SHARES = {"digit_accuracy": "accuracy", "code_accuracy": "code_accuracy",
          "drawn_recognised": "recognised"}  # fmt: skip


@pytest.mark.parametrize("name", SHARES)
@pytest.mark.parametrize(
    ("got", "want", "passes"),
    [(0.5, 0.5, True), (0.5, 0.25, False), (None, 0.5, False), (0.5, None, False)],
)
def test_a_share_that_only_one_side_has_is_no_equal_one(
    name: str, got: float | None, want: float | None, passes: bool
) -> None:
    mine, right = dict.fromkeys(SHARES), dict.fromkeys(SHARES.values())
    told = EvalFinished(step=1, eval_loss=1.0, samples=1, **(mine | {name: got}))
    asked = RightEvaluation(1.0, {}, **(right | {SHARES[name]: want}))
    same = replace(told, **{name: want})

    def compared(*ranks: EvalFinished) -> bool:
        runs = [RankRun([each], {"weights": []}) for each in ranks]
        made, numbers = spec({"language": box(0)}), RightRun(evaluations={1: asked}, state={})
        return all(verdict.passed for verdict in compare_runs(made, runs, numbers))

    # On any rank: the others may have the right number.
    assert [compared(*ranks) for ranks in ((told,), (told, same), (same, told))] == [passes] * 3


def test_an_evaluation_or_a_loss_that_only_one_side_has_fails() -> None:
    """On any rank: others may have all of them."""
    losses = {"vision": 1.0, "language": 2.0}
    asked = RightRun(
        evaluations={1: RightEvaluation(3.0, losses, None, None, None)},
        state={},
    )
    told = EvalFinished(step=1, eval_loss=3.0, eval_losses=losses, digit_accuracy=None, samples=1)

    def passes(*ranks: list[EvalFinished]) -> bool:
        runs = [RankRun([*events], {"weights": []}) for events in ranks]
        made = spec({"language": box(0)})
        return all(verdict.passed for verdict in compare_runs(made, runs, asked))

    assert passes([told], [told])
    assert not passes([told], [])
    assert not passes([], [told])
    assert not passes([told], [replace(told, step=2)])
    for wrong in (None, {"vision": 1.0}, losses | {"drawer": 1.0}, losses | {"language": 1.0}):
        assert not passes([replace(told, eval_losses=wrong)])
        assert not passes([told], [replace(told, eval_losses=wrong)])


def test_a_number_that_is_none_equals_nothing() -> None:
    assert not compare_numbers("loss", "language", float("nan"), 1.0, largest=4.0).passed


def test_a_part_that_no_rank_holds_fails() -> None:
    name = "language.a.weight"
    halves = [TensorPiece(name, (start,), WANT[name][start : start + 2]) for start in (0, 2)]
    for got, passes in ((halves, True), (halves[:1], False), (halves[1:], False)):
        assert compare_tensors("gradients", ["language"], got, WANT)[0].passed is passes


@pytest.mark.parametrize(("weight", "unused"), [(0.0, ["language.head.weight"]), (0.5, [])])
def test_a_head_whose_loss_does_not_count_is_unused(weight: float, unused: list[str]) -> None:
    right = {"language.head.weight": torch.zeros(2), "language.a.weight": torch.zeros(2)}
    assert unused_heads(spec({"language": box(0, loss_weight=weight)}), right) == unused


@pytest.mark.parametrize(
    ("reads", "vision", "unused"),
    [("instead", False, True), ("instead", True, True), (True, False, False)],
)
def test_a_map_of_rows_of_images_is_unused_if_it_reads_none(
    reads: Any, vision: bool, unused: bool
) -> None:
    modules = {"language": box(0), "speech": box(0, **talker(reads_text=reads))}
    made = spec({**({"vision": box(0)} if vision else {}), **modules})
    maps = ["speech.project.states.up.weight", "speech.project.text.up.weight"]
    right = {name: torch.zeros(2) for name in maps}
    assert unused_states(made, right) == maps[: int(unused)]
    assert unused_states(made, {**right, maps[0]: torch.ones(2)}) == []


@pytest.mark.parametrize(
    ("size", "part", "counted", "passes"),
    [
        (1e-8, 0.0, 0, True),
        (1e-8, 1e-7, 0, False),
        (1e-13, 0.0, 0, True),
        (1e-13, 0.01, 0, False),
        (1e-15, 0.0, 1, False),
        (0.0, 0.0, 1, False),
    ],
)
def test_a_tensor_counts_as_too_small_where_a_hundredth_of_it_may_be_wrong(
    size: float, part: float, counted: int, passes: bool
) -> None:
    want = {
        "vision.a": torch.ones(1, dtype=torch.float64),
        "vision.b": torch.full((1,), size, dtype=torch.float64),
    }
    got = [
        TensorPiece("vision.a", (0,), want["vision.a"]),
        TensorPiece("vision.b", (0,), want["vision.b"] * (1 + part)),
    ]
    [found] = merge(compare_tensors("gradients", ["vision"], got, want))
    assert (found.by_floor, found.passed) == (counted, passes)


def test_a_map_that_reads_nothing_in_any_step_is_said() -> None:
    name, other = "speech.project.states.up.weight", "speech.norm.weight"

    def step(size: float) -> list[ModuleVerdict]:
        right = {name: torch.full((2,), size), other: torch.ones(2)}
        got = [TensorPiece(each, (0,), tensor) for each, tensor in right.items()]
        return compare_tensors("gradients", ["speech"], got, right, unused=[name])

    [remark] = not_reached(merge([*step(0.0), *step(0.0)]))
    assert remark.key == "gradients of `speech.project.states`"
    assert not list(not_reached(merge([*step(0.0), *step(1.0)])))
    assert not list(not_reached(merge([*step(1.0), *step(0.0)])))


def test_an_earlier_evaluation_that_is_missing_or_wrong_on_one_rank_fails() -> None:
    right = RightEvaluation(3.0, {}, None, None, None)
    asked = RightRun(evaluations={1: right, 2: right}, state={})
    first = EvalFinished(step=1, eval_loss=3.0, digit_accuracy=None, samples=1)
    second, wrong = replace(first, step=2), replace(first, eval_loss=4.0)

    def passes(*ranks: list[EvalFinished]) -> bool:
        runs = [RankRun([*events], {"weights": []}) for events in ranks]
        made = spec({"language": box(0)})
        return all(verdict.passed for verdict in compare_runs(made, runs, asked))

    assert passes([first, second], [first, second])
    assert not passes([second])
    assert not passes([wrong, second], [first, second])
    assert not passes([first, second], [wrong, second])


@pytest.mark.parametrize(
    "wrong",
    [
        {"loss": 4.0},
        {"losses": {"vision": 1.5, "language": 2.0}},
        {"losses": {"language": 2.0}},
        {"losses": {"vision": 1.0, "language": 2.0, "drawer": 0.5}},
        {"aux_loss": 0.5},
        {"aux_loss": None},
        {"grad_norm": 6.0},
        {"grad_norms": {"vision": 3.5, "language": 4.0}},
        {"grad_norms": {"language": 4.0}},
        {"lr": 0.2},
        {"lrs": {"language": 0.2}},
        {"lrs": {}},
        {"lrs": {"vision": 0.1, "language": 0.1}},
        {"tokens": 9},
        {"skipped": True},
    ],
    ids=str,
)
def test_a_number_of_a_step_that_is_missing_wrong_or_too_many_on_one_rank_fails(
    wrong: dict[str, object],
) -> None:
    """Vision is frozen, so that it has no learning rate."""
    losses, norms = {"vision": 1.0, "language": 2.0}, {"vision": 3.0, "language": 4.0}
    want = RightNumbers(
        loss=3.0, losses=losses, aux_loss=0.25, norms=norms, lr=0.1, lrs={"language": 0.1},
        tokens=8, skipped=False,
    )  # fmt: skip
    step = StepFinished(
        step=1, loss=3.0, losses=losses, aux_loss=0.25, grad_norm=5.0, grad_norms=norms, lr=0.1,
        lrs={"language": 0.1}, tokens=8, tokens_per_s=1.0, skipped=False,
    )  # fmt: skip
    experts = {"moe": {"experts": 4, "top_k": 2, "width": 32}}
    made = spec({"vision": box(0, frozen=True), "language": box(0, model=experts)})

    def passes(*steps: StepFinished) -> bool:
        runs = [RankRun([each], {"weights": []}) for each in steps]
        return all(v.passed for v in compare_runs(made, runs, RightRun(steps=[want], state={})))

    assert passes(step, step)
    assert not passes(replace(step, **wrong))
    assert not passes(step, replace(step, **wrong))
