"""Norms and GELU by torch's kernels are as exact on GPUs as the compiled passes in their place.

The bar is the error of the compiled pass against float64: the kernel may have 1.5 times it.
"""

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
import torch
from tests.support.gpu_ranks import DEVICE
from torch import Tensor

from mimo_launch.kinds.shapes import NormShape
from mimo_launch.layers import parallel_context
from mimo_launch.layers.norms import MOST_TO_ADD_ALONE, Norm
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.pointwise import gelu, gelu_tanh
from mimo_launch.layers.shaped_layer import built

pytestmark = pytest.mark.gpu
TOKENS, WIDTH = 300, 2560
Pass = Callable[[ParallelContext, list[Tensor]], tuple[Tensor, ...]]


def normed(context: ParallelContext, given: list[Tensor]) -> tuple[Tensor, ...]:
    return (_norm(context, given[2])(given[0]),)


def added(context: ParallelContext, given: list[Tensor]) -> tuple[Tensor, ...]:
    total, out = _norm(context, given[2]).after(given[0], given[1])
    return total, out


def _norm(context: ParallelContext, weight: Tensor) -> Any:
    layer = built(context, NormShape(WIDTH, "rms", eps=1e-6))
    layer._parameters["weight"] = weight
    return layer


PASSES: dict[str, Pass] = {
    "norm": normed,
    "sum and norm": added,
    "gelu": lambda context, given: (context.fused(gelu, given[0]),),
    "gelu by tanh": lambda context, given: (context.fused(gelu_tanh, given[0]),),
}


def deviations(name: str, dtype: torch.dtype) -> tuple[list[float], list[float]]:
    """Return the errors of outputs and gradients, by torch's kernel and by a compiled pass."""
    torch.manual_seed(0)
    given = [torch.randn(TOKENS, WIDTH, device=DEVICE).to(dtype) for _ in range(2)]
    given.append(1 + torch.rand(WIDTH, device=DEVICE).to(dtype))
    grads = [torch.randn(TOKENS, WIDTH, device=DEVICE).to(dtype) for _ in range(2)]

    def run(kind: torch.dtype, owner: str) -> list[Tensor]:
        context = ParallelContext(
            device=torch.device(DEVICE), dtype=kind, compiled=kind == dtype, owner=owner
        )
        leaves = [each.to(kind).requires_grad_() for each in given]
        outs = PASSES[name](context, leaves)
        of = [grad.to(kind) for grad in grads[: len(outs)]]
        found = torch.autograd.grad(outs, leaves, of, allow_unused=True)
        return [each.detach().double() for each in (*outs, *found) if each is not None]

    exact = run(torch.float64, "exact")
    errors = []
    for by_kernel, kernels in ((True, parallel_context.KERNELS), (False, frozenset())):
        with (
            patch.object(Norm, "_has_kernel", lambda layer, x, has=by_kernel: has),
            patch.object(parallel_context, "KERNELS", kernels),
        ):
            mine = run(dtype, f"kernel {by_kernel}")
        pairs = zip(mine, exact, strict=True)
        errors.append([float((each - best).norm() / best.norm()) for each, best in pairs])
    return errors[0], errors[1]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", PASSES)
def test_a_kernel_is_as_exact_as_the_compiled_pass(
    name: str, dtype: torch.dtype, run_on: Callable[..., Any]
) -> None:
    [(by_kernel, compiled)] = run_on(1, deviations, name, dtype)
    assert all(mine <= 1.5 * bar + 1e-7 for mine, bar in zip(by_kernel, compiled, strict=True))


def kinds_of_norms() -> list[bool]:
    """Return whether torch's kernel computes a norm: of one type, of two, with an offset, big."""
    context = ParallelContext(device=torch.device(DEVICE), dtype=torch.bfloat16, compiled=True)
    x = torch.ones(2, WIDTH, dtype=torch.bfloat16, device=DEVICE)
    plain, shifted, layer = (
        built(context, NormShape(WIDTH, kind, offset=offset))
        for kind, offset in (("rms", 0.0), ("rms", 1.0), ("layer", 0.0))
    )
    return [
        plain._has_kernel(x),
        plain._has_kernel(x.float()),
        shifted._has_kernel(x),
        layer._has_kernel(x),
    ]


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
def test_norms_with_an_offset_of_two_types_or_with_a_mean_stay_compiled(
    run_on: Callable[..., Any],
) -> None:
    assert run_on(1, kinds_of_norms) == [[True, False, False, False]]


def test_a_kernel_adds_alone_up_to_this_many_numbers() -> None:
    assert 4096 * 2560 <= MOST_TO_ADD_ALONE < 8192 * 4096
