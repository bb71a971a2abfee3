"""Attention over lists by torch's flash attention: as exact as by masks, for every size of head.

The bar is the error of masks in bf16 against float64: lists may have 1.5 times it. With -s the
errors of both are printed.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.support import engine_blocks, list_times
from tests.support.engine_blocks import DOCUMENTS, ONE_KV_HEAD, PACKED_CP2, VIT, Case
from tests.support.gpu_ranks import DEVICE
from tests.support.lists import LISTS, MASKS, loop_over_sequences
from tests.support.shapes import block_shape
from torch import Tensor

from mimo_launch.layers.parallel_context import SINGLE
from mimo_launch.layers.varlen_attention import inside_documents, takes_lists

pytestmark = pytest.mark.gpu
needs_gpu = pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")

KEY_BIAS = ".attention.k.bias"  # Without positions its gradient is exactly zero.
ONE_GPU = {
    name: case for name, case in engine_blocks.ONE_GPU.items() if case.documents or "ragged" in name
} | {"decoder, one kv head, packed": Case(ONE_KV_HEAD, documents=DOCUMENTS)}
TWO_GPUS = PACKED_CP2 | {
    name: engine_blocks.TWO_GPUS[name]
    for name in (
        "decoder, tp2, packed", "vit, tp2", "vit, tp2, sequence parallel", "vit, cp2",
        "vit, cp2, a rank of padding",
    )
}  # fmt: skip
WIDE, SHARED = (
    block_shape(width=1024, heads=8, kv_heads=kv_heads, head_size=128, mlp=1408)
    for kv_heads in (8, 2)
)
PACKED_32K = Case(
    WIDE, num_tokens=32768, batch=1, documents=(9000, 700, 6000, 2500, 5000, 1800, 4000, 3768)
)
TIMED = {
    "8 documents, 8 key/value heads": (1, PACKED_32K),
    "8 documents, 2 key/value heads": (1, replace(PACKED_32K, shape=SHARED)),
    "8 documents, cp2": (2, replace(PACKED_32K, cp=2)),
    "1 document, cp2": (2, replace(PACKED_32K, documents=(32768,), cp=2)),
}


@pytest.mark.parametrize(
    ("gpus", "name"), [*((1, name) for name in ONE_GPU), *((2, name) for name in TWO_GPUS)]
)
def test_a_block_is_as_exact_as_with_masks(
    gpus: int, name: str, run_on: Callable[..., Any], device: str
) -> None:
    """Output, gradient of the input, and of every canonical tensor."""
    case = (ONE_GPU | TWO_GPUS)[name]
    [errors, *_] = run_on(gpus, engine_blocks.block_errors, case, (MASKS, LISTS), device)
    over = engine_blocks.above_bar(errors, MASKS, LISTS)
    assert [tensor for tensor in over if not tensor.endswith(KEY_BIAS)] == []
    assert all(errors[LISTS][tensor] < 1e-2 for tensor in over)


def deviations(
    dtype: torch.dtype, head_size: int, kv_heads: int, reach: int | None = None
) -> list[float]:
    """Return how far the kernel is from the loop in float64: output and gradients of q, k and v.

    With a `reach`, each token attends to as many tokens, and scores have another scale.
    """
    before, scale = (-1, None) if reach is None else (reach - 1, 0.1)
    torch.manual_seed(0)
    heads = (8, kv_heads, kv_heads)
    leaves = [torch.randn(1, 300, each, head_size, device=DEVICE).to(dtype) for each in heads]
    lengths = (1, 190, 64, 45)
    bounds = torch.tensor([0, 1, 191, 255, 300], dtype=torch.int32)
    g_NhK = torch.randn(300, 8, head_size, device=DEVICE).to(dtype)

    def by_kernel(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        assert takes_lists(q[0])
        return inside_documents(q, k, v, lengths, SINGLE, reach=reach, scale=scale)

    def by_loop(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        loop = loop_over_sequences(lower_right=True)
        lists = (bounds, bounds), (190, 190)
        return loop((q[0], k[0], v[0]), *lists, scale=scale, window=(before, 0))[0]

    results = []
    for function, wide in ((by_kernel, dtype), (by_loop, torch.float64)):
        given = [leaf.detach().to(wide).requires_grad_() for leaf in leaves]
        out = function(*given)
        grads = torch.autograd.grad(out, given, g_NhK.to(wide))
        results.append([out.detach(), *grads])
    return [
        float((mine.double() - theirs).norm() / theirs.norm())
        for mine, theirs in zip(*results, strict=True)
    ]


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kv_heads", [8, 2, 1])
@pytest.mark.parametrize("head_size", [8, 40, 64, 72, 80, 96, 128, 192, 256])
def test_every_size_of_head_is_right(
    dtype: torch.dtype, kv_heads: int, head_size: int, run_on: Callable[..., Any]
) -> None:
    [found] = run_on(1, deviations, dtype, head_size, kv_heads)
    assert max(found) < 1e-2


@needs_gpu
@pytest.mark.parametrize("reach", [2, 40, 100, 1000])
@pytest.mark.parametrize("head_size", [64, 256])
def test_sliding_windows_are_right(head_size: int, reach: int, run_on: Callable[..., Any]) -> None:
    [found] = run_on(1, deviations, torch.bfloat16, head_size, 2, reach)
    assert max(found) < 1e-2


def kinds_that_take_lists() -> list[bool]:
    """Return whether attention goes over lists for sizes and types that the kernel does not do."""
    kinds = [(20, torch.bfloat16), (264, torch.bfloat16), (64, torch.float32), (64, torch.float64)]
    return [takes_lists(torch.ones(4, 2, size, dtype=kind, device=DEVICE)) for size, kind in kinds]


def test_other_sizes_and_types_keep_their_masks(run_on: Callable[..., Any]) -> None:
    assert run_on(1, kinds_that_take_lists) == [[False] * 4]


@needs_gpu
@pytest.mark.parametrize("gpus", [1, 2])
def test_new_lists_are_made_without_waiting(gpus: int, run_on: Callable[..., Any]) -> None:
    case = Case(VIT, documents=DOCUMENTS, cp=gpus)
    run_on(gpus, list_times.waits_for_device, case, LISTS, (256, 17, 1, 238))


@needs_gpu
@pytest.mark.parametrize("name", TIMED)
def test_lists_take_less_time_and_memory_than_masks(
    name: str, run_on: Callable[..., Any], say: Callable[[str], None]
) -> None:
    gpus, case = TIMED[name]
    found = {}
    for way in (MASKS, LISTS):
        [found[way], *_] = run_on(gpus, list_times.milliseconds_and_gib, case, way)
        told = "out of memory"
        if found[way] is not None:
            told = "{:.2f} ms, {:.2f} GiB".format(*found[way])
        say(f"attention, 32,768 tokens, {name}, {way}: {told}")
    assert found[LISTS] is not None
    if found[MASKS] is not None:
        assert all(mine < theirs for mine, theirs in zip(found[LISTS], found[MASKS], strict=True))
