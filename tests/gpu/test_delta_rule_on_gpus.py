"""The delta rule on a GPU against itself in float64, outputs and gradients."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from tests.gpu.test_mamba_kernels import COMPILING_SECONDS, deviations, drawn
from tests.support.gpu_ranks import DEVICE

from mimo_launch.launcher.run_on_ranks import Ranks
from mimo_launch.layers import delta_rule_kernels
from mimo_launch.layers.delta_rule import DeltaInputs, delta_rule
from mimo_launch.layers.sequence_contexts import Documents
from mimo_launch.models.language_input import document_lengths

pytestmark = pytest.mark.gpu

BATCH, LENGTH, HEADS, VALUES, GROUPS, KEYS, CHUNK = 2, 200, 8, 64, 4, 64, 64
BOUNDS = {torch.float32: 1e-4, torch.bfloat16: 2e-2}


def drawn_leaves(dtype: torch.dtype) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [
        drawn(BATCH, LENGTH, GROUPS, KEYS, dtype=dtype),
        drawn(BATCH, LENGTH, GROUPS, KEYS, dtype=dtype),
        drawn(BATCH, LENGTH, HEADS, VALUES, dtype=dtype),
        -F.softplus(drawn(BATCH, LENGTH, HEADS, dtype=torch.float32)),
        drawn(BATCH, LENGTH, HEADS, dtype=torch.float32).sigmoid(),
    ]


def kernels(packed: bool) -> list[float] | None:
    """Return the deviations of the kernels on this rank; None where they are not used."""
    if DEVICE == "cuda" and not delta_rule_kernels.are_usable(torch.device("cuda", 0)):
        return None
    leaves, documents = drawn_leaves(torch.bfloat16), None
    if packed:
        numbers = (torch.rand(BATCH, LENGTH) < 0.05).cumsum(dim=1)
        documents = Documents(numbers.to(DEVICE), document_lengths(numbers.numpy()))

    def compute(*given: torch.Tensor) -> torch.Tensor:
        return delta_rule_kernels.delta_rule(DeltaInputs(*given), chunk=CHUNK, documents=documents)

    def reference(*given: torch.Tensor) -> torch.Tensor:
        numbers = None if documents is None else documents.numbers
        return delta_rule(DeltaInputs(*given), chunk=CHUNK, documents_BS=numbers)

    return deviations(compute, leaves, reference)


def rules(dtype: torch.dtype, packed: bool) -> list[float]:
    """Return the deviations of the delta rule on this rank."""
    leaves = drawn_leaves(dtype)
    numbers = None
    if packed:
        starts = torch.rand(BATCH, LENGTH, device=DEVICE) < 0.05
        numbers = starts.cumsum(dim=1)

    def compute(*given: torch.Tensor) -> torch.Tensor:
        return delta_rule(DeltaInputs(*given), chunk=CHUNK, documents_BS=numbers)

    return deviations(compute, leaves, compute)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dtype", BOUNDS)
def test_the_delta_rule_is_that_of_float64(
    dtype: torch.dtype, packed: bool, ranks_of: Callable[[int], Ranks]
) -> None:
    """Its state is in fp32, so only inputs and outputs in bf16 are rounded."""
    [found] = ranks_of(1).run(rules, dtype, packed)
    assert max(found) < BOUNDS[dtype], found


@pytest.mark.parametrize("packed", [False, True])
def test_the_kernels_are_the_delta_rule(packed: bool, ranks_of: Callable[[int], Ranks]) -> None:
    """They keep states between chunks in bf16."""
    [found] = ranks_of(1).run(kernels, packed, timeout_s=COMPILING_SECONDS)
    if found is None:
        pytest.skip("fla-core is not installed, or not right for this GPU")
    assert max(found) < BOUNDS[torch.bfloat16], found
