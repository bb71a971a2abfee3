"""Trains as `train` does, on all ranks of a small spec, and compares with the oracle's run.

Decides: what a proof of training covers. One rank gets a NaN in a gradient of one step, which
must be skipped; one rank gets a stop signal, and a run with other initial weights resumes from the
checkpoint. Every number in the events must be right, and all weights and moments at the end.
Relies on: the task of the workers, with its reader, loop, evaluation and checkpoints.
Leaves: the correct run to `oracle_run`, judging to `compare`.
"""

import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from math import hypot, nan
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from mimo_launch.checkpoint import loading  # noqa: F401 - once, before ranks are forked.
from mimo_launch.checkpoint.boxes import resharded_parameters
from mimo_launch.comm.objects import gather_objects
from mimo_launch.comm.world import device_for
from mimo_launch.data.build import build_dataset
from mimo_launch.data.order.sample_order import heldout_batches
from mimo_launch.kinds.registry import kind_of
from mimo_launch.launcher.rank_tasks import Training
from mimo_launch.launcher.run_on_ranks import RankDevice
from mimo_launch.layers.parameter_segments import local_tensor
from mimo_launch.optimizer.step_end import StepEnd
from mimo_launch.plan.plan import Plan
from mimo_launch.runtime.progress import RunState
from mimo_launch.runtime.step_state import StepState
from mimo_launch.spec.optimizers import STATE
from mimo_launch.spec.spec import Spec
from mimo_launch.train import loop  # noqa: F401 - once, before ranks are forked.
from mimo_launch.train.evaluation import draw
from mimo_launch.train.events import EvalFinished, Event, StepFinished
from mimo_launch.train.prefetch import StepReader
from mimo_launch.train.rank_session import RankSession
from mimo_launch.verify.compare import (
    EXACT,
    MADE,
    TRAINED,
    ModuleVerdict,
    TensorPiece,
    compare_numbers,
    compare_tensors,
    local_pieces,
    unused_heads,
    unused_states,
)
from mimo_launch.verify.oracle_run import MADE_IN, SQUARES, RightEvaluation, RightRun

ALL = "all modules"
NUMBERS, EVALUATION = "numbers in training", "evaluation"
# Counted from 0. The second step is skipped: by then there are moments, which must not change.
SKIPPED = 1
STOP_AFTER = 3


@dataclass(frozen=True, slots=True)
class RankRun:
    """The events of a run on one rank, its parts of the final tensors, and its `made` images."""

    events: list[Event]
    tensors: dict[str, list[TensorPiece]]
    made: list[TensorPiece] = field(default_factory=list)

    @property
    def steps(self) -> list[StepFinished]:
        """Return the events of steps."""
        return [event for event in self.events if isinstance(event, StepFinished)]

    @property
    def evaluations(self) -> list[EvalFinished]:
        """Return the events of evaluations."""
        return [event for event in self.events if isinstance(event, EvalFinished)]


class StumblingSession(RankSession):
    """A session that gets a NaN in a gradient of one step, on one rank."""

    def step_end(self, flags: Sequence[int]) -> StepEnd:
        """Return an end of a step that spoils a gradient first, if this rank is the chosen one."""
        return SpoiltEnd(self.grids, self.updates, flags)


class SpoiltEnd(StepEnd):
    """The end of a step; in one step it plants a NaN in a gradient of the last rank that has any.

    A rank has none if its stages are frozen, or if other ranks hold all of a small tensor.
    """

    def begin(self, step: StepState) -> None:
        """Spoil a gradient before it is summed. Raises: RuntimeError if no rank has one."""
        if step.data.step == SKIPPED:
            values = next(self._counted(), None)
            having = [rank for rank, has in enumerate(gather_objects(values is not None)) if has]
            if not having:
                raise RuntimeError("no rank has a gradient to spoil")
            if values is not None and having[-1] == self.grids.rank:
                values.view(-1)[0] = float("nan")
        super().begin(step)

    def _counted(self) -> Iterator[Tensor]:
        """Yield the gradients that this rank counts, without autograd."""
        for module in self.updates.modules.values():
            for item in module.declared():
                gradient = item.parameter.grad
                if gradient is not None and item.placed[0].segment.counted:
                    values = local_tensor(gradient).detach()
                    if values.numel():
                        yield values


def first_part(
    spec: Spec, run: Path, prepare: Callable[[], None] | None, kind: RankDevice
) -> list[Event]:
    """Train until the last rank gets a stop signal; return the events."""
    if prepare is not None:
        prepare()
    rank, steps, loops = dist.get_rank(), count(1), threading.get_ident()
    is_told = rank == dist.get_world_size() - 1

    def stop() -> int:
        if threading.get_ident() != loops:  # The reader of an evaluation asks, too.
            return 0
        return signal.SIGTERM if next(steps) == STOP_AFTER and is_told else 0

    with StumblingSession(Plan.of(spec), device=device_for(kind, rank), randomise=True) as session:
        return _train(session, run, stop)


def second_part(spec: Spec, run: Path, kind: RankDevice) -> RankRun:
    """Resume from the checkpoint, which must give all weights, and train to the end."""
    with RankSession(Plan.of(spec), device=device_for(kind, dist.get_rank())) as session:
        events = _train(session, run, lambda: 0)
        return RankRun(events, _tensors(session), list(_made(session)))


def _train(session: RankSession, run: Path, stop: Callable[[], int]) -> list[Event]:
    events: list[Event] = []
    Training().run(session, run, events.append, stop)
    return [event for event in events if isinstance(event, StepFinished | EvalFinished)]


def _tensors(session: RankSession) -> dict[str, list[TensorPiece]]:
    """Return weights, and moments of the modules that train."""
    found: dict[str, list[TensorPiece]] = {"weights": [], **{name: [] for name in STATE}}
    for name, module in session.modules.items():
        declared = resharded_parameters(module)
        found["weights"] += local_pieces(declared, lambda weight: weight)
        for optimizer in session.updates.by_module.get(name, ()):
            for key in optimizer.rule.state:

                def moment_of(weight: Tensor, of: Any = optimizer, key: str = key) -> Tensor | None:
                    value: Tensor | None = of.torch.state.get(weight, {}).get(key)
                    return value

                found[key] += local_pieces(declared, moment_of)
    return found


def _made(session: RankSession) -> Iterator[TensorPiece]:
    """Yield the images and clips that generators make of held-out samples, each on one rank."""
    spec, dataset = session.spec, build_dataset(session.spec)
    if spec.eval is None:
        return
    there = range(dataset.num_samples("heldout"))
    with StepReader(session, dataset, RunState(), lambda event: None) as reader:
        for ids in heldout_batches(spec.eval.samples, spec.batch.global_, there):
            inputs = reader.read("heldout", ids, 0)
            forwarded = session.executor.run_forward(session.mine.evaluation, inputs)
            for made in draw(session, forwarded, inputs.data, MADE_IN):
                for place, array in enumerate(made.images):
                    name, values = f"{made.generator}.{made.record}.{place}", torch.tensor(array)
                    yield TensorPiece(name, (0,) * values.ndim, values.double())


def compare_runs(spec: Spec, ranks: list[RankRun], right: RightRun) -> list[ModuleVerdict]:
    """Return verdicts over all numbers and tensors of a run."""
    counts = ModuleVerdict(ALL, NUMBERS)
    for rank, run in enumerate(ranks):
        steps, evaluated = [s.step for s in run.steps], [e.step for e in run.evaluations]
        if steps != list(range(1, len(right.steps) + 1)):
            counts.failures.append(f"rank {rank} was told of steps {steps}")
        if evaluated != list(right.evaluations):
            counts.failures.append(f"rank {rank} was told of evaluations after {evaluated}")
    verdicts = [counts]
    for run in {_told(run): run for run in ranks}.values():
        verdicts += _compare_numbers(spec, run, right)
    pieces = [piece for run in ranks for piece in run.made]
    makers = {name.partition(".")[0] for name in (*right.made, *(each.name for each in pieces))}
    verdicts += compare_tensors("images and codes", sorted(makers), pieces, right.made, MADE)
    pieces = [piece for run in ranks for piece in run.tensors["weights"]]
    what = "weights after training"
    verdicts += compare_tensors(what, spec.modules, pieces, right.weights, TRAINED)
    for key, want in right.state.items():
        pieces = [piece for run in ranks for piece in run.tensors[key]]
        if key == SQUARES:  # Compare roots, because a square has twice the range.
            for piece in pieces:
                piece.values.sqrt_()
        if want or pieces:
            what, summed = "moments after training", None if key == SQUARES else right.summed[key]
            verdicts += compare_tensors(
                what, spec.modules, pieces, want, EXACT, _unused(spec, want), summed
            )
    return verdicts


def _unused(spec: Spec, right: Mapping[str, Tensor]) -> list[str]:
    """Return the tensors without a gradient; of an output layer, only a user's loss leaves some."""
    heads = [] if spec.language.loss is None else unused_heads(spec, right)
    return heads + unused_states(spec, right)


# The numbers of a step and of an evaluation that are compared.
STEP_NUMBERS = attrgetter(
    *("step", "loss", "losses", "aux_loss", "grad_norm", "grad_norms", "lr", "lrs", "tokens"),
    "skipped",
)
EVALUATION_NUMBERS = attrgetter(
    *("step", "eval_loss", "eval_losses", "digit_accuracy", "code_accuracy", "drawn_recognised")
)


def _told(run: RankRun) -> str:
    """Return the numbers of a run that are compared, as text."""
    return repr([*map(STEP_NUMBERS, run.steps), *map(EVALUATION_NUMBERS, run.evaluations)])


def _compare_numbers(spec: Spec, run: RankRun, right: RightRun) -> Iterator[ModuleVerdict]:
    has_experts = kind_of(spec.language.model).moe is not None
    for step, want in zip(run.steps, right.steps, strict=False):
        if step.losses is None:
            yield _number("loss", "language", step.loss, want.loss)
        else:
            yield _number("sum of losses", ALL, step.loss, want.loss)
            for name in want.losses | step.losses:
                right_loss = want.losses.get(name, nan)
                yield _number("loss", name, step.losses.get(name), right_loss)
        if has_experts and spec.language.frozen is False:
            yield _number("aux loss", "language", step.aux_loss, want.aux_loss)
        yield _number("skipped", ALL, step.skipped, want.skipped)
        yield _number("tokens", ALL, step.tokens, want.tokens)
        yield _number("learning rate", ALL, step.lr, want.lr)
        norm = hypot(*want.norms.values())
        if not want.skipped:
            yield _number("gradient norm", ALL, step.grad_norm, norm)
        for module in spec.modules:
            if module in want.lrs or module in step.lrs:
                rate = want.lrs.get(module, nan)
                yield _number("learning rate", module, step.lrs.get(module), rate)
            if not want.skipped:
                got = step.grad_norms.get(module)
                right_norm = want.norms[module]
                yield _number("gradient norm", module, got, right_norm, largest=norm)
    for evaluation in run.evaluations:
        if (asked := right.evaluations.get(evaluation.step)) is not None:
            yield from _compare_evaluation(evaluation, asked)


def _compare_evaluation(got: EvalFinished, want: RightEvaluation) -> Iterator[ModuleVerdict]:
    yield _number("held-out loss", ALL, got.eval_loss, want.loss, EVALUATION)
    if got.eval_losses is not None or len(want.losses) > 1:
        losses = got.eval_losses or {}
        for name in want.losses | losses:
            mean = want.losses.get(name, nan)
            yield _number("held-out loss", name, losses.get(name), mean, EVALUATION)
    for name, share, right in (
        ("digit accuracy", got.digit_accuracy, want.accuracy),
        ("code accuracy", got.code_accuracy, want.code_accuracy),
        ("drawn recognised", got.drawn_recognised, want.recognised),
    ):
        if share is not None or right is not None:
            yield _number(name, ALL, share, nan if right is None else right, EVALUATION)


def _number(
    name: str,
    module: str,
    got: float | None,
    want: float,
    what: str = NUMBERS,
    *,
    largest: float = 0.0,
) -> ModuleVerdict:
    found = nan if got is None else float(got)
    verdict = compare_numbers(name, module, found, want, largest=largest)
    verdict.what = what
    return verdict
