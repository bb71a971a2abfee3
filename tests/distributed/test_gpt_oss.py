"""The parts of a GPT-OSS over every layout: sinks, YaRN, clamped gates, biases; its folders."""

from typing import Any

import pytest
import torch
from tests.support.lists import by_lists
from tests.support.planted_sinks import EXPERTS, sunk
from tests.support.proof import failures, verdicts
from tests.support.specs import BEHIND_VISION

from mimo_launch.layers.pointwise import clamped_swiglu

LAYOUTS: dict[str, dict[str, Any]] = {
    **BEHIND_VISION,
    "experts over ep": {"dp": 2, **EXPERTS},
    "experts split, tp 2": {"tp": 2, **EXPERTS, "experts": {"tp": 2}},
    "experts split, tp 2, sequence parallel": {
        "tp": 2, "dp": 2, "sequence_parallel": True, **EXPERTS, "experts": {"tp": 2, "ep": 2},
    },
}  # fmt: skip
OFTEN = {"tp 2, cp 2, documents", "experts split, tp 2"}


@pytest.mark.parametrize(
    "layout",
    [pytest.param(x, marks=() if x in OFTEN else pytest.mark.sweep) for x in LAYOUTS],
)
def test_gradients_with_sinks_are_those_of_one_rank(layout: str) -> None:
    assert failures(verdicts(sunk(**LAYOUTS[layout]))) == []


@pytest.mark.parametrize(
    "layout",
    [pytest.param(x, marks=() if x == "cp 4, packed" else pytest.mark.sweep) for x in LAYOUTS],
)
def test_sinks_over_lists_are_those_of_masks(layout: str) -> None:
    """With a loop for the kernel, from which the backward makes the weights anew."""
    assert failures(verdicts(sunk(**LAYOUTS[layout]), prepare=by_lists)) == []


def test_clamped_gates_are_those_of_transformers() -> None:
    """On both sides of every bound; gradients, too."""
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts

    class Theirs:
        alpha, limit = 1.702, 7.0

    x = (torch.randn(64, 16, dtype=torch.float64) * 8).requires_grad_()
    pairs = x.unflatten(1, (2, 8)).transpose(1, 2).flatten(1)
    grad = torch.randn(64, 8, dtype=torch.float64)
    outs = clamped_swiglu(x), GptOssExperts._apply_gate(Theirs(), pairs)
    results = [(out, *torch.autograd.grad(out, x, grad, retain_graph=True)) for out in outs]
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)
    assert (x.abs() > 7).any()
