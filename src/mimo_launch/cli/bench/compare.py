"""How a bench relates to an earlier one.

Decides: what of an earlier result is compared, and that all of it is there before anything starts.
Relies on: the record that `bench.json` holds (docs/bench.md).
Leaves: showing it to `screen`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mimo_launch.bench.result import VERSION
from mimo_launch.spec.files import read_json
from mimo_launch.spec.wording import found

Record = dict[str, Any]


class NotAResult(ValueError):
    """A file holds no earlier result; the message says which one, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """What is compared of an earlier result; `step_s` is the median, in seconds.

    `circumstances` are what it was measured of and on, by name: plan, device, hosts, packages.
    """

    command: str
    date: str
    step_s: float
    tokens_per_s_per_rank: float
    circumstances: dict[str, Any]


def load_earlier(path: Path) -> Earlier:
    """Return what is compared of the result in a file. Raises: NotAResult."""
    try:
        record = read_json(path)
    except OSError as error:
        raise NotAResult(f"{path}: {(error.strerror or str(error)).lower()}") from None
    except ValueError as error:
        raise NotAResult(f"{path} is not JSON: {error}") from None
    try:
        return _earlier(record)
    except ValueError as error:
        raise NotAResult(f"{path} is no result of `bench --json`: {error}") from None


def _earlier(record: Any) -> Earlier:
    version = _value(record, int, "version")
    if version != VERSION:
        raise ValueError(f"its version is {version}, and this compares with {VERSION}")
    return Earlier(
        command=_value(record, str, "command"),
        date=_value(record, str, "date"),
        step_s=_divisor(record, "step_s", "median"),
        tokens_per_s_per_rank=_divisor(record, "speed", "tokens_per_s_per_rank"),
        circumstances=_circumstances(record),
    )


def _circumstances(record: Any) -> dict[str, Any]:
    return {
        "plan": _value(record, str, "plan_hash"),
        "device": _value(record, str, "machine", "device"),
        "hosts": _value(record, int, "machine", "hosts"),
        **_value(record, dict, "machine", "versions"),
    }


def _value(record: Any, kind: type | tuple[type, ...], *path: str) -> Any:
    """Return a value of a record. Raises: ValueError if it is not there, or of another type."""
    value = record
    for key in path:
        if not isinstance(value, dict) or key not in value:
            raise ValueError(f"it has no `{'.'.join(path)}`")
        value = value[key]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"`{'.'.join(path)}` is {found(value)}")
    return value


def _divisor(record: Any, *path: str) -> float:
    value = _value(record, (int, float), *path)
    if not 0 < value < float("inf"):  # Also rejects NaN, which JSON in Python may hold.
        raise ValueError(f"`{'.'.join(path)}` is {value}; it must be a finite number > 0")
    return float(value)


def compared(record: Record, old: Earlier) -> Record:
    """Return how a result relates to an earlier one: what `bench --json` calls `compared`."""
    before, now = old.circumstances, _circumstances(record)
    names = [*before, *(name for name in now if name not in before)]
    pairs = {name: {"old": before.get(name), "new": now.get(name)} for name in names}
    return {
        "command": old.command,
        "date": old.date,
        "step_time": record["step_s"]["median"] / old.step_s,
        "tokens_per_s_per_rank": record["speed"]["tokens_per_s_per_rank"]
        / old.tokens_per_s_per_rank,
        "changed": {name: pair for name, pair in pairs.items() if pair["old"] != pair["new"]},
    }


def compared_lines(comparison: Record, *, each: str) -> Iterator[str]:
    """Yield the same as text; `each` is what a rank is called."""
    yield f"against {comparison['command']} of {comparison['date']}:"
    yield f"  step time x {comparison['step_time']:.3f}"
    yield f"  tokens/s per {each} x {comparison['tokens_per_s_per_rank']:.3f}"
    for name, pair in comparison["changed"].items():
        yield f"  {name} {pair['old'] or 'none'} -> {pair['new'] or 'none'}"
