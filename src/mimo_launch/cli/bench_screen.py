"""Shows a bench: a bar while it runs, then tables, or a comparison with an earlier bench.

Decides: columns, units and their order; which values of an earlier result are compared, and that
all of them are present before anything starts; that only the answer goes to stdout.
Relies on: the record in `bench.json` (docs/bench.md); events of `train`, which a bench also emits.
Leaves: nothing.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console as RichConsole

from mimo_launch.bench.result import VERSION
from mimo_launch.cli.shared.bars import CountScreen
from mimo_launch.cli.shared.console import Console, run_output, table_width
from mimo_launch.cli.shared.lines import other_lines
from mimo_launch.cli.shared.plain_table import PlainTable
from mimo_launch.diag.frozen import frozen
from mimo_launch.diag.quantities import seconds_text
from mimo_launch.drawing.table import Column, Table
from mimo_launch.estimate.device_constants import constants
from mimo_launch.spec.files import read_json
from mimo_launch.spec.wording import found
from mimo_launch.train.events import BenchFinished, CalibrationFinished, Event, StepFinished

Record = dict[str, Any]
_OF_LANGUAGE = "language_tokens_per_s_per_rank"


class NotAResult(typer.BadParameter):
    """The file of `--compare` contains no earlier result; the message names the file and why."""

    def __init__(self, message: str) -> None:
        super().__init__(message, param_hint="--compare")


@frozen(kw_only=True)
class Earlier:
    """The values of an earlier result to compare with; `step_s` is the median, in seconds.

    `language_tokens_per_s_per_rank` is None in results of earlier versions. `circumstances` has, by
    name, what was measured and on what: plan, device, hosts, packages.
    """

    command: str
    date: str
    step_s: float
    tokens_per_s_per_rank: float
    language_tokens_per_s_per_rank: float | None
    circumstances: dict[str, Any]


def load_earlier(path: Path) -> Earlier:
    """Return the values to compare with from the result in a file. Raises: NotAResult."""
    try:
        record = read_json(path)
    except OSError as error:
        raise NotAResult(f"{path}: {(error.strerror or str(error)).lower()}") from None
    except ValueError as error:
        raise NotAResult(f"{path} is not JSON: {error}") from None
    try:
        version = _value(record, int, "version")
        if version != VERSION:
            raise ValueError(f"its version is {version}, and this compares with {VERSION}")
        return Earlier(
            command=_value(record, str, "command"),
            date=_value(record, str, "date"),
            step_s=_divisor(record, "step_s", "median"),
            tokens_per_s_per_rank=_divisor(record, "speed", "tokens_per_s_per_rank"),
            language_tokens_per_s_per_rank=_divisor(record, "speed", _OF_LANGUAGE)
            if _OF_LANGUAGE in record["speed"]
            else None,
            circumstances=_circumstances(record),
        )
    except ValueError as error:
        raise NotAResult(f"{path} is no result of `bench --json`: {error}") from None


def _circumstances(record: Any) -> dict[str, Any]:
    return {
        "plan": _value(record, str, "plan_hash"),
        "device": _value(record, str, "machine", "device"),
        "hosts": _value(record, int, "machine", "hosts"),
        # Results of earlier versions do not say.
        "samples": "read" if record.get("with_loader") else "in memory",
        **_value(record, dict, "machine", "versions"),
    }


def _value(record: Any, kind: type | tuple[type, ...], *path: str) -> Any:
    """Return a value of a record. Raises: ValueError if it is missing or has another type."""
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
    """Compare a result with an earlier one, as under `compared` of `bench --json`."""
    before, now = old.circumstances, _circumstances(record)
    names = [*before, *(name for name in now if name not in before)]
    pairs = {name: {"old": before.get(name), "new": now.get(name)} for name in names}
    speed, of_language = record["speed"], old.language_tokens_per_s_per_rank
    return {
        "command": old.command,
        "date": old.date,
        "step_time": record["step_s"]["median"] / old.step_s,
        "tokens_per_s_per_rank": speed["tokens_per_s_per_rank"] / old.tokens_per_s_per_rank,
        _OF_LANGUAGE: of_language and speed[_OF_LANGUAGE] / of_language,
        "changed": {name: pair for name, pair in pairs.items() if pair["old"] != pair["new"]},
    }


def compared_lines(comparison: Record, *, each: str) -> Iterator[str]:
    """Yield a comparison as lines of text; `each` is the word for a rank."""
    yield f"against {comparison['command']} of {comparison['date']}:"
    yield f"  step time x {comparison['step_time']:.3f}"
    yield f"  tokens/s per {each} x {comparison['tokens_per_s_per_rank']:.3f}"
    if comparison[_OF_LANGUAGE] is not None:
        yield f"  language tokens/s per {each} x {comparison[_OF_LANGUAGE]:.3f}"
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


def tables(record: Record) -> Iterator[Table | str]:
    """Yield the printed parts of a bench."""
    machine, count = record["machine"], len(record["ranks"])
    versions = ", ".join(f"{name} {v}" for name, v in machine["versions"].items() if v)
    hosts = f" on {machine['hosts']} hosts" if machine["hosts"] > 1 else ""
    yield f"{record['name']}: {count} x {machine['device']}{hosts}, {record['precision']}"
    yield f"{versions}; plan {record['plan_hash']}"
    if record["twin_of"] is not None:
        yield f"text-only twin of {record['twin_of']}: language alone, same positions"
    if record["skipped"]:
        yield f"warning: {record['skipped']} timed steps had a non-finite loss or gradient"
    each = "GPU" if machine["device_kind"] == "cuda" else "rank"
    times = {
        "median": "step_s.median", "min": "step_s.minimum", "1st quartile": "step_s.q1",
        "3rd quartile": "step_s.q3", "max": "step_s.maximum", "plan": "estimated_step_s",
    }  # fmt: skip
    yield ""
    steps = Column("timed steps", "steps")
    yield _table((steps, *(Column(name, path, _time) for name, path in times.items())), [record])
    speed = (
        Column("tokens/s", "speed.tokens_per_s", "{:,.0f}".format),
        Column(f"per {each}", "speed.tokens_per_s_per_rank", "{:,.0f}".format),
        Column("of language", "speed.language_tokens_per_s_per_rank", "{:,.0f}".format),
        Column(
            "model work",
            "speed.tflop",
            lambda work: ", ".join(f"{name} {_flop(tflop)}" for name, tflop in work.items()),
        ),
        Column(f"per {each} and second", "speed.tflops_per_rank", _flop),
        Column("MFU", lambda record: _mfu(record["speed"])),
    )
    yield ""
    yield _table(speed, [record])
    yield from _of_ranks(record)
    if "compared" in record:
        yield ""
        yield from compared_lines(record["compared"], each=each)


def _table(columns: Iterable[Column], rows: Sequence[Record]) -> Table:
    return Table(tuple(columns), rows, none="-")


def _mfu(speed: Record) -> str | None:
    if speed["peak_tflops"] is None:
        return None
    return f"{speed['mfu']:.1%} of {_flop(speed['peak_tflops'])}/s"


def _of_ranks(record: Record) -> Iterator[Table | str]:
    """Yield the shares of each rank's time, and its memory."""
    shown = record["ranks"][:MAX_RANKS]
    # All-to-alls happen only where experts are spread over ranks.
    travels = any(rank["shares"]["all_to_all"] for rank in record["ranks"])
    shares = {
        name: f"shares.{key}" for key, name in _SHARES.items() if travels or key != "all_to_all"
    }
    shares |= {"bubble": "bubble", "plan": "estimated_bubble"}
    percents = (Column(name, path, "{:.1%}".format) for name, path in shares.items())
    yield ""
    yield _table((Column("rank"), *percents), shown)
    if record["with_loader"]:
        yield ""
        waits = {"waited for samples": "waited_s.median", "at most": "waited_s.maximum"}
        columns = [
            *(Column(name, f"loading.{path}", _time) for name, path in waits.items()),
            Column("of all steps", "loading.share", "{:.1%}".format),
            Column("read a step", "loading.read_s.median", _time),
        ]
        yield _table((Column("rank"), *columns), shown)
    sizes = {"resident": "resident"}
    # The plan counts the memory of GPUs.
    if record["machine"]["device_kind"] == "cuda":
        sizes = {"allocated": "allocated", "reserved": "reserved", "of the GPU": "used"}
        sizes |= {"plan, allocated": "estimated_allocated", "plan, in all": "estimated_total"}
    modules = Column("modules", lambda rank: " ".join(rank["modules"]) or None)
    gigabytes = (
        Column(name, f"memory.{key}", lambda size: f"{size / 1e9:.2f} GB")
        for name, key in sizes.items()
    )
    yield ""
    yield _table((Column("rank"), modules, *gigabytes), shown)
    hidden = len(record["ranks"]) - len(shown)
    if hidden:
        yield f"{hidden} more ranks: see bench.json"


def constants_table(event: CalibrationFinished) -> Table:
    """Return the table of the measured constants."""
    columns = (
        Column("constant", "name"),
        Column("value", lambda each: event.constants[each.name], "{:,.4g}".format),
        Column("unit", "metadata.unit"),
        Column("meaning", "metadata.meaning"),
    )
    return Table(columns, [each for each in constants() if each.name in event.measured])


def _time(seconds: float) -> str:
    return f"{seconds:.3f} s" if seconds >= 1 else f"{seconds * 1e3:.2f} ms"


def fit_of(event: CalibrationFinished) -> str:
    """Describe how well the constants explain the timed steps, which gave some of them."""
    off = event.estimated_step_s / event.step_s - 1
    return (
        f"step: {seconds_text(event.step_s)} measured (median), "
        f"{seconds_text(event.estimated_step_s)} estimated with these constants, {off:+.1%}"
    )


def _flop(tflop: float) -> str:
    """Format a number of operations with three digits or more."""
    for unit in ("TFLOP", "GFLOP"):
        if tflop >= 1:
            return f"{tflop:,.1f} {unit}" if tflop >= 100 else f"{tflop:.3g} {unit}"
        tflop *= 1e3
    return f"{tflop:.3g} MFLOP"


class BenchScreen(CountScreen):
    """Listener that draws a bar of `steps` steps, then the result, compared with `old` if given.

    With `plain` it draws no bar.
    """

    def __init__(
        self, console: Console, plain: bool, *, steps: int, as_json: bool, old: Earlier | None
    ) -> None:
        super().__init__(console, plain, what="step", total=steps)
        self._as_json, self._old = as_json, old

    def __call__(self, event: Event) -> None:
        """Draw an event."""
        match event:
            case StepFinished():
                self._count(event.step)
            case BenchFinished():
                self._bars.stop()
                self._answer(event.record)
            case CalibrationFinished():
                self._bars.stop()
                wrote = [] if event.file is None else [f"wrote {event.file}"]
                self._print([constants_table(event), fit_of(event), *wrote])
            case _:
                for line in other_lines(event):
                    self._console.note(line)

    def _answer(self, record: Record) -> None:
        if self._old is not None:
            record = {**record, "compared": compared(record, self._old)}
        if self._as_json:
            self._console.answer(json.dumps(record, indent=1))
        else:
            self._print(tables(record))

    def _print(self, parts: Iterable[Table | str]) -> None:
        output = run_output()
        colors = self._console.colors(output)
        rich = RichConsole(file=output, width=table_width(), no_color=not colors)
        for part in parts:
            shown = PlainTable(part) if isinstance(part, Table) else part
            rich.print(shown, highlight=False, markup=False, soft_wrap=isinstance(part, str))
