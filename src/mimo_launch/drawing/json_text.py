"""A report as JSON text: stable keys, one item of a list per line.

Decides: the layout of the text; `docs/plan-json.md` documents every key.
Relies on: the names of the fields in `rows`, which are the keys.
Leaves: writing it out to `cli`.
"""

import json
from dataclasses import fields, is_dataclass
from typing import Any

from mimo_launch.drawing.rows import RankReport, Report

VERSION = 1
# Floats come from sums of whole units; nine digits keep the text free of rounding noise.
_DIGITS = 9


def report_json(report: Report | RankReport) -> str:
    """Return a report as JSON."""
    values = {"version": VERSION, **plain(report)}
    parts = [f" {json.dumps(key)}: {_value(value)}" for key, value in values.items()]
    return "{\n" + ",\n".join(parts) + "\n}"


def plain(value: Any) -> Any:
    """Return rows as dictionaries and lists; whole floats become integers."""
    if is_dataclass(value):
        return {item.name: plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        # Most tuples are long lists of ranks: no call per rank.
        return list(value) if value and type(value[0]) is int else [plain(item) for item in value]
    if isinstance(value, float):
        return int(value) if value.is_integer() else round(value, _DIGITS)
    return value


def _value(value: Any) -> str:
    """Return JSON whose lists of objects have one line per object, two levels deep."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n" + ",\n".join(f"  {json.dumps(item)}" for item in value) + "\n ]"
    if isinstance(value, dict) and any(isinstance(item, (list, dict)) for item in value.values()):
        parts = [f"  {json.dumps(key)}: {_nested(item)}" for key, item in value.items()]
        return "{\n" + ",\n".join(parts) + "\n }"
    return json.dumps(value)


def _nested(value: Any) -> str:
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n" + ",\n".join(f"   {json.dumps(item)}" for item in value) + "\n  ]"
    return json.dumps(value)
