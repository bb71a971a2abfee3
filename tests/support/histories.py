"""Metrics files of runs that never were."""

import json
import math
from dataclasses import fields, replace
from pathlib import Path

from mimo_launch.train.events import EvalFinished, StepFinished, Usage
from mimo_launch.train.metrics_file import as_record

USAGE = Usage(
    time="2026-11-23T01:02:03.004+00:00", step_s=0.25, tflop={"vision": 0.5, "language": 1.5},
    tflops_per_rank=2.0, mfu=None, peak_memory={"vision": 1_000_000_000, "language": 2_500_000_000},
)  # fmt: skip
# The fields of a step that differ between two runs of the same steps.
TIMES = frozenset(("tokens_per_s", *(each.name for each in fields(Usage))))


def untimed(event: StepFinished) -> StepFinished:
    """What every run of a step tells of it."""
    return replace(event, tokens_per_s=0.0, usage=None)


def step(number: int, loss: float = 1.0, **more: object) -> str:
    event = StepFinished(
        step=number, loss=loss, grad_norm=2.0, grad_norms={"vision": 0.0, "language": 2.0},
        lr=1e-3, lrs={"vision": 1e-4, "language": 1e-3}, tokens=10, tokens_per_s=5.0,
        skipped=not math.isfinite(loss), bad_samples=2,
    )  # fmt: skip
    return json.dumps({**as_record(event), **more}) + "\n"


def evaluated(number: int, loss: float = 0.5, eval_set: str | None = None) -> str:
    event = EvalFinished(
        step=number, eval_loss=loss, digit_accuracy=None, samples=8, eval_set=eval_set
    )
    return json.dumps(as_record(event)) + "\n"


def write(run: Path, *lines: str) -> None:
    (run / "metrics.jsonl").write_text("".join(lines), encoding="utf-8")
