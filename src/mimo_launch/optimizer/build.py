"""One optimizer per module, its settings merged from the spec.

Decides: parameter groups, what decays, when a step is skipped.
Relies on: torch's fused AdamW and SGD on sharded parameters.
Leaves: gradients to `gradients`.
"""

from dataclasses import dataclass

import torch

from mimo_launch.modules.build import RankModule
from mimo_launch.optimizer.lr import learning_rate
from mimo_launch.spec.model import ModuleOptimizer, OptimizerSpec, Spec


@dataclass(slots=True)
class ModuleUpdate:
    """The optimizer of one module and the settings that move with the step."""

    peak: float
    warmup: int
    optimizer: torch.optim.Optimizer


class Updates:
    """The optimizers of this rank's modules."""

    def __init__(self, spec: Spec, modules: dict[str, RankModule]) -> None:
        self.spec = spec
        self.by_module = {
            name: _module_update(spec.optimizer, spec.modules[name].optimizer, module)
            for name, module in modules.items()
            if not module.layout.frozen
        }

    def learning_rates(self, step: int) -> dict[str, float]:
        """Return the learning rate of each of this rank's modules at a step."""
        schedule, steps = self.spec.optimizer.schedule, self.spec.train.steps
        return {
            name: learning_rate(update.peak, schedule, update.warmup, step, steps)
            for name, update in self.by_module.items()
        }

    def apply(self, step: int) -> None:
        """Update every weight with the gradients as they are."""
        rates = self.learning_rates(step)
        for name, update in self.by_module.items():
            for group in update.optimizer.param_groups:
                group["lr"] = rates[name]
            update.optimizer.step()

    def clear(self) -> None:
        """Drop all gradients; moments and step counts stay."""
        for update in self.by_module.values():
            update.optimizer.zero_grad(set_to_none=True)


def _module_update(common: OptimizerSpec, own: ModuleOptimizer, module: RankModule) -> ModuleUpdate:
    decay = common.weight_decay if own.weight_decay is None else own.weight_decay
    declared = [d for d in module.declared() if d.parameter.requires_grad]
    groups = [
        {"params": [d.parameter for d in declared if d.decay], "weight_decay": decay},
        {"params": [d.parameter for d in declared if not d.decay], "weight_decay": 0.0},
    ]
    peak = common.lr if own.lr is None else own.lr
    optimizer: torch.optim.Optimizer
    if common.kind == "adamw":
        optimizer = torch.optim.AdamW(
            groups, lr=peak, betas=common.betas, eps=common.eps, fused=True
        )
    else:
        optimizer = torch.optim.SGD(groups, lr=peak, foreach=True)
    warmup = common.schedule.warmup if own.warmup is None else own.warmup
    return ModuleUpdate(peak, warmup, optimizer)
