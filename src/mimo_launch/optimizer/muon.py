"""Muon (kellerjordan.github.io/posts/muon): moves a matrix along its momentum, made orthogonal.

Decides: momentum, Newton-Schulz, and the scale of Moonlight (arXiv:2502.16982), which makes an
update as large as AdamW's; that weights fused in a layer are separate matrices.
Relies on: `whole_matrices` to bring a matrix to one rank and its direction back.
Leaves: which weights are matrices to `kinds`; all other weights to AdamW.

torch.optim.Muon does the same on one rank, in bf16 only; a proof needs float64.
"""

from math import sqrt
from typing import Any

import torch
from torch import Tensor

from mimo_launch.comm.process_groups import GridSet
from mimo_launch.comm.torch_internals import zeros_like
from mimo_launch.layers.parameter_segments import local_tensor
from mimo_launch.models.build import RankModule
from mimo_launch.optimizer.whole_matrices import parts_of, replace_whole
from mimo_launch.spec.optimizers import MUON, OptimizerSpec

COEFFICIENTS = 3.4445, -4.7750, 2.0315
# The smallest norm to divide by, as in torch.optim.Muon.
EPS = 1e-7
# Makes the root mean square of an update about as large as AdamW's.
SCALE = 0.2


class LocalMuon(torch.optim.Optimizer):
    """Muon on local shards; `orthogonalise` comes before each step."""

    def __init__(self, groups: list[dict[str, Any]], settings: OptimizerSpec) -> None:
        super().__init__(groups, {"lr": settings.lr})
        self.settings, self.found_inf = settings, None
        self._directions: dict[Tensor, Tensor] = {}

    @staticmethod
    def initial_state(weight: Tensor) -> dict[str, Tensor]:
        """Return the state that the first update would find; `step` stays 0 (see `step`)."""
        step = torch.zeros((), dtype=torch.float32, device=weight.device)
        return {"step": step, **{name: zeros_like(weight) for name in MUON.state}}

    @torch.no_grad()
    def orthogonalise(
        self, module: RankModule, grids: GridSet, skip: Tensor, divisor: Tensor | None
    ) -> None:
        """Replace each gradient, divided by `divisor`, by a direction; no gradient is left.

        Momentum stays as it is if `skip` is 1.

        Ranks: collective over the ranks that hold a stage.
        """
        self._directions = {
            weight: self._ahead(weight, skip, divisor)
            for group in self.param_groups
            for weight in group["params"]
            if weight.grad is not None
        }
        parts = list(parts_of(module, grids, self._directions))
        replace_whole(parts, self._orthogonal, module.context.compute_dtype)
        for part in parts:
            part.values.mul_(SCALE * sqrt(max(part.weight.shape)))

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Move each weight along its direction; decay it.

        Updates are not counted: if AdamW goes on from a checkpoint, its moments begin at 0.
        """
        for group in self.param_groups:
            for weight in filter(self._directions.__contains__, group["params"]):
                local = local_tensor(weight)
                taken = 1.0 if self.found_inf is None else 1 - self.found_inf.to(local.dtype)
                self.state[weight]["step"].zero_()
                local.mul_(1 - group["lr"] * group["weight_decay"] * taken)
                local.sub_(self._directions[weight] * (group["lr"] * taken))
        self._directions = {}

    def _ahead(self, weight: Any, skip: Tensor, divisor: Tensor | None) -> Tensor:
        """Update the momentum; return it, or Nesterov's look-ahead, in the gradient's memory."""
        if weight not in self.state:
            self.state[weight] = self.initial_state(weight)
        momentum = local_tensor(self.state[weight]["momentum_buffer"])
        grad, weight.grad = local_tensor(weight.grad), None
        if divisor is not None:
            grad.div_(divisor)
        grad.masked_fill_(skip.bool(), 0)
        momentum.lerp_(grad, (1 - self.settings.momentum) * (1 - skip.to(grad.dtype)))
        if self.settings.nesterov:
            return grad.lerp_(momentum, self.settings.momentum)
        return grad.copy_(momentum)

    def _orthogonal(self, matrices: list[Tensor]) -> list[Tensor]:
        """Return matrices made orthogonal; matrices of one shape share each kernel."""
        by_shape: dict[torch.Size, list[int]] = {}
        for place, matrix in enumerate(matrices):
            by_shape.setdefault(matrix.shape, []).append(place)
        found: dict[int, Tensor] = {}
        for places in by_shape.values():
            stack = torch.stack([matrices[place] for place in places])
            found |= zip(places, orthogonalised(stack, self.settings.ns_steps), strict=True)
        return [found[place] for place in range(len(matrices))]


def orthogonalised(matrices_nAB: Tensor, steps: int) -> Tensor:
    """Return matrices [n, A, B] with singular values near 1, by `steps` of Newton-Schulz."""
    (a, b, c), is_tall = COEFFICIENTS, matrices_nAB.shape[1] > matrices_nAB.shape[2]
    x = matrices_nAB.mT if is_tall else matrices_nAB
    x = x / x.flatten(1).norm(dim=1).clamp(min=EPS)[:, None, None]
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if is_tall else x
