"""Known ways to train wrongly although every gradient is right; the proof of training rejects them.

`TRAINING_BUGS` names for each bug a spec on which it matters and a function that plants it.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from inspect import signature
from typing import Any

import torch
from tests.support.planted_experts import mixture
from tests.support.planted_graphs import drawn
from tests.support.shapes import plant
from tests.support.specs import box, spec

from mimo_launch.kinds.mlp_shapes import RouterShape
from mimo_launch.layers.parameter_segments import local_tensor
from mimo_launch.optimizer.adamw import LocalAdamW
from mimo_launch.optimizer.module_optimizers import Updates
from mimo_launch.runtime.executor import Executor
from mimo_launch.spec.optimizers import LrSchedule, ModuleOptimizer
from mimo_launch.spec.spec import Spec
from mimo_launch.train import loop

# Settings of which each matters: nothing is a default, and 0 is a value.
OPTIMIZER = {
    "lr": 0.01, "betas": [0.7, 0.8], "eps": 1e-3, "weight_decay": 0.1, "clip": 0.2,
    "schedule": {"kind": "cosine", "warmup": 7, "min_lr": 1e-3},
}  # fmt: skip
EVAL = {"every": 10, "samples": 4, "at_start": True}


def settings(own: dict[str, Any] | None = None, **model: Any) -> Spec:
    """Vision and language on one rank, with optimizer settings of language's own."""
    modules = {
        "vision": box(0, optimizer={"lr": 0.02}),
        "language": box(0, model=model, optimizer=own or {}),
    }
    return spec(modules, mbs=2, optimizer=OPTIMIZER, train={"steps": 50}, eval=EVAL)


def without_images(grid: int = 1) -> Spec:
    """A tower that no step gives a gradient, beside language."""
    modules = {"vision": box(0, dp=grid), "language": box(grid, pp=grid)}
    return with_settings(spec(modules, microbatches=2, mbs=2, text_only=1.0))


def over_cp() -> Spec:
    """Packed records over cp, with shares of tokens, behind a tower that is fully sharded."""
    language = box(0, tp=2, cp=2, sequence_parallel=True)
    modules = {"vision": box(0, dp=4, sharding="full"), "language": language}
    return with_settings(spec(modules, microbatches=2, mbs=2, packing=True, max_images=2))


def behind_language() -> Spec:
    """Language and a generator, each with a loss, on one rank."""
    return with_settings(drawn())


def impatient() -> Spec:
    """Steps so large that held-out losses grow, which ends the run."""
    made = settings()
    assert made.eval is not None
    return made.replace(
        optimizer=made.optimizer.replace(kind="sgd", lr=4.0, clip=None, schedule=LrSchedule()),
        eval=made.eval.replace(stop_after=4),
        modules={n: each.replace(optimizer=ModuleOptimizer()) for n, each in made.modules.items()},
    )


def with_settings(made: Spec) -> Spec:
    """Return a spec with these settings and an evaluation."""
    data = made.model_dump(mode="json", by_alias=True)
    data |= {"optimizer": OPTIMIZER, "eval": EVAL}
    data["train"]["steps"] = 50
    return Spec.model_validate(data)


def rate_of_the_step_before() -> None:
    """Weights move by the rate of the step before, while the right one is told."""
    correct = Updates.learning_rates
    Updates.learning_rates = lambda self, step: correct(self, max(0, step - 1))


def setting_ignored(name: str) -> None:
    """AdamW keeps torch's default of a setting."""
    correct = LocalAdamW.__init__
    default = signature(torch.optim.AdamW).parameters[name].default

    def without(self: Any, groups: Any, settings: Any) -> None:
        correct(self, groups, settings.model_copy(update={name: default}))

    LocalAdamW.__init__ = without


def zero_taken_for_unset(name: str) -> None:
    """A setting of a module that is 0 falls back to the common one."""
    correct = Updates.__init__

    def falling_back(self: Updates, spec: Spec, modules: Any) -> None:
        changed = {}
        for key, module in spec.modules.items():
            own = module.optimizer.model_copy(
                update={name: getattr(module.optimizer, name) or None}
            )
            changed[key] = module.model_copy(update={"optimizer": own})
        correct(self, spec.model_copy(update={"modules": changed}), modules)

    Updates.__init__ = falling_back


def router_not_decayed() -> None:
    """Weight decay leaves routers out."""
    plant(RouterShape, decay=False)


def later_batches_weigh_as_the_first() -> None:
    """Every batch of an evaluation counts as many labels as the first one has."""
    correct, first = Executor.run_forward, []

    def forward(self: Any, program: Any, inputs: Any) -> Any:
        result = correct(self, program, inputs)
        first.append(inputs.data.num_labels)
        result.losses["language"] *= first[0] / inputs.data.num_labels
        return result

    Executor.run_forward = forward


def evaluation_moves_weights() -> None:
    """An evaluation in the middle of training changes what the next step starts from."""
    correct = loop.evaluate

    def moving(session: Any, reader: Any, samples: int, step: int, *of: Any) -> Any:
        found = correct(session, reader, samples, step, *of)
        if step < session.spec.train.steps:
            with torch.no_grad():
                for item in session.declared("language"):
                    item.parameter.mul_(1 + 1e-6)
        return found

    loop.evaluate = moving


def heldout_losses_of_each_other() -> None:
    """The held-out losses of two modules are told by each other's name."""
    correct = loop.evaluate

    def swapped(*args: Any) -> Any:
        found = correct(*args)
        losses = found.eval_losses or {}
        values = reversed(losses.values())
        return replace(found, eval_losses=dict(zip(losses, values, strict=True)) or None)

    loop.evaluate = swapped


def skipped_steps_count() -> None:
    """AdamW's bias correction counts steps that were skipped."""
    correct = Updates.apply

    def counting(self: Any, step: int, *, skip: Any = None, divisor: Any = None) -> None:
        correct(self, step, skip=skip, divisor=divisor)
        for optimizer in (each.torch for every in self.by_module.values() for each in every):
            for state in optimizer.state.values():
                state["step"] += skip

    Updates.apply = counting


def no_gradient_no_update() -> None:
    """A weight without a gradient in a step rests: no decay, no moments."""
    correct = Updates.apply

    def resting(self: Any, step: int, **rest: Any) -> None:
        for optimizer in (each.torch for every in self.by_module.values() for each in every):
            for parameter in (each for group in optimizer.param_groups for each in group["params"]):
                if not local_tensor(parameter.grad).any():
                    parameter.grad = None
        correct(self, step, **rest)

    Updates.apply = resting


def clipped_half() -> None:
    """The divisor of gradients is half of what it should be."""
    correct = Updates.apply

    def weaker(self: Any, step: int, *, skip: Any = None, divisor: Any = None) -> None:
        correct(self, step, skip=skip, divisor=(divisor / 2).clamp(min=1))

    Updates.apply = weaker


def no_end_without_a_better_one() -> None:
    """A run goes on although its evaluations get worse."""
    loop.waited_enough = lambda *_: False
    loop.has_ended = lambda spec, step, _: step >= spec.train.steps


TRAINING_BUGS: dict[str, tuple[Callable[[], None], Spec]] = {
    "rate of the step before": (rate_of_the_step_before, settings()),
    "eps ignored": (partial(setting_ignored, "eps"), settings()),
    "betas ignored": (partial(setting_ignored, "betas"), settings()),
    "decay of 0 taken for unset": (
        partial(zero_taken_for_unset, "weight_decay"), settings({"weight_decay": 0}),
    ),
    "warm-up of 0 taken for unset": (
        partial(zero_taken_for_unset, "warmup"), settings({"warmup": 0}),
    ),
    "rate of 0 taken for unset": (partial(zero_taken_for_unset, "lr"), settings({"lr": 0})),
    "router not decayed": (router_not_decayed, settings(**mixture())),
    "batches weigh as the first": (later_batches_weigh_as_the_first, settings()),
    "evaluation moves weights": (evaluation_moves_weights, settings()),
    "held-out losses of each other": (heldout_losses_of_each_other, behind_language()),
    "skipped steps count": (skipped_steps_count, settings()),
    "no end without a better one": (no_end_without_a_better_one, impatient()),
    "clipped half": (clipped_half, settings()),
    "no gradient, no update": (no_gradient_no_update, without_images()),
}  # fmt: skip
