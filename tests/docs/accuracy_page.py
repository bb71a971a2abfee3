"""The page of measured steps beside their estimates; `python -m tests.docs.accuracy_page` makes it.

The rows are in docs/measured_steps.json, and nothing is measured here. It also writes the errors
for `plan` (`estimate/accuracy.json`).
"""

import json
import shlex
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from itertools import pairwise
from math import exp, log
from pathlib import Path
from statistics import mean
from typing import Any

from tests.docs.files_page import ROOT, SOURCES

from mimo_launch.estimate.accuracy import HOST, Judged, traits_of
from mimo_launch.estimate.device_constants import Calibration, constants_for
from mimo_launch.estimate.estimates import Estimator
from mimo_launch.plan.plan import Plan
from mimo_launch.spec.load import load_spec

ROWS = ROOT / "docs" / "measured_steps.json"
PAGE = ROOT / "docs" / "accuracy.md"
ERRORS = SOURCES / "estimate" / "accuracy.json"
# A row that is off by more needs a reason in the data file.
FAR = 0.15
HEAD = """# Accuracy

Every step that was measured in this project, beside its estimate by the constants as they ship.
Rows, with command, machine, date and spread, are in [measured_steps.json](measured_steps.json);
this page is made of them. {0}

No constant was chosen so that these steps come out right, except the rate of `mamba`; `sustained`
comes from the kernels in a profile of `r1_colocated_dp4`, not from its time, `collective_overlap`
from those in profiles of this step and of `r1_dp1_dp3` with full sharding, and the time of passes
between products from profiles of single layers; the rates of `deltanet` and `deltanet_starts` come
from a profile of an earlier version of `qwen3_5_4b`. `norm_starts` and `gather_starts` were chosen
within the range of several measurements (0.06 to 0.2, 0.55 to 0.9), with these errors in view.

A step waits for its host where kernels are so short that the host cannot start them in time. Hosts
with the same GPU need between 1.8 and 3.7 ms for a block, and the same host varies by a fifth from
minute to minute; estimates count 2.08 ms. `bench --calibrate` measures it on the hosts that train.

{1}

## By model

*Without it*: the mean error of a model if its estimates are multiplied by the mean of measured over
estimated of all other models. Where this helps, one factor is wrong everywhere; where it does not,
the error is the model's own.

{2}

## All steps

A step that is off by more than {far} has its reason.

{3}
"""


@dataclass(frozen=True, slots=True)
class Row:
    """A measured step with its estimates: seconds, and GB by the stage of which they are."""

    data: dict[str, Any]
    seconds: float
    allocated: dict[str, float]
    traits: frozenset[str]

    @property
    def step(self) -> float:
        """The error of the step."""
        return self.seconds / float(self.data["step_s"]) - 1

    @property
    def memory(self) -> list[float]:
        """The errors of memory."""
        return [self.allocated[stage] / gb - 1 for stage, gb in self._measured.items()]

    @property
    def _measured(self) -> dict[str, float]:
        return dict(self.data.get("allocated_gb", {}))

    @property
    def name(self) -> str:
        """The spec, and its settings as far as they fit into a table."""
        path, settings = spec_of(self.data["command"])
        short = [f"`{each.removeprefix('modules.')}`" for each in settings]
        if len(short) > 3:
            short = [*short[:3], f"and {len(short) - 3} more settings"]
        return ", ".join([f"`{Path(path).stem}`", *short])

    def judged(self) -> Judged:
        """Return the row as `plan` reads it."""
        number, _, device = self.data["machine"].partition(" x ")
        return Judged(
            family=self.data["family"],
            device=device,
            gpus=int(number),
            traits=self.traits,
            step=round(self.step, 4),
            memory=round(max(self.memory, key=abs), 4) if self.memory else None,
        )


def spec_of(command: str) -> tuple[str, list[str]]:
    """Return the path of the spec in a command, and its settings."""
    words = shlex.split(command)
    return words[2], [each for word, each in pairwise(words) if word == "--set"]


def _row(data: dict[str, Any]) -> Row:
    path, settings = spec_of(data["command"])
    spec = load_spec(ROOT / path, settings).spec
    if spec is None:
        raise ValueError(f"{data['command']} has no legal spec")
    constants = constants_for(spec.nodes)
    if "--with-loader" not in data["command"]:
        constants = constants.without_reading
    got = Estimator.of(Plan.of(spec), constants).estimates()
    allocated = {
        stage: max(each.allocated_bytes for each in got.ranks if stage in each.role) / 1e9
        for stage in data.get("allocated_gb", {})
    }
    return Row(data, got.step_seconds, allocated, traits_of(spec, got))


@cache
def rows() -> tuple[Row, ...]:
    """Return all rows with their estimates."""
    return tuple(map(_row, json.loads(ROWS.read_text(encoding="utf-8"))))


def judged() -> list[Row]:
    """Return the rows that say something about estimates."""
    return [row for row in rows() if "not_judged" not in row.data]


def left_out(family: str) -> float:
    """Return the mean error of a family after all others have corrected its estimates.

    The correction is one factor, the geometric mean of measured over estimated of the others.
    """
    factor = exp(-mean(log(1 + row.step) for row in judged() if row.data["family"] != family))
    own = [row for row in judged() if row.data["family"] == family]
    return mean(abs(factor * (1 + row.step) - 1) for row in own)


def errors() -> str:
    """Return the errors as `plan` reads them."""
    made = [asdict(row.judged()) | {"traits": sorted(row.traits)} for row in judged()]
    return "[\n" + ",\n".join(map(json.dumps, made)) + "\n]\n"


def page() -> str:
    """Return the text of the page."""
    source = f"Kernels: {Calibration().kernels.source}."
    parts = (_summary(), _families(), _table())
    tables = ["\n".join(f"| {' | '.join(line)} |" for line in part) for part in parts]
    return HEAD.format(source, *tables, far=f"{FAR:.0%}")


def _lines(*columns: str) -> Iterator[list[str]]:
    """Yield the first lines of a table."""
    yield list(columns)
    yield ["---"] * len(columns)


def _summary() -> Iterator[list[str]]:
    yield from _lines("", "number", "mean error", "shortest", "longest")
    steps, memory = [row.step for row in judged()], [e for row in judged() for e in row.memory]
    waits = [row.step for row in judged() if HOST in row.traits]
    others = [row.step for row in judged() if HOST not in row.traits]
    for name, found in (
        ("step", steps),
        ("step that waits for its host", waits),
        ("other step", others),
        ("memory of a stage", memory),
    ):
        ends = (f"{each:+.1%}" for each in (min(found), max(found)))
        yield [name, str(len(found)), f"{mean(map(abs, found)):.1%}", *ends]


def _families() -> Iterator[list[str]]:
    yield from _lines("model", "steps", "mean error", "worst", "without it")
    for family in dict.fromkeys(row.data["family"] for row in judged()):
        own = [row.step for row in judged() if row.data["family"] == family]
        errors = f"{mean(map(abs, own)):.1%}", f"{max(own, key=abs):+.1%}"
        yield [family, str(len(own)), *errors, f"{left_out(family):.1%}"]


def _table() -> Iterator[list[str]]:
    yield from _lines(
        "spec and settings", "GPUs, date", "measured (min-max)", "estimated", "",
        "GB allocated", "estimated", "remarks",
    )  # fmt: skip
    for row in rows():
        data = row.data
        spread = f" ({data['min_s']:.3f}-{data['max_s']:.3f})" if "min_s" in data else ""
        pairs = zip(row.allocated.values(), row.memory, strict=True)
        remarks = [data[key] for key in ("note", "far_off") if key in data]
        remarks += [f"not judged: {data['not_judged']}"] if "not_judged" in data else []
        yield [
            row.name,
            f"{data['machine']}, {data['date']}",
            f"{data['step_s']:.3f} s{spread}",
            f"{row.seconds:.3f} s",
            f"{row.step:+.1%}",
            ", ".join(f"{gb:.1f}" for gb in data.get("allocated_gb", {}).values()),
            ", ".join(f"{gb:.1f} ({error:+.1%})" for gb, error in pairs),
            "; ".join(remarks),
        ]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    ERRORS.write_text(errors(), encoding="utf-8")
