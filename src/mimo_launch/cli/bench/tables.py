"""Tables of a bench: how fast a step is, where each rank's time goes; an earlier one beside it.

Decides: columns, units and their order; what of an earlier result is compared, and that all of it
is there before anything starts.
Relies on: the record that `bench.json` holds (docs/bench.md).
Leaves: writing them out to `screen`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.table import Table

from mimo_launch.bench.result import VERSION
from mimo_launch.estimate.calibration import constants
from mimo_launch.spec.files import read_json
from mimo_launch.spec.wording import found
from mimo_launch.train.events import CalibrationFinished

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


MAX_RANKS = 64
_SHARES = {
    "compute": "compute",
    "all_to_all": "all-to-all",
    "bridge": "bridge",
    "p2p": "P2P",
    "gradient_sync": "grad sync",
    "optimizer": "optimizer",
    "idle": "idle",
}


def tables(record: Record) -> Iterator[RenderableType]:
    """Yield what to print of a bench."""
    yield "\n".join(_head(record))
    yield _steps(record)
    yield _speed(record)
    yield _time_of_ranks(record)
    yield _memory_of_ranks(record)
    hidden = len(record["ranks"]) - MAX_RANKS
    if hidden > 0:
        yield f"{hidden} more ranks: see bench.json"
    if "compared" in record:
        yield "\n".join(compared_lines(record["compared"], each=_each(record)))


def _head(record: Record) -> Iterator[str]:
    machine, count = record["machine"], len(record["ranks"])
    versions = ", ".join(f"{name} {v}" for name, v in machine["versions"].items() if v)
    hosts = f" on {machine['hosts']} hosts" if machine["hosts"] > 1 else ""
    yield f"{record['name']}: {count} x {machine['device']}{hosts}, {record['precision']}"
    yield f"{versions}; plan {record['plan_hash']}"
    if record["skipped"]:
        yield f"warning: {record['skipped']} timed steps had numbers that are not finite"


def _steps(record: Record) -> Table:
    estimated = record["estimated_step_s"]
    table = Table("timed steps", "median", "min", "1st quartile", "3rd quartile", "max", "plan")
    times = [record["step_s"][name] for name in ("median", "minimum", "q1", "q3", "maximum")]
    table.add_row(str(record["steps"]), *map(_time, times), _time(estimated))
    return table


def _speed(record: Record) -> Table:
    each, speed = _each(record), record["speed"]
    table = Table("tokens/s", f"per {each}", "model work", f"per {each} and second", "MFU")
    parts = ", ".join(f"{name} {_flop(tflop)}" for name, tflop in speed["tflop"].items())
    peak = speed["peak_tflops"]
    table.add_row(
        f"{speed['tokens_per_s']:,.0f}",
        f"{speed['tokens_per_s_per_rank']:,.0f}",
        parts,
        _flop(speed["tflops_per_rank"]),
        "-" if peak is None else f"{speed['mfu']:.1%} of {_flop(peak)}/s",
    )
    return table


def _time_of_ranks(record: Record) -> Table:
    # Tokens travel where there are experts.
    travels = any(rank["shares"]["all_to_all"] for rank in record["ranks"])
    names = [name for name in _SHARES if travels or name != "all_to_all"]
    table = Table("rank", *(_SHARES[name] for name in names), "bubble", "plan")
    for rank in record["ranks"][:MAX_RANKS]:
        shares = [rank["shares"][name] for name in names]
        bubbles = [rank["bubble"], rank["estimated_bubble"]]
        table.add_row(str(rank["rank"]), *map(_share, [*shares, *bubbles]))
    return table


def _memory_of_ranks(record: Record) -> Table:
    columns = {"resident": "resident"}
    # What the plan counts is of a GPU.
    if record["machine"]["device_kind"] == "cuda":
        columns = {"allocated": "allocated", "reserved": "reserved", "used": "of the GPU"}
        columns |= {"estimated_allocated": "plan, allocated", "estimated_total": "plan, in all"}
    table = Table("rank", "modules", *columns.values())
    for rank in record["ranks"][:MAX_RANKS]:
        sizes = [_size(rank["memory"][name]) for name in columns]
        table.add_row(str(rank["rank"]), " ".join(rank["modules"]) or "-", *sizes)
    return table


def constants_table(event: CalibrationFinished) -> Table:
    """Return what was measured; other constants are as they were."""
    table = Table("constant", "value", "unit", "meaning")
    for each in constants():
        if each.name in event.measured:
            value = f"{event.constants[each.name]:,.4g}"
            table.add_row(each.name, value, each.metadata["unit"], each.metadata["meaning"])
    return table


def _each(record: Record) -> str:
    return "GPU" if record["machine"]["device_kind"] == "cuda" else "rank"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds:.3f} s" if seconds >= 1 else f"{seconds * 1e3:.2f} ms"


def _flop(tflop: float) -> str:
    """Return a number of operations with three digits or more."""
    for unit in ("TFLOP", "GFLOP"):
        if tflop >= 1:
            return f"{tflop:,.1f} {unit}" if tflop >= 100 else f"{tflop:.3g} {unit}"
        tflop *= 1e3
    return f"{tflop:.3g} MFLOP"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _size(num_bytes: int | None) -> str:
    return "-" if num_bytes is None else f"{num_bytes / 1e9:.2f} GB"
