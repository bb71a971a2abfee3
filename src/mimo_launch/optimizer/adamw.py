"""AdamW (arXiv:1711.05101), by torch's fused kernel.

Decides: the state of a weight that has not been updated.
Relies on: torch's AdamW, which takes the divisor and the skip flag as tensors.
Leaves: which weights it updates to `module_optimizers`.
"""

from typing import Any

import torch
from torch import Tensor

from mimo_launch.comm.torch_internals import LocalKernels, zeros_like
from mimo_launch.spec.optimizers import ADAMW, OptimizerSpec


class LocalAdamW(LocalKernels, torch.optim.AdamW):
    """AdamW on local shards."""

    def __init__(self, groups: list[dict[str, Any]], settings: OptimizerSpec) -> None:
        super().__init__(groups, betas=settings.betas, eps=settings.eps, fused=True)

    @staticmethod
    def initial_state(weight: Tensor) -> dict[str, Tensor]:
        """Return the state that the first update would make."""
        step = torch.zeros((), dtype=torch.float32, device=weight.device)
        return {"step": step, **{name: zeros_like(weight) for name in ADAMW.state}}
