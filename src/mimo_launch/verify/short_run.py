"""Makes a run short enough to prove, keeping what can go wrong about its settings.

Decides: how few steps, and when they are saved; that the last one is evaluated. What is 0 stays 0,
what is not does not become it, and warm-ups that differ still do. Rates, moments, decay and
clipping stay.
Relies on: a spec that `shrink` made small.
Leaves: when a step is skipped and when the run stops to `training`.
"""

from collections.abc import Iterable

from mimo_launch.spec.model import CheckpointSpec, EvalSpec, OptimizerSpec, Spec

NUM_STEPS = 5
SAVE_EVERY = 3
# Below it an element whose gradient is zero moves by noise: 1e-17 over this, times the rate.
MIN_EPS = 1e-8
MAX_DECAY = 2


def short_run(asked: Spec, small: Spec) -> Spec:
    """Return `small`, which `shrink` made of `asked`, with a short form of its training."""
    own = {name: module.optimizer for name, module in asked.modules.items()}
    common = asked.optimizer.schedule
    few = _few([common.warmup, *(each.warmup or 0 for each in own.values())])
    modules = {}
    for name, module in small.modules.items():
        warmup = own[name].warmup
        update = {"warmup": None if warmup is None else few[warmup]}
        modules[name] = module.model_copy(update={"optimizer": own[name].model_copy(update=update)})
    schedule = common.model_copy(
        update={"warmup": few[common.warmup], "decay": min(MAX_DECAY, common.decay)}
    )
    return small.model_copy(
        update={
            "modules": modules,
            "optimizer": _optimizer(asked.optimizer).model_copy(update={"schedule": schedule}),
            "train": small.train.model_copy(
                update={"steps": NUM_STEPS, "max_skipped": max(2, asked.train.max_skipped)}
            ),
            # After the last step, of two batches, with as many labels as they happen to have.
            "eval": asked.eval and EvalSpec(samples=small.batch.global_ + 1),
            "checkpoint": (asked.saving or CheckpointSpec()).model_copy(
                update={"every": SAVE_EVERY}
            ),
        }
    )


def _optimizer(asked: OptimizerSpec) -> OptimizerSpec:
    return asked.model_copy(update={"eps": max(MIN_EPS, asked.eps)})


def _few(warmups: Iterable[int]) -> dict[int, int]:
    """Return small numbers for warm-ups, in the same order, which end before the run does."""
    longer = sorted({warmup for warmup in warmups if warmup > 0})
    most = NUM_STEPS - MAX_DECAY
    return {0: 0} | {warmup: min(warmup, 2 + i, most) for i, warmup in enumerate(longer)}
