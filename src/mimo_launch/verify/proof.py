"""Runs a spec on all its ranks and on the oracle, step by step, and compares everything.

Decides: the contents of a proof of gradients: per step the loss, every gradient, the norm of every
module, and the weights after a clipped SGD step. A proof of training may follow on the same ranks.
Relies on: forked ranks, on CPUs or GPUs; the session and the reader of `train`. The oracle is
always on the CPU and in float64.
Leaves: making the spec small to `shrink`, the course of a run to `training_proof`.
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor

from mimo_launch.comm.world import device_for
from mimo_launch.data.build import build_dataset
from mimo_launch.data.order.sample_order import global_order, steps_of
from mimo_launch.kinds.registry import kind_of
from mimo_launch.launcher.run_on_ranks import RankDevice, RankError, Ranks
from mimo_launch.layout.layout import world_size
from mimo_launch.plan.plan import Plan
from mimo_launch.runtime.progress import RunState
from mimo_launch.spec.spec import Spec
from mimo_launch.train.prefetch import StepReader
from mimo_launch.train.rank_session import RankSession
from mimo_launch.verify.compare import (
    BOUNDS,
    ModuleVerdict,
    TensorPiece,
    compare_numbers,
    compare_tensors,
    merge,
    norm_of,
    pieces_of,
    unused_heads,
    unused_states,
)
from mimo_launch.verify.oracle import Oracle
from mimo_launch.verify.oracle_run import right_run
from mimo_launch.verify.training_proof import SKIPPED, compare_runs, first_part, second_part

# The one-rank run waits for no other rank, so if it takes long it is slow rather than hanging.
ORACLE_TIMES = 5


@dataclass(slots=True)
class StepOutcome:
    """The results of one step on one rank; tensors only from the first data-parallel rank."""

    loss: float
    losses: dict[str, float]
    aux_loss: float
    norms: dict[str, float]
    gradients: list[TensorPiece]
    weights: list[TensorPiece]


@dataclass(frozen=True, slots=True)
class RightStep:
    """The oracle's results of one step: losses, gradients and the weights after it, by name."""

    loss: float
    losses: dict[str, float]
    aux_loss: float
    gradients: dict[str, Tensor]
    weights: dict[str, Tensor]


def verify_spec(
    spec: Spec,
    *,
    training: Spec | None = None,
    timeout_s: float = 120,
    prepare: Callable[[], None] | None = None,
    device: RankDevice = "cpu",
) -> list[ModuleVerdict]:
    """Return verdicts of an SGD spec (see `shrink`) against the oracle, by the bound of its dtype.

    With `training`, a spec on the same ranks (see `shrink.short_run`), the verdicts of its run
    follow if all others passed: otherwise they would repeat the failures. `prepare` runs first on
    every rank: tests plant bugs with it. Raises: DeadlockError; RankError if a rank fails or hangs.
    """
    for each in (spec, training):
        if each is not None:
            Plan.of(each).prove()
    with Ranks(world_size(spec), device=device) as ranks, Ranks(1) as one_rank:
        verdicts = verify_on(ranks, one_rank, spec, timeout_s=timeout_s, prepare=prepare)
        if training is not None and all(verdict.passed for verdict in verdicts):
            verdicts += verify_training_on(ranks, one_rank, training, timeout_s=timeout_s)
        return verdicts


def verify_on(
    ranks: Ranks,
    one_rank: Ranks,
    spec: Spec,
    *,
    timeout_s: float = 120,
    prepare: Callable[[], None] | None = None,
) -> list[ModuleVerdict]:
    """Prove gradients on `ranks`, as many as the spec needs, with the oracle on `one_rank`.

    The oracle runs on the CPU, but not in this process: with GPUs, the first backward starts a
    thread for each, and torch refuses a backward in processes that are forked later.

    Raises: RankError, which says whether the oracle failed.
    """
    outcomes = ranks.run(rank_outcomes, spec, prepare, ranks.device, timeout_s=timeout_s)
    right = _ask_oracle(one_rank, right_steps, spec, timeout_s=timeout_s)
    verdicts: list[ModuleVerdict] = []
    for step, wanted in enumerate(right):
        verdicts += _compare_step(spec, [outcome[step] for outcome in outcomes], wanted)
    return merge(verdicts)


def verify_training_on(
    ranks: Ranks,
    one_rank: Ranks,
    spec: Spec,
    *,
    timeout_s: float = 120,
    prepare: Callable[[], None] | None = None,
) -> list[ModuleVerdict]:
    """Prove a run in the same way. Raises: RankError, which says whether the oracle failed."""
    with tempfile.TemporaryDirectory(prefix="mimo-launch-") as folder:
        where, device = Path(folder), ranks.device
        first = ranks.run(first_part, spec, where, prepare, device, timeout_s=timeout_s)
        second = ranks.run(second_part, spec, where, device, timeout_s=timeout_s)
    right = _ask_oracle(one_rank, right_run, spec, SKIPPED, timeout_s=timeout_s)
    runs = [
        replace(run, events=[*before, *run.events])
        for before, run in zip(first, second, strict=True)
    ]
    return merge(compare_runs(spec, runs, right))


def _ask_oracle(one_rank: Ranks, function: Callable[..., Any], *args: Any, timeout_s: float) -> Any:
    try:
        [answer] = one_rank.run(function, *args, timeout_s=ORACLE_TIMES * timeout_s)
    except RankError as error:
        raise RankError(f"the one-rank run: {error}") from error
    return answer


def right_steps(spec: Spec) -> list[RightStep]:
    """Run the steps of a proof as the oracle does."""
    oracle = Oracle(spec, randomise=True)
    order = global_order(spec, oracle.dataset)
    steps = []
    for step, ids in enumerate(steps_of(order, spec.train.steps)):
        loss, grads = oracle.loss_and_gradients(ids, step)
        oracle.sgd_step(grads, spec.optimizer.lr, spec.optimizer.clip)
        oracle.move_biases()
        weights = {name: weight.detach().clone() for name, weight in oracle.weights.items()}
        steps.append(RightStep(loss, oracle.means, oracle.balance_loss, grads, weights))
    return steps


def rank_outcomes(
    spec: Spec, prepare: Callable[[], None] | None, kind: RankDevice = "cpu"
) -> list[StepOutcome]:
    """Run the steps of a proof on this rank, one of several on this machine."""
    if prepare is not None:
        prepare()
    dataset = build_dataset(spec)
    order = global_order(spec, dataset)
    outcomes = []
    device = device_for(kind, dist.get_rank())
    with (
        RankSession(Plan.of(spec), device=device, randomise=True) as session,
        StepReader(session, dataset, RunState(), lambda event: None) as reader,
    ):
        for step, ids in enumerate(steps_of(order, spec.train.steps)):
            metrics = session.gradients(reader.read("train", ids, step))
            gradients = pieces_of(session, lambda parameter: parameter.grad)
            session.update()
            weights = pieces_of(session, lambda parameter: parameter)
            read = metrics.read()
            outcomes.append(
                StepOutcome(read.loss, read.losses, read.aux_loss, read.norms, gradients, weights)
            )
    return outcomes


def _compare_step(
    spec: Spec,
    ranks: list[StepOutcome],
    right: RightStep,
) -> list[ModuleVerdict]:
    bound = BOUNDS[spec.train.precision]
    verdicts = [
        compare_numbers("loss", name, outcome.losses[name], want, bound)
        for name, want in right.losses.items()
        for outcome in {outcome.losses[name]: outcome for outcome in ranks}.values()
    ]
    if len(right.losses) > 1:
        verdicts += [
            compare_numbers("sum of losses", "all modules", loss, right.loss, bound)
            for loss in {outcome.loss for outcome in ranks}
        ]
    has_experts = kind_of(spec.language.model).moe is not None
    # If language is frozen, a layout counts only the terms that reach an encoder.
    if has_experts and spec.language.frozen is False:
        verdicts += [
            compare_numbers("aux loss", "language", aux_loss, right.aux_loss, bound)
            for aux_loss in {outcome.aux_loss for outcome in ranks}
        ]
    largest = norm_of(right.gradients.values())
    for module in spec.modules:
        own = (grad for name, grad in right.gradients.items() if name.startswith(f"{module}."))
        want = norm_of(own)
        verdicts += [
            compare_numbers("gradient norm", module, norm, want, bound, largest=largest)
            for norm in {outcome.norms[module] for outcome in ranks}
        ]
    pieces = [piece for outcome in ranks for piece in outcome.gradients]
    unused = unused_heads(spec, right.gradients) + unused_states(spec, right.gradients)
    verdicts += compare_tensors("gradients", spec.modules, pieces, right.gradients, bound, unused)
    pieces = [piece for outcome in ranks for piece in outcome.weights]
    return verdicts + compare_tensors(
        "weights after SGD", spec.modules, pieces, right.weights, bound
    )
