"""The grouped product of experts is the loop over them, gradients included."""

import pytest
import torch

from mimo_launch.layers import experts


@pytest.mark.parametrize("counts", [(7, 0, 9, 4), (0, 0, 20, 0)])
def test_one_product_for_all_experts_is_one_for_each(
    counts: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """bf16; an expert without tokens has a gradient, which is zero."""
    x = torch.randn(20, 32, dtype=torch.bfloat16, requires_grad=True)
    weights = torch.randn(4, 16, 32, dtype=torch.bfloat16, requires_grad=True)
    runs = experts.ExpertRuns.of(counts, x.device)
    out = experts.grouped_linear(x, weights, runs)
    above = torch.randn_like(out)
    want = torch.autograd.grad(out, (x, weights), above)
    monkeypatch.setattr(experts, "_is_grouped", lambda *_: True)
    grouped = experts.grouped_linear(x, weights, runs)
    got = torch.autograd.grad(grouped, (x, weights), above)
    torch.testing.assert_close(grouped, out, rtol=1e-2, atol=1e-2)
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-2)
    assert got[1][counts.index(0)].count_nonzero() == 0
