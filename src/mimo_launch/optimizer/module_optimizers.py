"""Updates each module with its own optimizers, with settings merged from the spec.

Decides: which rule updates a parameter and whether it decays; how an update is scaled or skipped
on the device alone; that expert biases and FP8 scales are updated with the weights; the rate of
each schedule; that a module without its own settings uses the common ones, and that 0 is a setting;
that a gradient of 0, as in a step that does not reach a weight, is like any other: decay and
moments act.
Relies on: `spec.optimizers` for the rules, and a file of this room for each.
Leaves: gradients, the divisor and the skip flag to `gradients`.
"""

import math
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from mimo_launch.comm import torch_internals
from mimo_launch.layers.parameter_segments import local_tensor
from mimo_launch.layers.router import Router, move_biases
from mimo_launch.models.build import RankModule
from mimo_launch.spec.optimizers import (
    LrSchedule,
    UpdateRule,
    rule_for,
)
from mimo_launch.spec.spec import Spec

# The numbers of weights with state on the device at a time, if it lies on the host.
AT_ONCE = 2**28


@dataclass(frozen=True, slots=True)
class RuleOptimizer:
    """The optimizer of the weights of a module that follow one rule.

    `torch` works like torch's fused optimizers: it reads `found_inf` and `grad_scale`. Its state
    may lie `on_host`.
    """

    rule: UpdateRule
    torch: Any
    on_host: bool = False

    def states(self) -> dict[Tensor, dict[str, Tensor]]:
        """Return the state of each weight; a weight without an update gets its initial state."""
        if not self.rule.state:
            return {}
        for weight in (each for group in self.torch.param_groups for each in group["params"]):
            if weight not in self.torch.state:
                first = self.torch.initial_state(weight)
                self.torch.state[weight] = torch_internals.on_host(first) if self.on_host else first
        if self.on_host and torch.cuda.is_available():
            # The last update may still be on its way.
            torch.cuda.current_stream().synchronize()
        found: dict[Tensor, dict[str, Tensor]] = self.torch.state
        return found


class Updates:
    """The optimizers of this rank's modules."""

    def __init__(self, spec: Spec, modules: dict[str, RankModule]) -> None:
        self.spec, self.modules = spec, modules
        self.by_module = {
            name: _optimizers_of(spec, module)
            for name, module in modules.items()
            if not module.layout.frozen
        }
        self._fp8 = [m.context.fp8 for m in modules.values() if m.context.fp8 is not None]
        # The expert biases that move, beside routers that train, in the same order on all ranks.
        self._biases = [
            (
                modules[name].context,
                tuple(
                    each.expert_bias
                    for network in modules[name].stages.values()
                    for each in network.modules()
                    if isinstance(each, Router) and each.weight.requires_grad
                    if each.expert_bias is not None and each.expert_bias.rate
                ),
            )
            for name in self.by_module
        ]

    def learning_rates(self, step: int) -> dict[str, float]:
        """Return the learning rate of each of this rank's modules at a step."""
        return {name: rate_at(self.spec, step, name) for name in self.by_module}

    def apply(
        self, step: int, *, skip: Tensor | None = None, divisor: Tensor | None = None
    ) -> None:
        """Update every weight with its gradient divided by `divisor`, unless `skip` is 1.

        A skip leaves weights, moments and update counts as they are, and may change the gradients.
        Both are scalars on the device, `skip` in float32, `divisor` in float64; the host waits for
        neither.

        Ranks: collective over the ranks of a stage with FP8 or with expert biases that move.
        """
        rates = self.learning_rates(step)
        for name, optimizers in self.by_module.items():
            for optimizer in (each.torch for each in optimizers):
                for group in optimizer.param_groups:
                    group["lr"] = rates[name]
                optimizer.found_inf = skip
                optimizer.grad_scale = None if divisor is None else _scale(optimizer, divisor)
                optimizer.step()
        for context, biases in self._biases:
            if biases:
                move_biases(biases, context, skip)
        for fp8 in self._fp8:
            fp8.update(skip)

    def clear(self) -> None:
        """Drop all gradients and expert loads; moments and step counts stay."""
        for optimizers in self.by_module.values():
            for each in optimizers:
                each.torch.zero_grad(set_to_none=True)
        for _, biases in self._biases:
            for bias in biases:
                bias.load.zero_()


def _scale(optimizer: torch.optim.Optimizer, divisor: Tensor) -> Tensor | None:
    """Return the divisor in float32 for a fused optimizer, or None if it is applied here.

    float32 is too coarse for gradients in float64, so they are divided here.
    """
    exact = [
        local_tensor(parameter.grad)
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.grad is not None and parameter.dtype == divisor.dtype
    ]
    if not exact:
        return divisor.float()
    torch_internals.divide_(exact, divisor)
    return None


def _optimizers_of(spec: Spec, module: RankModule) -> list[RuleOptimizer]:
    """Return an optimizer for each rule of a module; `Updates.apply` sets the rates of steps."""
    common, own = spec.optimizer, spec.modules[module.name].optimizer
    rate = common.weight_decay if own.weight_decay is None else own.weight_decay
    taken = {rule: (list[Tensor](), list[Tensor]()) for rule in module.layout.rules}
    for each in module.declared():
        if each.parameter.requires_grad:
            decays = each.decays(embeddings=common.decay.embeddings)
            rule = rule_for(module.layout.rules, is_matrix=each.is_matrix)
            taken[rule][not decays].append(each.parameter)
    optimizers = []
    for rule, (decayed, others) in taken.items():
        if not decayed and not others:
            continue
        file, _, name = rule.made_by.partition(":")
        make = getattr(import_module(file), name)
        on_host = spec.offloads_moments(module.name) and rule.may_offload
        groups = [
            {"params": part, "weight_decay": decay}
            for weights, decay in ((decayed, rate), (others, 0.0))
            for part in (_parts(weights) if on_host else [weights])
        ]
        made = make(groups, common)
        if on_host:
            made.on_host = True
        optimizers.append(RuleOptimizer(rule, made, on_host))
    return optimizers


def _parts(weights: list[Tensor]) -> list[list[Tensor]]:
    """Return weights in parts of about `AT_ONCE` numbers, and at least one part."""
    parts, size = [list[Tensor]()], 0
    for weight in weights:
        number = local_tensor(weight).numel()
        if parts[-1] and size + number > AT_ONCE:
            parts.append([])
            size = 0
        parts[-1].append(weight)
        size += number
    return parts


def rate_at(spec: Spec, step: int, module: str | None = None) -> float:
    """Return the learning rate of a module at a step (0-based); without one, the common rate."""
    common, steps = spec.optimizer, spec.train.steps
    peak, own_warmup = common.lr, None
    if module is not None:
        own = spec.modules[module].optimizer
        peak, own_warmup = peak if own.lr is None else own.lr, own.warmup
    warmup = common.schedule.warmup_steps(steps, own_warmup)
    return learning_rate(peak, common.schedule, warmup, step, steps)


def learning_rate(peak: float, schedule: LrSchedule, warmup: int, step: int, steps: int) -> float:
    """Return the learning rate of a step (0-based) of a run of `steps`.

    Warm-up rises linearly and reaches the peak at its last step. Cosine falls to `min_lr` at the
    last step (arXiv:1608.03983), and so does linear; wsd stays at the peak and falls linearly over
    the last `decay` steps (arXiv:2404.06395); inverse_sqrt falls with the root of the number of
    steps (arXiv:1706.03762), no lower than `min_lr`.
    """
    if step < warmup:
        return peak * (step + 1) / warmup
    floor = min(schedule.min_lr, peak)
    progress = min(1.0, (step - warmup) / max(1, steps - 1 - warmup))
    if schedule.kind == "cosine":
        return floor + (peak - floor) * 0.5 * (1 + math.cos(math.pi * progress))
    if schedule.kind == "linear":
        return peak + (floor - peak) * progress
    if schedule.kind == "inverse_sqrt":
        return max(floor, peak * math.sqrt(max(1, warmup) / (step + 1)))
    if schedule.kind == "wsd" and (decay := schedule.decay_steps(steps)):
        progress = (step - (steps - decay) + 1) / decay
        return peak + (floor - peak) * min(1.0, max(0.0, progress))
    return peak
