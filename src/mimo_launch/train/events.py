"""What happened in a run, as plain values; the loop emits them, others listen.

Decides: the fields of `metrics.jsonl`.
Relies on: nothing.
Leaves: writing to `metrics`, drawing to `cli.progress`.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """All ranks have built their modules."""

    name: str
    plan: str
    steps: int
    world_size: int
    modules: tuple[str, ...]
    log_every: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFinished:
    """One optimizer step. `step` counts from 1; norms are before clipping; `tokens` is the number
    of real tokens of the step, image rows included and padding left out."""  # noqa: D205, D209

    step: int
    loss: float
    grad_norm: float
    grad_norms: dict[str, float]
    lr: float
    lrs: dict[str, float]
    tokens: int
    tokens_per_s: float
    skipped: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalFinished:
    """One evaluation after `step` steps. `digit_accuracy` is the share of the digits in held-out
    images that greedy decoding, fed by its own answers, gets right at their place."""  # noqa: D205, D209

    step: int
    eval_loss: float
    digit_accuracy: float | None
    samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFinished:
    """The last step is done."""

    steps: int
    seconds: float
    skipped: int


Event = RunStarted | StepFinished | EvalFinished | RunFinished
Listener = Callable[[Event], None]


def as_record(event: Event) -> dict[str, Any]:
    """Return an event as one JSON-able object; a number that is not finite becomes null."""
    record: dict[str, Any] = _finite(asdict(event))
    return record


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
