"""Sums behind the norm of a step."""

import pytest
import torch

from mimo_launch.optimizer.gradients import num_zeros, sum_of_squares


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_squares_of_gradients_of_any_type_are_summed_in_float64(dtype: torch.dtype) -> None:
    """Summed in bf16 they would be off by 1e-3, in float32 by 1e-8."""
    torch.manual_seed(0)
    tensors = [torch.randn(size).to(dtype) for size in (10_000, 1, 77)]
    exact = sum(float(t.double().square().sum()) for t in tensors)
    found = sum_of_squares(tensors, torch.device("cpu"))
    assert found.dtype == torch.float64
    assert float(found) == pytest.approx(exact, rel=1e-13)


def test_no_gradients_have_no_squares() -> None:
    """Still in float64: what is summed with others decides the type of all."""
    found = sum_of_squares([], torch.device("cpu"))
    assert (found.dtype, float(found)) == (torch.float64, 0.0)


def test_more_zeros_are_counted_than_float32_can_count() -> None:
    """2^24 + 1 would be 2^24."""
    many = torch.zeros(1, dtype=torch.bfloat16).expand(2**24)
    found = num_zeros([torch.tensor([0.0, 1.0]), many], torch.device("cpu"))
    assert int(found) == 2**24 + 1
