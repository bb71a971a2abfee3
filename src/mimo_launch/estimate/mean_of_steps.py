"""The mean of the estimates of several steps.

Decides: that a share of the step's time is the mean weighted by time, and every other number of a
step the plain mean.
Relies on: the names of the fields of `rows`.
Leaves: which steps to `estimates`.
"""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

from mimo_launch.estimate.rows import Estimates, RankEstimate, StageEstimate

Row = TypeVar("Row", RankEstimate, StageEstimate)

# The fields that are no shares of a step.
_PLAIN = {"tflop", "forward_ms", "backward_ms", "bubble"}


def mean_of(found: Sequence[tuple[Estimates, int]]) -> Estimates:
    """Return the mean over steps, of each of which there are so many; ranks are the same in all."""
    (first, _), *others = found
    if not others:
        return first
    steps, numbers = [each for each, _ in found], [number for _, number in found]

    def mean(name: str) -> float:
        return _mean([getattr(each, name) for each in steps], numbers)

    seconds, tflop = mean("step_seconds"), mean("tflop")
    times = [number * each.step_seconds for each, number in found]
    return replace(
        first,
        step_seconds=seconds,
        schedule_seconds=mean("schedule_seconds"),
        tokens_per_second_per_gpu=first.tokens_per_second_per_gpu * first.step_seconds / seconds,
        tflop=tflop,
        tflops_per_gpu=first.tflops_per_gpu * first.step_seconds / first.tflop * tflop / seconds,
        bubble=mean("bubble"),
        ranks=tuple(
            _mean_row(rows, numbers, times)
            for rows in zip(*(each.ranks for each in steps), strict=True)
        ),
    )


def _mean_row(
    rows: Sequence[RankEstimate], numbers: Sequence[int], times: Sequence[float]
) -> RankEstimate:
    stages = zip(*(row.stages for row in rows), strict=True)
    made = tuple(_means(each, numbers, times) for each in stages)
    return replace(_means(rows, numbers, times), stages=made)


def _means(rows: Sequence[Row], numbers: Sequence[int], times: Sequence[float]) -> Row:
    """Return a row with the means of all numbers that are no integers."""
    changed: dict[str, Any] = {}
    for field in fields(rows[0]):
        values = [getattr(row, field.name) for row in rows]
        if isinstance(values[0], float):
            changed[field.name] = _mean(values, numbers if field.name in _PLAIN else times)
    return replace(rows[0], **changed)


def _mean(values: Sequence[float], weights: Sequence[float]) -> float:
    return sum(v * w for v, w in zip(values, weights, strict=True)) / sum(weights)
