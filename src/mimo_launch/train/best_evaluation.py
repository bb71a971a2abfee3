"""When a run evaluates, which evaluation was the best, and when it ends because none is better.

Decides: that a loss is better if it is smaller and an accuracy if it is larger; that one that is
not finite is never better, and that equal ones are not; whether two specs evaluate alike, so that
their numbers may be compared; that a resumed run owes the evaluation that a stop signal prevented.
Relies on: evaluations that are equal on all ranks, so that every rank decides the same; no torch.
Leaves: keeping the checkpoint to `checkpoint.folder`, evaluating to `loop`.
"""

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from mimo_launch.runtime.progress import Best
from mimo_launch.spec.sections import EvalSpec
from mimo_launch.spec.spec import Spec
from mimo_launch.train.events import EvalFinished


def judged(
    asked: EvalSpec, best: Best | None, step: int, found: Iterable[EvalFinished]
) -> Best | None:
    """Return the best evaluation after those of all sets at `step`; None if none was finite."""
    eval_set, metric = asked.judged_set, asked.judged_number
    for each in found:
        if (each.eval_set or "") != eval_set:
            continue
        value = each.eval_loss if metric == "loss" else each.digit_accuracy
        if value is not None and math.isfinite(value) and _is_better(metric, value, best):
            return Best(step, value)
        return best and replace(best, since=best.since + 1)
    return best


def _is_better(metric: str, value: float, best: Best | None) -> bool:
    if best is None:
        return True
    return value < best.value if metric == "loss" else value > best.value


def evaluates_alike(old: dict[str, Any], new: dict[str, Any]) -> bool:
    """Return whether numbers of evaluations of two dumped specs may be compared."""

    def of(spec: dict[str, Any]) -> list[Any]:
        asked = spec.get("eval") or {}
        # Shards to train on do not change what is held out.
        return [asked.get("samples"), asked.get("metric"), {**spec["data"], "shards": None}]

    return of(old) == of(new)


def has_ended(spec: Spec, step: int, best: Best | None) -> bool:
    """Return whether a run that has done `step` steps has no step left."""
    return step >= spec.train.steps or waited_enough(spec, best)


def is_due(spec: Spec, step: int, *every: int | None) -> bool:
    """Return whether something is due after `step` steps; it always is after the last step."""
    return step == spec.train.steps or any(each and step % each == 0 for each in every)


def owes_evaluation(spec: Spec, step: int, evaluated: int) -> bool:
    """Return whether the evaluation after `step` steps is due; the last one was at `evaluated`."""
    return spec.eval is not None and step > evaluated and is_due(spec, step, spec.eval.every)


def waited_enough(spec: Spec, best: Best | None) -> bool:
    """Return whether `eval.stop_after` evaluations in a row were not better than the best."""
    most = None if spec.eval is None else spec.eval.stop_after
    return most is not None and best is not None and best.since >= most


def ended_early(spec: Spec, step: int, best: Best | None) -> bool:
    """Return whether a run that ended after `step` steps had steps left."""
    return step < spec.train.steps and waited_enough(spec, best)
