"""What each optimizer needs, without torch: a table, one entry per update rule.

Decides: the tensors that a rule keeps for each weight, its passes over memory, the weights that it
takes, and the rules of each `optimizer.kind`, in the order in which they choose weights.
Relies on: nothing.
Leaves: the update itself to the file of `optimizer` that `made_by` names.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

OptimizerName = Literal["adamw", "sgd"]


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateRule:
    """One way to update weights.

    `made_by` is the class of torch's optimizer, as `package.module:Class`. `state` names the
    tensors, each like its weight, that stay between steps; without any, updates are not counted.
    `passes`: how many numbers per number of a weight are read and written by an update and the norm
    before it. `settings` are the keys of `optimizer` that only some rules read. With
    `matrices_only`, the rule after it in a list takes all other weights; with `whole_matrices`, an
    update needs the whole gradient of a matrix, gathered over tp and shards.
    """

    made_by: str
    state: tuple[str, ...] = ()
    passes: int
    settings: tuple[str, ...] = ()
    matrices_only: bool = False
    whole_matrices: bool = False


# The norm reads each gradient once. AdamW reads weight, gradient and two moments, and writes all
# but the gradient; SGD reads weight and gradient and writes the weight.
ADAMW = UpdateRule(
    made_by="mimo_launch.optimizer.adamw:LocalAdamW",
    state=("exp_avg", "exp_avg_sq"),
    passes=7 + 1,
    settings=("betas", "eps"),
)
SGD = UpdateRule(made_by="mimo_launch.optimizer.sgd:LocalSGD", passes=3 + 1)

RULES: dict[OptimizerName, tuple[UpdateRule, ...]] = {"adamw": (ADAMW,), "sgd": (SGD,)}
# The names of all state, for readers of checkpoints that another optimizer may have saved.
STATE = tuple(dict.fromkeys(n for rules in RULES.values() for rule in rules for n in rule.state))


def rule_for(rules: Iterable[UpdateRule], *, is_matrix: bool) -> UpdateRule:
    """Return the first rule that takes a weight."""
    return next(rule for rule in rules if is_matrix or not rule.matrices_only)
