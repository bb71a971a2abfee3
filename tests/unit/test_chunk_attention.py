"""Attention of a cp rank's chunks is attention with a mask: outputs and gradients in float64."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mimo_launch.comm.process_groups import Group
from mimo_launch.layers import chunk_attention
from mimo_launch.layers.chunk_attention import over_chunks, takes_chunks
from mimo_launch.layers.pointwise import called
from mimo_launch.layers.sequence_contexts import zigzag_positions

BATCH, SEQ, HEADS, SIZE = 2, 24, 4, 8
CPU = torch.device("cpu")


def _inputs(
    kv_heads: int, value_size: int, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, ...]:
    torch.manual_seed(0)
    shapes = (HEADS, SIZE), (kv_heads, SIZE), (kv_heads, value_size)
    drawn = (torch.randn(BATCH, SEQ, *shape, dtype=torch.float64) for shape in shapes)
    return tuple(x.to(dtype).requires_grad_() for x in drawn)


def _with_mask(q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> Tensor:
    turned = (x.transpose(1, 2) for x in (q, k, v))
    out = F.scaled_dot_product_attention(*turned, is_causal=True, scale=scale, enable_gqa=True)
    return out.transpose(1, 2)


def _over_ranks(q: Tensor, k: Tensor, v: Tensor, scale: float | None, cp: int) -> Tensor:
    """Return the outputs of all cp ranks at their positions."""
    out = q.new_zeros(BATCH, SEQ, HEADS, v.shape[3])
    for index in range(cp):
        held = zigzag_positions(SEQ, index, cp, CPU)
        group = Group(tuple(range(cp)), index, None)
        own = over_chunks(q[:, held], k, v, group, scale=scale, fused=called)
        out = out.index_add(1, held, own)
    return out


@pytest.mark.parametrize("cp", [2, 3, 4, 12])
@pytest.mark.parametrize(
    ("kv_heads", "value_size", "scale"), [(4, SIZE, None), (2, SIZE, 0.7), (1, 4, None)]
)
def test_chunks_are_attention_with_a_mask(
    cp: int, kv_heads: int, value_size: int, scale: float | None
) -> None:
    """Outputs of all ranks, and the sums of their gradients of queries, keys and values."""
    inputs = _inputs(kv_heads, value_size)
    assert takes_chunks(inputs[0], inputs[1])
    expected, found = _with_mask(*inputs, scale), _over_ranks(*inputs, scale, cp)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-13)
    grad = torch.randn_like(expected)
    both = (torch.autograd.grad(out, inputs, grad) for out in (expected, found))
    for one, other in zip(*both, strict=True):
        torch.testing.assert_close(other, one, rtol=0, atol=1e-12)


def test_a_merge_of_16_bits_loses_no_more_than_rounding() -> None:
    """Parts are merged in fp32: as near to float64 as attention with a mask, within a half."""
    exact = _with_mask(*_inputs(2, SIZE), None)
    rounded = _inputs(2, SIZE, torch.bfloat16)
    errors = [
        (out.double() - exact).norm()
        for out in (_with_mask(*rounded, None), _over_ranks(*rounded, None, 4))
    ]
    assert errors[1] < 1.5 * errors[0]


def test_great_scores_overflow_nothing() -> None:
    """A part that hardly counts has a share of 0, and no NaN."""
    q, k, v = _inputs(4, SIZE)
    found = _over_ranks(q * 1e4, k, v, None, 2)
    torch.testing.assert_close(found, _with_mask(q * 1e4, k, v, None), rtol=0, atol=1e-9)
    assert all(x.isfinite().all() for x in torch.autograd.grad(found.sum(), (q, k, v)))


@pytest.mark.parametrize("share", [0.0, 1.0, 0.5])
def test_a_wrong_share_is_seen(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropping a part, or counting both alike, is far from the truth."""

    def merged(
        out: Tensor, total: Tensor, other: Tensor, other_total: Tensor
    ) -> tuple[Tensor, Tensor]:
        return share * out + (1 - share) * other, torch.logaddexp(total, other_total)

    monkeypatch.setattr(chunk_attention, "_merged", merged)
    inputs = _inputs(4, SIZE)
    found = _over_ranks(*inputs, None, 2)
    assert (found - _with_mask(*inputs, None)).abs().max() > 1e-3


def test_parts_in_16_bits_are_merged_in_32() -> None:
    """Rounded once, at the end."""
    torch.manual_seed(0)
    out, other = (torch.randn(2, 3, 5, 8).bfloat16() for _ in range(2))
    total, other_total = (torch.randn(2, 3, 5) for _ in range(2))
    share = torch.sigmoid(total - other_total)[..., None]
    expected = other.float() + share * (out.float() - other.float())
    found, _ = chunk_attention._merged(out, total, other, other_total)
    assert torch.equal(found, expected.bfloat16())
