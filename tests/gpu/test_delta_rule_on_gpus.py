"""The delta rule on a GPU against itself in float64, outputs and gradients."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from tests.gpu.test_mamba_kernels import deviations, drawn
from tests.support.gpu_ranks import DEVICE

from mimo_launch.launcher.run_on_ranks import Ranks
from mimo_launch.layers.delta_rule import delta_rule

pytestmark = pytest.mark.gpu

BATCH, LENGTH, HEADS, VALUES, GROUPS, KEYS, CHUNK = 2, 200, 8, 64, 4, 64, 64
BOUNDS = {torch.float32: 1e-4, torch.bfloat16: 2e-2}


def rules(dtype: torch.dtype, packed: bool) -> list[float]:
    """Return the deviations of the delta rule on this rank."""
    torch.manual_seed(0)
    leaves = [
        drawn(BATCH, LENGTH, GROUPS, KEYS, dtype=dtype),
        drawn(BATCH, LENGTH, GROUPS, KEYS, dtype=dtype),
        drawn(BATCH, LENGTH, HEADS, VALUES, dtype=dtype),
        -F.softplus(drawn(BATCH, LENGTH, HEADS, dtype=torch.float32)),
        drawn(BATCH, LENGTH, HEADS, dtype=torch.float32).sigmoid(),
    ]
    numbers = None
    if packed:
        starts = torch.rand(BATCH, LENGTH, device=DEVICE) < 0.05
        numbers = starts.cumsum(dim=1)

    def compute(*given: torch.Tensor) -> torch.Tensor:
        return delta_rule(*given, chunk=CHUNK, documents_BS=numbers)

    return deviations(compute, leaves, compute)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dtype", BOUNDS)
def test_the_delta_rule_is_that_of_float64(
    dtype: torch.dtype, packed: bool, ranks_of: Callable[[int], Ranks]
) -> None:
    """Its state is in fp32, so only inputs and outputs in bf16 are rounded."""
    [found] = ranks_of(1).run(rules, dtype, packed)
    assert max(found) < BOUNDS[dtype], found
