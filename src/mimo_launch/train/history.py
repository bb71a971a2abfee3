"""Reads the steps of a run from its `metrics.jsonl`.

Decides: that an incomplete last line, and lines that are not records, are left out and counted;
that a file without a step is an error; that the later record of a repeated step counts.
Relies on: `metrics_file`, which writes it; no torch.
Leaves: drawing and tables to `cli`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from mimo_launch.spec.files import parse_json
from mimo_launch.train.events import PlanCompared
from mimo_launch.train.metrics_file import METRICS

Record = dict[str, Any]
_PLAN = {each.name for each in fields(PlanCompared)} - {"step"}
# Steps, and a value for each; NaN where a number was not finite or was not written.
Curve = tuple[list[int], list[float]]


class NoHistory(Exception):
    """There are no metrics to show; `help` tells the user what to do."""

    def __init__(self, message: str, help_: str) -> None:
        super().__init__(message)
        self.help = help_


@dataclass(frozen=True, slots=True)
class History:
    """A run's records, by step. `run` is the folder of its file.

    `resumes` are the records of starts from a checkpoint, in order. `against_plan` has the newest
    numbers that were compared with the plan. `ended_early` if the last step is one after which
    `eval.stop_after` ended the run.
    """

    name: str
    run: Path
    file: Path
    steps: list[Record]
    evals: list[Record]
    resumes: list[Record]
    against_plan: Record
    num_other_lines: int
    ended_early: bool = False

    def curve(self, key: str) -> Curve:
        """Return the curve of a field over all steps."""
        return _curve(self.steps, [record.get(key) for record in self.steps])

    def norms(self) -> dict[str, Curve]:
        """Return the gradient norm of each module, in the order of the spec."""
        return self._curves("grad_norms")

    def losses(self) -> dict[str, Curve]:
        """Return the loss of each module; empty if only language has a loss."""
        return self._curves("losses")

    def _curves(self, key: str) -> dict[str, Curve]:
        """Return the curve of each name in a field that has numbers by name."""
        found = [_dict(record, key) for record in self.steps]
        names = dict.fromkeys(name for each in found for name in each)
        return {name: _curve(self.steps, [each.get(name) for each in found]) for name in names}

    def rates(self) -> dict[tuple[str, ...], Curve]:
        """Return learning rates; modules with always equal rates share an entry."""
        found: dict[tuple[str, ...], Curve] = {}
        for name, curve in self._curves("lrs").items():
            same = next((key for key, other in found.items() if other == curve), ())
            found.pop(same, None)
            found[(*same, name)] = curve
        return found

    @property
    def eval_sets(self) -> list[str]:
        """The names of the sets that were evaluated; the name of an only set is empty."""
        return list(dict.fromkeys(_set_of(record) for record in self.evals))

    def eval_curve(self, key: str, eval_set: str = "") -> Curve:
        """Return the curve of a field over all evaluations of a set."""
        evals = [record for record in self.evals if _set_of(record) == eval_set]
        return _curve(evals, [record.get(key) for record in evals])

    def resumed_after(self) -> list[int]:
        """Return the steps after which the run was resumed, each once."""
        return sorted({record["step"] for record in self.resumes})

    def total(self, key: str) -> int:
        """Return the sum of a count or flag over all steps."""
        numbers = [_number(record.get(key)) for record in self.steps]
        return sum(int(number) for number in numbers if math.isfinite(number))


def read_history(path: Path) -> History:
    """Read a run folder or a metrics file.

    Raises: NoHistory, also if the file cannot be read.
    """
    file = path / METRICS if path.is_dir() else path
    if file.exists() and not file.is_file():
        raise NoHistory(f"{file} is not a regular file", _instead_of(path))
    try:
        lines = file.read_bytes().split(b"\n")
    except FileNotFoundError:
        raise NoHistory(f"there is no {file}", _instead_of(path)) from None
    except OSError as error:
        raise NoHistory(f"cannot read {file}: {error.strerror}", "check its permissions") from None
    *whole, last = lines
    found = [_record(line) for line in whole if line.strip()]
    # A line without a newline: a run is writing it, or was killed while writing it.
    half = _record(last)
    records = [record for record in (*found, half) if record is not None]
    steps, evals = _by_step(records)
    resumes = [record for record in records if "resumed_from" in record]
    compared = {key: value for record in records for key, value in record.items() if key in _PLAN}
    if not steps:
        raise NoHistory(
            f"{file} holds no step",
            "wait for the first step of the run"
            if not found
            else "name the folder of a run of `mimo-launch train`, or its metrics.jsonl",
        )
    run = file.parent
    name = run.resolve().name if file.name == METRICS else file.stem
    ended = any(each["step"] == steps[-1]["step"] for each in records if "ended_early" in each)
    return History(name, run, file, steps, evals, resumes, compared, found.count(None), ended)


def moving_average(values: Sequence[float], width: int) -> list[float]:
    """Return the mean of the finite values among the last `width` at each position."""
    sums, counts = [0.0], [0]
    for value in values:
        is_number = math.isfinite(value)
        sums.append(sums[-1] + (value if is_number else 0.0))
        counts.append(counts[-1] + is_number)
    means = []
    for end in range(1, len(sums)):
        begin = max(0, end - width)
        count = counts[end] - counts[begin]
        means.append((sums[end] - sums[begin]) / count if count else math.nan)
    return means


def thinned(curve: Curve, most: int) -> Curve:
    """Return a curve with about `most` points at most that keeps every peak and every gap."""
    steps, values = curve
    if len(steps) <= most:
        return curve
    stride = math.ceil(2 * len(steps) / most)
    kept: list[int] = []
    for begin in range(0, len(steps), stride):
        part = range(begin, min(begin + stride, len(steps)))
        numbers = [at for at in part if math.isfinite(values[at])]
        if not numbers:
            kept.append(begin)
            continue
        kept += sorted({min(numbers, key=values.__getitem__), max(numbers, key=values.__getitem__)})
    return [steps[at] for at in kept], [values[at] for at in kept]


def _record(line: bytes) -> Record | None:
    """Return a line as a record that has a step, or None."""
    try:
        record = parse_json(line.decode("utf-8"))
    except ValueError:
        return None
    if not isinstance(record, dict) or not isinstance(record.get("step"), int):
        return None
    return record


def _by_step(records: Sequence[Record]) -> tuple[list[Record], list[Record]]:
    """Return steps and evaluations; a record repeated after a resume replaces the earlier one."""
    steps: dict[int, Record] = {}
    evals: dict[int, dict[str, Record]] = {}
    for record in records:
        at = record["step"]
        if "loss" in record:
            went_back = bool(steps) and at <= next(reversed(steps))
            for later in [step for step in steps if step >= at] if went_back else ():
                del steps[later]
                evals.pop(later, None)
            steps[at] = record
        elif "eval_loss" in record:
            evals.setdefault(at, {})[_set_of(record)] = record
    return list(steps.values()), [each for at in evals.values() for each in at.values()]


def _set_of(record: Record) -> str:
    name = record.get("eval_set")
    return name if isinstance(name, str) else ""


def _curve(records: Sequence[Record], values: Sequence[Any]) -> Curve:
    return [record["step"] for record in records], [_number(value) for value in values]


def _number(value: Any) -> float:
    try:
        return float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:  # An integer with hundreds of digits.
        return math.nan


def _dict(record: Record, key: str) -> Record:
    found = record.get(key)
    return found if isinstance(found, dict) else {}


def _instead_of(path: Path) -> str:
    """Return advice on what to write instead of a path without metrics."""
    if not path.exists():
        return "give the folder of a run, such as runs/NAME, or its metrics.jsonl"
    runs = sorted(file.parent for file in path.glob(f"*/{METRICS}"))
    if runs:
        return "give one or several of its runs: " + " ".join(str(run) for run in runs[:5])
    return "give a folder that `mimo-launch train` has trained in; this one has no metrics"
