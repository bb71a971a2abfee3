"""Tables of a bench: how fast a step is, where each rank's time goes, what it holds.

Decides: columns, units and their order.
Relies on: the record that `bench.json` holds (docs/bench.md).
Leaves: writing them out to `bench`.
"""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table

from mimo_launch.cli.bench.compare import Record, compared_lines
from mimo_launch.estimate.calibration import constants
from mimo_launch.train.events import CalibrationFinished

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
