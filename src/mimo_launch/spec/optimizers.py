"""Optimizers: the keys of their section, and what each update rule needs, as a table.

Decides: keys, defaults and limits; the tensors that a rule keeps for each weight, its passes over
memory, the weights that it takes, and the rules of each `kind`, in the order in which they choose
weights.
Relies on: `base`; no torch.
Leaves: the rate of each step to `optimizer.module_optimizers`, the update itself to the file of
`optimizer` that `made_by` names.
"""

from collections.abc import Callable, Iterable
from math import ceil, floor
from typing import Annotated, Literal

from pydantic import Field

from mimo_launch.diag.frozen import frozen
from mimo_launch.spec.base import NonNegative, Steps, Strict, part_of_run

OptimizerName = Literal["adamw", "sgd", "muon"]


@frozen(kw_only=True)
class UpdateRule:
    """One way to update weights; `title` is its name in messages.

    `made_by` is the class of torch's optimizer, as `package.module:Class`. `state` names the
    tensors, each like its weight, that stay between steps; without any, updates are not counted.
    `passes`: how many numbers per number of a weight are read and written by an update and the norm
    before it. `settings` are the keys of `optimizer` that only some rules read. With
    `matrices_only`, the rule after it in a list takes all other weights; with `whole_matrices`, an
    update needs the whole gradient of a matrix, gathered over tp and shards, and takes `flops` for
    a matrix of so many rows and columns. Its state `may_offload` to the host.
    """

    title: str
    made_by: str
    state: tuple[str, ...] = ()
    passes: int
    settings: tuple[str, ...] = ()
    matrices_only: bool = False
    whole_matrices: bool = False
    may_offload: bool = False
    flops: "Callable[[OptimizerSpec, int, int], float] | None" = None


# The norm reads each gradient once. AdamW reads weight, gradient and two moments, and writes all
# but the gradient; SGD reads weight and gradient and writes the weight.
ADAMW = UpdateRule(
    title="AdamW",
    made_by="mimo_launch.optimizer.adamw:LocalAdamW",
    state=("exp_avg", "exp_avg_sq"),
    passes=7 + 1,
    settings=("betas", "eps"),
    may_offload=True,
)
SGD = UpdateRule(title="SGD", made_by="mimo_launch.optimizer.sgd:LocalSGD", passes=3 + 1)


def _newton_schulz(settings: "OptimizerSpec", rows: int, columns: int) -> float:
    """Return the FLOPs of Newton-Schulz: in a step, three products with a Gram matrix."""
    short, long = sorted((rows, columns))
    return settings.ns_steps * (4 * short**2 * long + 2 * short**3)


# Muon reads the gradient, updates the momentum, writes the direction over the gradient, sends it
# and gets it back, scales it, and decays and moves the weight.
MUON = UpdateRule(
    title="Muon",
    made_by="mimo_launch.optimizer.muon:LocalMuon",
    state=("momentum_buffer",),
    passes=15 + 1,
    settings=("momentum", "nesterov", "ns_steps"),
    matrices_only=True,
    whole_matrices=True,
    flops=_newton_schulz,
)
RULES: dict[OptimizerName, tuple[UpdateRule, ...]] = {
    "adamw": (ADAMW,),
    "sgd": (SGD,),
    "muon": (MUON, ADAMW),
}
# The names of all state, for readers of checkpoints that another optimizer may have saved.
STATE = tuple(dict.fromkeys(n for rules in RULES.values() for rule in rules for n in rule.state))


def rule_for(rules: Iterable[UpdateRule], *, is_matrix: bool) -> UpdateRule:
    """Return the first rule that takes a weight."""
    return next(rule for rule in rules if is_matrix or not rule.matrices_only)


class ModuleOptimizer(Strict):
    """Optimizer settings of one module that differ from the common ones."""

    kind: OptimizerName | None = Field(None, description="Update rule of this module.")
    lr: NonNegative | None = Field(None, description="Peak learning rate of this module.")
    weight_decay: NonNegative | None = Field(None, description="Weight decay of this module.")
    warmup: Steps | None = Field(
        None, description="Warmup steps of this module, or a percentage of the run's."
    )


class LrSchedule(Strict):
    """Learning rate over the run, as a factor of `lr`."""

    kind: Literal["constant", "cosine", "wsd", "linear", "inverse_sqrt"] = Field(
        "constant",
        description="`wsd` is warmup, stable, decay (linear over `decay` steps). `cosine` and "
        "`linear` fall from the end of the warmup to the last step. `inverse_sqrt`: `lr` x the "
        "root of (warmup steps / step), where no warmup counts as 1.",
    )
    warmup: Steps = Field(
        0, description="Linear warmup steps; `3%`: that part of the run's steps, rounded up."
    )
    decay: Steps = Field(
        0,
        description="Decay steps at the end of `wsd`; `20%`: that part of the run's steps, rounded "
        "down.",
    )
    min_lr: NonNegative = Field(
        0.0,
        description="Learning rate at the end of cosine, wsd and linear, and the lowest one of "
        "inverse_sqrt.",
    )

    def warmup_steps(self, steps: int, own: int | str | None = None) -> int:
        """Return the warmup steps in a run of `steps`; `own` is the `warmup` of a module."""
        return ceil(part_of_run(self.warmup if own is None else own, steps))

    def decay_steps(self, steps: int) -> int:
        """Return the decay steps in a run of `steps`."""
        return floor(part_of_run(self.decay, steps))


class DecaySpec(Strict):
    """Weight decay beyond matrices."""

    embeddings: bool = Field(
        False,
        description="Also decay embeddings of tokens (a `tied` output layer with them; any other "
        "one always decays) and of codes, tables of positions, class tokens and queries.",
    )


class OptimizerSpec(Strict):
    """The update rule, common to all modules unless a module overrides it."""

    kind: OptimizerName = Field(
        "adamw",
        description="Update rule. `muon` is for the matrices inside a model; embeddings, output "
        "layers, norms, biases and all other weights follow AdamW.",
    )
    lr: NonNegative = Field(3e-4, description="Peak learning rate.")
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = Field(
        (0.9, 0.95), description="AdamW's decay rates of the two moments.", strict=False
    )
    eps: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        1e-8, description="AdamW's epsilon, added to the denominator."
    )
    momentum: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.95, description="Muon's decay rate of the momentum."
    )
    nesterov: bool = Field(
        True, description="Muon's direction looks one gradient ahead of the momentum."
    )
    ns_steps: Annotated[int, Field(ge=1, lt=100)] = Field(
        5, description="Muon's Newton-Schulz iterations in each update."
    )
    weight_decay: NonNegative = Field(
        0.0,
        description="Decoupled weight decay; never applied to norms, biases and the `A_log`, `D` "
        "and `dt_bias` of Mamba heads; applied to embeddings as `decay` says.",
    )
    decay: DecaySpec = Field(
        DecaySpec.model_construct(), description="What weight decay applies to besides matrices."
    )
    clip: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        None,
        description="Clip gradients to this norm, over all modules; `null`: no clipping.",
    )
    offload: bool = Field(
        False,
        description="Keep AdamW's moments in the memory of the host; an update copies them to the "
        "GPU and back. The momentum of Muon stays on GPUs.",
    )
    schedule: LrSchedule = Field(
        LrSchedule.model_construct(),
        description="Learning rate over the run.",
    )

    def rules(self, own: ModuleOptimizer) -> tuple[UpdateRule, ...]:
        """Return a module's update rules; each weight follows the first that takes it."""
        return RULES[own.kind or self.kind]
