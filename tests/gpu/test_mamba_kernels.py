"""The kernels of mamba-ssm and causal-conv1d against our own torch, outputs and gradients."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.support.gpu_ranks import DEVICE
from torch import Tensor

from mimo_launch.diag.installed import is_installed
from mimo_launch.launcher.run_on_ranks import Ranks
from mimo_launch.layers import ssd, ssd_kernels

pytestmark = pytest.mark.gpu

BATCH, LENGTH, HEADS, CHANNELS, GROUPS, STATE, CHUNK = 2, 200, 8, 64, 2, 64, 64
# The first call of a kind compiles and tunes a dozen kernels.
COMPILING_SECONDS = 300
BOUNDS = {torch.float32: 1e-3, torch.bfloat16: 2e-2}


def drawn(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, dtype=torch.float64).to(DEVICE, dtype)


def deviations(
    compute: Callable[..., Any], leaves: list[Tensor], reference: Callable[..., Any]
) -> list[float]:
    """Return relative differences of all outputs and gradients; the reference is in float64."""
    results = []
    for function, wide in ((compute, False), (reference, True)):
        given = [t.detach().double() if wide else t.detach() for t in leaves]
        given = [t.requires_grad_() for t in given]
        outs = function(*given)
        outs = outs if isinstance(outs, tuple) else (outs,)
        torch.manual_seed(1)
        weights = [torch.randn(out.shape, dtype=torch.float64).to(DEVICE) for out in outs]
        total = sum((w.to(out.dtype) * out).sum() for w, out in zip(weights, outs, strict=True))
        results.append([*(out.detach() for out in outs), *torch.autograd.grad(total, given)])
    return [
        float((mine.double() - theirs.double()).norm() / theirs.double().norm())
        for mine, theirs in zip(*results, strict=True)
    ]


def scans(dtype: torch.dtype, packed: bool, initial: bool) -> list[float]:
    """Return the deviations of the recurrence on this rank."""
    torch.manual_seed(0)
    shared = (BATCH, LENGTH, GROUPS, STATE)
    leaves = [
        drawn(BATCH, LENGTH, HEADS, CHANNELS, dtype=dtype),
        F.softplus(drawn(BATCH, LENGTH, HEADS, dtype=torch.float32) - 2),
        -drawn(HEADS, dtype=torch.float32).exp(),
        drawn(*shared, dtype=dtype),
        drawn(*shared, dtype=dtype),
        drawn(HEADS, dtype=torch.float32),
    ]
    if initial:
        leaves.append(drawn(BATCH, HEADS, CHANNELS, STATE, dtype=torch.float32))
    numbers = documents() if packed else None

    def run(module: Any) -> Callable[..., Any]:
        def scan(*given: Tensor) -> Any:
            first, start = ssd.SsdInputs(*given[:6]), given[6] if initial else None
            return module.ssd(first, chunk=CHUNK, documents_BS=numbers, initial_BHPK=start)

        return scan

    return deviations(run(ssd_kernels), leaves, run(ssd))


def convolutions(dtype: torch.dtype, packed: bool) -> list[float]:
    """Return the deviations of the convolution on this rank."""
    torch.manual_seed(0)
    leaves = [drawn(BATCH, LENGTH, 96, dtype=dtype), drawn(96, 4, dtype=dtype)]
    leaves.append(drawn(96, dtype=dtype))
    numbers = documents() if packed else None

    def run(module: Any) -> Callable[..., Any]:
        return lambda *given: module.causal_conv(*given, documents_BS=numbers)

    return deviations(run(ssd_kernels), leaves, run(ssd))


def documents() -> Tensor:
    starts = torch.rand(BATCH, LENGTH) < 0.03
    return starts.cumsum(dim=1).to(DEVICE)


@pytest.fixture(autouse=True)
def _kernels_are_there(device: str) -> None:
    if device == "cuda":
        for name in ("mamba_ssm", "causal_conv1d"):
            if not is_installed(name):
                pytest.skip(f"{name} is not installed")


@pytest.mark.parametrize(("packed", "initial"), [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("dtype", BOUNDS)
def test_the_kernel_is_the_recurrence(
    dtype: torch.dtype, packed: bool, initial: bool, ranks_of: Callable[[int], Ranks]
) -> None:
    [found] = ranks_of(1).run(scans, dtype, packed, initial, timeout_s=COMPILING_SECONDS)
    assert max(found) <= BOUNDS[dtype], found


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dtype", BOUNDS)
def test_the_kernel_is_the_convolution(
    dtype: torch.dtype, packed: bool, ranks_of: Callable[[int], Ranks]
) -> None:
    [found] = ranks_of(1).run(convolutions, dtype, packed, timeout_s=COMPILING_SECONDS)
    assert max(found) <= BOUNDS[dtype], found
