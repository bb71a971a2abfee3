"""Events as records of `metrics.jsonl`, and back.

Decides: which fields a record leaves out; that a non-finite number is null.
Relies on: `events` for the fields.
Leaves: the file to `metrics_file`.
"""

import math
from dataclasses import asdict, fields
from typing import Any

from mimo_launch.layout.step_views import Imbalance
from mimo_launch.train.events import EvalFinished, Event, Reading, StepFinished, Usage


def as_record(event: Event) -> dict[str, Any]:
    """Return an event as one JSON-able object, with null for a non-finite number."""
    record: dict[str, Any] = _finite(asdict(event))
    if isinstance(event, StepFinished):
        for key in ("imbalance", "reading", "zero_grads"):
            if not record[key]:
                del record[key]
        record |= record.pop("usage") or {}
    for key in ("aux_loss", "mfu", "losses", "eval_losses", "drawn_recognised", "code_accuracy"):
        if key in record and record[key] is None:
            del record[key]
    return record


def from_record(record: dict[str, Any]) -> "StepFinished | EvalFinished | None":
    """Return the step or evaluation that `as_record` wrote; None for any other record.

    Non-finite numbers become NaN; fields that an earlier version did not write are missing.
    """
    known = _with_nan({**record})
    usage = {each.name: known.pop(each.name, None) for each in fields(Usage)}
    kind: type[StepFinished | EvalFinished] = StepFinished if "loss" in known else EvalFinished
    names = {each.name for each in fields(kind)}
    try:
        if kind is StepFinished:
            known["usage"] = Usage(**usage) if usage["time"] else None
            known["imbalance"] = {n: Imbalance(**x) for n, x in known.get("imbalance", {}).items()}
            known["reading"] = Reading(**known["reading"]) if "reading" in known else None
        event = kind(**{name: value for name, value in known.items() if name in names})
    except (TypeError, AttributeError):
        return None
    parts = (event, getattr(event, "usage", None), getattr(event, "reading", None))
    return event if all(map(_has_numbers, parts)) else None


def _has_numbers(event: Any) -> bool:
    """Return whether all numeric fields hold numbers: the file may come from anywhere."""
    if event is None:
        return True
    return all(
        isinstance(getattr(event, each.name), int | float)
        if each.type in (int, float, bool)
        else isinstance(found := getattr(event, each.name), dict)
        and all(isinstance(number, int | float) for number in found.values())
        for each in fields(event)
        if each.type in (int, float, bool, dict[str, float], dict[str, int])
    )


def _with_nan(values: dict[str, Any]) -> dict[str, Any]:
    """Return values with NaN for each null, except in a field where null is a value."""
    return {
        name: _with_nan(value)
        if isinstance(value, dict)
        else math.nan
        if value is None and name != "digit_accuracy"
        else value
        for name, value in values.items()
    }


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
