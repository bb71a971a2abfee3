"""Runs a spec on all its ranks and on the oracle, step by step, and compares everything.

Decides: what a proof consists of: per step the loss, every gradient, the norm of every module, and
the weights after a clipped SGD step.
Relies on: forked ranks, on processors or GPUs; the session and the reader of `train`. The oracle is
always on the processor and in float64.
Leaves: making the spec small to `shrink`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from mimo_launch.comm.collectives import all_gather_uneven
from mimo_launch.grids.grid_set import Group
from mimo_launch.grids.world import device_for
from mimo_launch.launcher.ranks import RankDevice, RankError, Ranks
from mimo_launch.layout.layout import world_size
from mimo_launch.spec.model import LanguageModel, Spec
from mimo_launch.train.data.dataset import build_dataset
from mimo_launch.train.data.order import global_order, steps_of
from mimo_launch.train.events import Event
from mimo_launch.train.reading import StepReader
from mimo_launch.train.session import RankSession
from mimo_launch.train.state import RunState
from mimo_launch.verify.compare import (
    BOUNDS,
    ModuleVerdict,
    TensorPiece,
    compare_numbers,
    compare_tensors,
)
from mimo_launch.verify.oracle import Oracle


@dataclass(slots=True)
class StepOutcome:
    """What one rank saw of one step; tensors only from the first data-parallel rank."""

    loss: float
    aux_loss: float
    norms: dict[str, float]
    gradients: list[TensorPiece]
    weights: list[TensorPiece]


@dataclass(frozen=True, slots=True)
class RightStep:
    """What the oracle has of one step: losses, gradients and the weights after it, by name."""

    loss: float
    aux_loss: float
    gradients: dict[str, Tensor]
    weights: dict[str, Tensor]


def verify_spec(
    spec: Spec,
    *,
    timeout_s: float = 120,
    prepare: Callable[[], None] | None = None,
    device: RankDevice = "cpu",
) -> list[ModuleVerdict]:
    """Return verdicts of an SGD spec (see `shrink`) against the oracle, by the bound of its dtype.

    `prepare` runs first on every rank: tests plant bugs with it. Raises: RankError if a rank fails
    or hangs.
    """
    with Ranks(world_size(spec), device=device) as ranks, Ranks(1) as one_rank:
        return verify_on(ranks, one_rank, spec, timeout_s=timeout_s, prepare=prepare)


def verify_on(
    ranks: Ranks,
    one_rank: Ranks,
    spec: Spec,
    *,
    timeout_s: float = 120,
    prepare: Callable[[], None] | None = None,
) -> list[ModuleVerdict]:
    """Do what `verify_spec` does on ranks that are there: as many as the spec needs, and one more.

    That one runs the oracle, on the processor. Not this process: where there are GPUs, the first
    backward starts a thread for each, and torch refuses it in whatever is forked after that.

    Raises: RankError, which says if it was the oracle's.
    """
    outcomes = ranks.run(rank_outcomes, spec, prepare, ranks.device, timeout_s=timeout_s)
    try:
        [right] = one_rank.run(right_steps, spec, timeout_s=timeout_s)
    except RankError as error:
        raise RankError(f"the one-rank run: {error}") from error
    verdicts: list[ModuleVerdict] = []
    for step, wanted in enumerate(right):
        verdicts += _compare_step(spec, [outcome[step] for outcome in outcomes], wanted)
    return merge(verdicts)


def right_steps(spec: Spec) -> list[RightStep]:
    """Run the steps of a proof as the oracle does."""
    oracle = Oracle(spec, randomise=True)
    order = global_order(spec, oracle.dataset)
    steps = []
    for ids in steps_of(order, spec.train.steps):
        loss, grads = oracle.loss_and_gradients(ids)
        oracle.sgd_step(grads, spec.optimizer.lr, spec.optimizer.clip)
        oracle.move_biases()
        weights = {name: weight.detach().clone() for name, weight in oracle.weights.items()}
        steps.append(RightStep(loss, oracle.balance_loss, grads, weights))
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
        RankSession(spec, device=device, randomise=True) as session,
        StepReader(session, dataset, RunState(), _nobody) as reader,
    ):
        for step, ids in enumerate(steps_of(order, spec.train.steps)):
            totals = session.gradients(reader.read("train", ids, step))
            gradients = _pieces(session, gradients=True)
            session.update(step, totals)
            weights = _pieces(session, gradients=False)
            read = totals.read()
            outcomes.append(StepOutcome(read.loss, read.aux_loss, read.norms, gradients, weights))
    return outcomes


def _nobody(event: Event) -> None:
    pass


def _pieces(session: RankSession, *, gradients: bool) -> list[TensorPiece]:
    """Return this rank's parts of all tensors, gathered over their replicas.

    Ranks: collective over dp x cp of each module, and over the replicas of its experts.
    """
    pieces = []
    for name in session.modules:
        for declared in session.declared(name):
            tensor = declared.parameter.grad if gradients else declared.parameter.detach()
            if tensor is None:
                continue
            group = session.grids.replicas(name, declared.parameter)
            full = _unsharded(tensor, group)
            if group.index > 0:
                continue
            for placed in declared.placed:
                segment = placed.segment
                # A copy: the update writes into gradients and weights.
                values = full[placed.first_row : placed.last_row].to("cpu", copy=True)
                pieces.append(
                    TensorPiece(placed.name, segment.axis, segment.start, segment.stop, values)
                )
    return pieces


def _unsharded(tensor: Tensor, group: Group) -> Tensor:
    """Return all rows of a tensor that FSDP shards over `group`.

    With our own gather: DTensor's goes through functional collectives, whose tensors gloo's threads
    have been seen to release at the wrong moment.
    """
    if not isinstance(tensor, DTensor):
        return tensor
    rows = tensor.shape[0]
    size = -(-rows // group.size)
    sizes = tuple(max(0, min(size, rows - i * size)) for i in range(group.size))
    return all_gather_uneven(tensor.to_local(), sizes, group)


def _compare_step(
    spec: Spec,
    ranks: list[StepOutcome],
    right: RightStep,
) -> list[ModuleVerdict]:
    bound = BOUNDS[spec.train.precision]
    verdicts = [
        compare_numbers("loss", "language", outcome.loss, right.loss, bound)
        for outcome in {outcome.loss: outcome for outcome in ranks}.values()
    ]
    model = spec.language.model
    has_experts = isinstance(model, LanguageModel) and model.moe is not None
    # Where language is frozen, those terms alone are counted that reach an encoder.
    if has_experts and spec.language.frozen is False:
        verdicts += [
            compare_numbers("aux loss", "language", aux_loss, right.aux_loss, bound)
            for aux_loss in {outcome.aux_loss for outcome in ranks}
        ]
    for module in spec.modules:
        grads = [g for name, g in right.gradients.items() if name.startswith(f"{module}.")]
        squares = [grad.square().sum() for grad in grads]
        want = float(sum(squares, torch.zeros(()).double())) ** 0.5
        verdicts += [
            compare_numbers("gradient norm", module, norm, want, bound)
            for norm in {outcome.norms[module] for outcome in ranks}
        ]
    pieces = [piece for outcome in ranks for piece in outcome.gradients]
    verdicts += compare_tensors("gradients", spec.modules, pieces, right.gradients, bound)
    pieces = [piece for outcome in ranks for piece in outcome.weights]
    return verdicts + compare_tensors(
        "weights after SGD", spec.modules, pieces, right.weights, bound
    )


def merge(verdicts: list[ModuleVerdict]) -> list[ModuleVerdict]:
    """Return one verdict per module and kind of tensor over all steps."""
    merged: dict[tuple[str, str], ModuleVerdict] = {}
    for verdict in verdicts:
        into = merged.setdefault(
            (verdict.module, verdict.what), ModuleVerdict(verdict.module, verdict.what)
        )
        into.tensors += verdict.tensors
        into.by_floor += verdict.by_floor
        into.failures += verdict.failures
        if not verdict.worst <= into.worst:
            into.worst, into.worst_name = verdict.worst, verdict.worst_name
    return list(merged.values())
