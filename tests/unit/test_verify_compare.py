"""When tensors and numbers of a layout equal the oracle's."""

import pytest
import torch
from tests.support.specs import box, spec

from mimo_launch.verify.compare import TensorPiece, compare_numbers, compare_tensors
from mimo_launch.verify.oracle_run import RightRun
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


def test_a_number_that_is_none_equals_nothing() -> None:
    assert not compare_numbers("loss", "language", float("nan"), 1.0, largest=4.0).passed
