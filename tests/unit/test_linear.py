"""Weight gradients that add up inside matrix products."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mimo_launch.comm.torch_internals import FsdpParameter
from mimo_launch.layers.linear import GradAccumulator, linear

BF16 = torch.bfloat16


def operands(seed: int) -> tuple[Tensor, Tensor]:
    """Return x [64, 24] and the gradient [64, 40] of what a layer made of it, in bf16."""
    made = torch.Generator().manual_seed(seed)
    return torch.randn(64, 24, generator=made).to(BF16), torch.randn(64, 40, generator=made).to(
        BF16
    )


def record(*, reduces: bool) -> tuple[SimpleNamespace, GradAccumulator]:
    """Return FSDP2's record of a parameter, as far as it is used, and what adds to it."""
    parameter = SimpleNamespace(unsharded_accumulated_grad=None, reduce_dtype=torch.float32)
    group = SimpleNamespace(reduce_grads=reduces)
    return parameter, GradAccumulator(FsdpParameter(parameter, group))


def test_gradients_of_microbatches_add_up_without_rounding_to_bf16() -> None:
    parameter, gradients = record(reduces=False)
    for seed in range(8):
        x, grad = operands(seed)
        assert gradients.add(grad, x) is None
    got = parameter.unsharded_accumulated_grad
    want = sum((g.double().t() @ x.double() for x, g in map(operands, range(8))), torch.zeros(()))
    rounded = sum((g.t() @ x for x, g in map(operands, range(8))), torch.zeros((), dtype=BF16))
    assert got.dtype == torch.float32
    assert (got - want).norm() <= 1e-6 * want.norm()
    assert (rounded - want).norm() > 1e-3 * want.norm()


def test_the_gradient_of_a_steps_only_backward_goes_to_autograd() -> None:
    parameter, gradients = record(reduces=True)
    x, grad = operands(0)
    got = gradients.add(grad, x)
    assert got is not None
    assert got.dtype == BF16
    assert parameter.unsharded_accumulated_grad is None
    # After others the last one is added to them, whoever reduces.
    parameter.unsharded_accumulated_grad = torch.zeros(40, 24)
    assert gradients.add(grad, x) is None


@pytest.mark.parametrize("trained", [True, False])
def test_other_gradients_are_those_of_a_linear_layer(trained: bool) -> None:
    parameter, gradients = record(reduces=False)
    x, grad = operands(3)
    found = []
    for to in (gradients, None):
        made = torch.Generator().manual_seed(9)
        leaf = x.clone().requires_grad_()
        weight = torch.randn(40, 24, generator=made).to(BF16).requires_grad_(trained)
        bias = torch.zeros(40, dtype=BF16, requires_grad=True)
        out = linear(leaf, weight, bias, to)
        out.backward(grad)
        assert torch.equal(out, F.linear(x, weight, bias))
        found.append((leaf.grad, bias.grad))
        assert (weight.grad is None) == (to is not None or not trained)
    for mine, theirs in zip(*found, strict=True):
        assert torch.equal(mine, theirs)
    assert (parameter.unsharded_accumulated_grad is not None) == trained
