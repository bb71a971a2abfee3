"""Attention of a cp rank's chunks on a GPU: as exact as with a mask, and faster.

The bar is the error of a mask in bf16 against float64: chunks may have 1.5 times it. With -s the
errors and times of both are printed. One GPU computes the part of each cp rank.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.support.gpu_ranks import DEVICE
from torch import Tensor

from mimo_launch.comm.process_groups import Group
from mimo_launch.layers.chunk_attention import over_chunks, takes_chunks
from mimo_launch.layers.pointwise import called
from mimo_launch.layers.sequence_contexts import SequenceContext

pytestmark = [
    pytest.mark.gpu, pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU"),
]  # fmt: skip
CP = 2
Attend = Callable[[Tensor, Tensor, Tensor, int], Tensor]
RunOn = Callable[..., list[Any]]


def _by_chunks(q: Tensor, k: Tensor, v: Tensor, index: int) -> Tensor:
    group = Group(tuple(range(CP)), index, None)
    return over_chunks(q, k, v, group, scale=None, fused=called)


def _by_mask(q: Tensor, k: Tensor, v: Tensor, index: int) -> Tensor:
    seq, outs = k.shape[1], []
    held = SequenceContext(q.shape[0], q.device, None, None, None)
    for number, part in zip((index, 2 * CP - 1 - index), q.chunk(2, dim=1), strict=True):
        end = (number + 1) * seq // (2 * CP)
        turned = (x.transpose(1, 2) for x in (part, k[:, :end], v[:, :end]))
        mask = held.lower_right(part.shape[1], end)
        out = F.scaled_dot_product_attention(*turned, attn_mask=mask, enable_gqa=True)
        outs.append(out.transpose(1, 2))
    return torch.cat(outs, dim=1)


def _made(seq: int, head_size: int, kv_heads: int, index: int) -> list[Tensor]:
    generator = torch.Generator("cuda").manual_seed(seq + head_size + index)
    shapes = (seq // CP, 8, head_size), (seq, kv_heads, head_size), (seq, kv_heads, head_size)
    return [torch.randn(2, *shape, device="cuda", generator=generator) for shape in shapes]


def _results(attend: Attend, inputs: list[Tensor], index: int, dtype: torch.dtype) -> list[Tensor]:
    taken = [x.bfloat16().to(dtype).requires_grad_() for x in inputs]
    out = attend(*taken, index)
    grad = torch.randn(out.shape, device="cuda", generator=torch.Generator("cuda").manual_seed(1))
    return [out, *torch.autograd.grad(out, taken, grad.bfloat16().to(dtype))]


def _errors(head_size: int, kv_heads: int, index: int) -> list[list[float]]:
    """Return the errors of a mask and of chunks: of the output, and of each gradient."""
    inputs = _made(1024, head_size, kv_heads, index)
    assert takes_chunks(inputs[0].bfloat16(), inputs[1].bfloat16())
    exact = _results(_by_mask, inputs, index, torch.float64)
    found = [_results(way, inputs, index, torch.bfloat16) for way in (_by_mask, _by_chunks)]
    return [[_error(*both) for both in zip(each, exact, strict=True)] for each in found]


def _error(found: Tensor, exact: Tensor) -> float:
    return ((found.detach().double() - exact.detach()).norm() / exact.detach().norm()).item()


@pytest.mark.parametrize("index", range(CP))
@pytest.mark.parametrize("kv_heads", [8, 2])
@pytest.mark.parametrize("head_size", [64, 72, 80, 96, 128])
def test_chunks_are_as_exact_as_a_mask(
    head_size: int, kv_heads: int, index: int, run_on: RunOn, say: Callable[[str], None]
) -> None:
    [errors] = run_on(1, _errors, head_size, kv_heads, index)
    say(f"heads of {head_size}, {kv_heads} of keys, rank {index}: {errors}")
    assert all(mine <= 1.5 * bar for bar, mine in zip(*errors, strict=True))


def _takes_chunks_in_fp32() -> bool:
    q, k, _ = _made(256, 64, 8, 0)
    return takes_chunks(q, k)


def test_other_types_keep_their_masks(run_on: RunOn) -> None:
    assert run_on(1, _takes_chunks_in_fp32) == [False]


def _times() -> list[float]:
    """Return the milliseconds of a mask and of chunks."""
    inputs, times = _made(32768, 128, 2, 1), []
    for way in (_by_mask, _by_chunks):
        taken = [x.bfloat16().requires_grad_() for x in inputs]
        times.append(_milliseconds(lambda way=way, taken=taken: way(*taken, 1), taken))
    return times


def test_chunks_of_long_sequences_take_less_time_than_masks(
    run_on: RunOn, say: Callable[[str], None]
) -> None:
    [times] = run_on(1, _times)
    say(f"32,768 tokens, cp 2, rank 1: mask {times[0]:.2f} ms, chunks {times[1]:.2f} ms")
    assert times[1] < 0.75 * times[0]


def _milliseconds(run: Callable[[], Any], inputs: list[Tensor]) -> float:
    """Return the median of a forward and backward."""
    found = []
    for _ in range(10):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        out = run()
        torch.autograd.grad(out, inputs, torch.ones_like(out))
        end.record()
        torch.cuda.synchronize()
        found.append(start.elapsed_time(end))
    return sorted(found)[5]
