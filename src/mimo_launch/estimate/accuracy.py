"""How far the estimates of steps were off that were measured: for `plan`, and for the docs.

Decides: which measured steps are like an estimated one: those with the same traits, else those that
wait for their hosts as it does, or do not.
Relies on: `accuracy.json`, which `python -m tests.docs.accuracy_page` makes of the measured steps
in docs/measured_steps.json by the constants as they ship.
Leaves: showing it to `drawing`.
"""

import json
from collections.abc import Iterable
from functools import cache
from importlib import resources
from statistics import mean
from typing import Any

from mimo_launch.diag.frozen import frozen
from mimo_launch.estimate.rows import Estimates
from mimo_launch.kinds.layer import LayerKind
from mimo_launch.kinds.registry import kind_of
from mimo_launch.spec.spec import Spec

# The trait of steps that wait for a host to start kernels. They are estimated worst: hosts differ.
HOST = "host"
# The share of a step that a rank waits at least.
_WAITS = 0.02


@frozen(kw_only=True)
class Judged:
    """A measured step: how far its estimates were off, as shares of the measurement.

    `memory` is the error of the stage that is off most, None if memory was not measured.
    """

    family: str
    device: str
    gpus: int
    traits: frozenset[str]
    step: float
    memory: float | None


@frozen(kw_only=True)
class Accuracy:
    """How far estimates of some measured steps were off, and on how many GPUs these ran.

    `alike`: they have the same traits as the step that is estimated. `waits`: they wait for hosts.
    """

    steps: int
    alike: bool
    waits: bool
    mean: float
    worst: float
    devices: tuple[str, ...]
    gpus: tuple[int, int]

    @property
    def text(self) -> str:
        """The errors in a line."""
        what = "like this one" if self.alike else "of other models or layouts"
        what += ", waiting for hosts," if self.waits else ""
        first, last = self.gpus
        number = f"{first}" if first == last else f"{first} to {last}"
        where = f"(on {number} {' and '.join(self.devices)})"
        if self.steps == 1:
            return f"1 measured step {what} was {self.mean:.0%} off {where}"
        return (
            f"{self.steps} measured steps {what} were {self.mean:.0%} off on average, "
            f"{self.worst:.0%} at most {where}"
        )


def traits_of(spec: Spec, estimates: Estimates) -> frozenset[str]:
    """Return what decides how well a step can be estimated: layers, types, cuts, its host."""
    found = set[str]()
    for module in spec.modules.values():
        kind = kind_of(module.model)
        kinds = {kind.layer_kind(number) for number in range(module.model.layers)}
        found |= {each.value for each in kinds - {LayerKind.BLOCK}}
        cuts = {"tp": module.grid.tp, "cp": module.grid.cp, "pp": module.grid.pp}
        found |= {axis for axis, size in cuts.items() if size > 1}
        found |= {"fp8"} if module.fp8 is not None else set()
        found |= {"generator"} if kind.computes_loss and not kind.reads_tokens else set()
    if max(rank.starting for rank in estimates.ranks) > _WAITS:
        found.add(HOST)
    return frozenset(found)


def accuracy_for(spec: Spec, estimates: Estimates) -> Accuracy:
    """Return how far estimates of steps like that of a spec were off."""
    traits = traits_of(spec, estimates)
    near = [row for row in judged_steps() if (HOST in row.traits) == (HOST in traits)]
    alike = [row for row in near if row.traits == traits]
    return accuracy_of(alike or near, alike=bool(alike))


def accuracy_of(rows: Iterable[Judged], *, alike: bool) -> Accuracy:
    """Return how far the estimates of one step or more were off."""
    found = list(rows)
    off = [abs(row.step) for row in found]
    gpus = [row.gpus for row in found]
    return Accuracy(
        steps=len(found),
        alike=alike,
        waits=all(HOST in row.traits for row in found),
        mean=mean(off),
        worst=max(off),
        devices=tuple(sorted({row.device for row in found})),
        gpus=(min(gpus), max(gpus)),
    )


@cache
def judged_steps() -> tuple[Judged, ...]:
    """Return the measured steps that are judged."""
    text = resources.files(__package__).joinpath("accuracy.json").read_text(encoding="utf-8")
    rows: list[dict[str, Any]] = json.loads(text)
    return tuple(Judged(**{**row, "traits": frozenset(row["traits"])}) for row in rows)
