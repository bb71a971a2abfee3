"""Plain gradient descent, by torch's fused kernel.

Decides: that there is no momentum.
Relies on: torch's SGD, which takes the divisor and the skip flag as tensors.
Leaves: which weights it updates to `module_optimizers`.
"""

from typing import Any

import torch
from torch import Tensor

from mimo_launch.comm.torch_internals import LocalKernels
from mimo_launch.spec.optimizers import OptimizerSpec


class LocalSGD(LocalKernels, torch.optim.SGD):
    """SGD on local shards."""

    def __init__(self, groups: list[dict[str, Any]], settings: OptimizerSpec) -> None:
        super().__init__(groups, fused=True)

    @staticmethod
    def initial_state(weight: Tensor) -> dict[str, Tensor]:
        """Return the state of a weight: none."""
        return {}
