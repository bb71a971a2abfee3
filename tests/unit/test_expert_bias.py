"""Biases of experts: what counts as load, how they move, and that nothing else moves them."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from mimo_launch.kinds.mlp_shapes import RouterShape
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.parameter_segments import declared_parameters
from mimo_launch.layers.router import Router, TokenShares, move_biases
from mimo_launch.spec.layers import Moe

CONTEXT = ParallelContext()
# Four tokens, the last one padding, choose two experts each: 0 and 1, 0 and 1, 0 and 2, 2 and 3.
SCORES = torch.tensor([[9.0, 8, 1, 0], [9, 8, 1, 0], [9, 1, 8, 0], [0, 1, 9, 8]])
TOKENS = TokenShares(1, torch.zeros(4, dtype=torch.long), torch.tensor([1 / 3, 1 / 3, 1 / 3, 0]))


def made(rate: float | None) -> Router:
    """Return a router whose logits are its inputs."""
    moe = {"experts": 4, "top_k": 2, "width": 1, "score": "sigmoid", "bias_update_rate": rate}
    router = Router(CONTEXT, RouterShape(Moe.model_validate(moe), 4))
    with torch.no_grad():
        router.weight.copy_(torch.eye(4))
        if router.expert_bias is not None:
            router.expert_bias.values.zero_()
    return router


@pytest.mark.parametrize("recompute", [False, True])
def test_tokens_are_counted_once_in_the_backward(recompute: bool) -> None:
    """Padding is no token; activations may be computed twice."""
    router = made(0.5)
    for _ in range(2):
        x = SCORES.clone().requires_grad_()
        if recompute:
            weights = checkpoint(lambda x: router(x, TOKENS).weights, x, use_reentrant=False)
        else:
            weights = router(x, TOKENS).weights
        weights.sum().backward()
    assert router.expert_bias.load.tolist() == [6, 4, 2, 0]
    move_biases([router.expert_bias], CONTEXT, None)
    assert router.expert_bias.values.tolist() == [-0.5, -0.5, 0.5, 0.5]


def test_a_forward_alone_counts_nothing() -> None:
    router = made(0.5)
    with torch.no_grad():
        router(SCORES, TOKENS)
    router(SCORES, TOKENS)
    assert router.expert_bias.load.tolist() == [0] * 4


def test_a_skipped_step_and_an_even_load_move_nothing() -> None:
    bias = made(0.5).expert_bias
    bias.load += torch.tensor([3, 1, 2, 2])
    move_biases([bias], CONTEXT, torch.ones(()))
    assert bias.values.tolist() == [0] * 4
    move_biases([bias], CONTEXT, torch.zeros(()))
    assert bias.values.tolist() == [-0.5, 0.5, 0, 0]


def test_a_bias_changes_choices_but_no_weight_of_an_answer() -> None:
    plain, biased = made(None), made(0.0)
    assert plain.expert_bias is None
    before = plain(SCORES, None)
    same = biased(SCORES, None)
    assert torch.equal(before.experts, same.experts)
    assert torch.equal(before.weights, same.weights)
    biased.expert_bias.values += torch.tensor([0, 0, 0, 2.0])
    after = biased(SCORES, None)
    assert after.experts[:3].tolist() == [[3, 0]] * 3
    chosen = SCORES.sigmoid().gather(1, after.experts)
    assert torch.equal(after.weights, chosen / chosen.sum(dim=-1, keepdim=True))


def test_a_bias_has_a_name_and_no_gradient() -> None:
    names = {p.name: p.segment for d in declared_parameters("m", made(0.0)) for p in d.placed}
    assert list(names) == ["m.weight", "m.expert_bias"]
    assert not names["m.expert_bias"].trains
