"""Computes the learning rate of a module at a step, a pure function of the spec.

Decides: the rate of each schedule; that a module without its own settings has the common ones, and
that 0 is a setting.
Relies on: nothing.
Leaves: setting it to `module_optimizers`.
"""

import math

from mimo_launch.spec.spec import LrSchedule, Spec


def rate_at(spec: Spec, step: int, module: str | None = None) -> float:
    """Return the learning rate of a module at a step (0-based); without one, the common rate."""
    common, steps = spec.optimizer, spec.train.steps
    peak, warmup = common.lr, common.schedule.warmup
    if module is not None:
        own = spec.modules[module].optimizer
        peak = peak if own.lr is None else own.lr
        warmup = warmup if own.warmup is None else own.warmup
    return learning_rate(peak, common.schedule, warmup, step, steps)


def learning_rate(peak: float, schedule: LrSchedule, warmup: int, step: int, steps: int) -> float:
    """Return the learning rate of a step (0-based) of a run of `steps`.

    Warm-up rises linearly and reaches the peak at its last step. Cosine falls to `min_lr` at the
    last step (arXiv:1608.03983); wsd stays at the peak and falls linearly over the last `decay`
    steps (arXiv:2404.06395).
    """
    if step < warmup:
        return peak * (step + 1) / warmup
    floor = min(schedule.min_lr, peak)
    if schedule.kind == "cosine":
        progress = (step - warmup) / max(1, steps - 1 - warmup)
        return floor + (peak - floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
    if schedule.kind == "wsd" and schedule.decay > 0:
        progress = (step - (steps - schedule.decay) + 1) / schedule.decay
        return peak + (floor - peak) * min(1.0, max(0.0, progress))
    return peak
