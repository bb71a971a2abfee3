"""Changes to a spec by which its ranks need less memory.

Decides: which settings save memory, and their order: those that cost least time first.
Relies on: `changes` for what a change is.
Leaves: whether a change is legal and fits, and what it costs, to `advice`.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from mimo_launch.checks.rule import divisors
from mimo_launch.search.changes import Change, changed
from mimo_launch.search.setting_changes import in_phases
from mimo_launch.spec.spec import Spec


def recomputing_changes(spec: Spec) -> Iterator[Change]:
    """Yield full recomputation of each module, and full sharding beside it."""
    for name, module in spec.modules.items():
        recompute = {f"modules.{name}.recompute": "full"}
        sharding = {f"modules.{name}.sharding": "full"} if module.grid.dp > 1 else {}
        for settings in (recompute, recompute | sharding):
            if found := changed(spec, "recompute", settings):
                yield found


def smaller_changes(spec: Spec, first: Change) -> Iterator[Change]:
    """Yield the same change with settings that need less memory, those that cost least first."""
    own, pp = first.spec, first.spec.language.grid.pp
    cut = {
        f"modules.{name}.sequence_parallel": True
        for name, module in own.modules.items()
        if module.grid.tp > 1
    }
    light: dict[str, Any] = {**cut, "schedule.encoder_microbatches": pp} if in_phases(own) else cut
    sharded = _of_modules("sharding", [n for n, m in own.modules.items() if m.grid.dp > 1])
    recomputed = _of_modules("recompute", own.modules)
    twice, four_times = (_more_microbatches(own, factor) for factor in (2, 4))
    steps = (
        cut,
        light,
        light | twice,
        light | sharded,
        light | sharded | twice,
        light | four_times,
        light | twice | _of_modules("recompute", own.encoders),
        light | twice | recomputed,
        light | four_times | recomputed | sharded,
    )
    for step in steps:
        if found := changed(spec, first.kind, {**first.settings, **step}):
            yield found


def _of_modules(key: str, names: Iterable[str]) -> dict[str, Any]:
    return {f"modules.{name}.{key}": "full" for name in names}


def _more_microbatches(spec: Spec, factor: int) -> dict[str, Any]:
    share = spec.batch.global_ // spec.language.grid.dp
    least = min(share, factor * spec.schedule.microbatches)
    return {"schedule.microbatches": next(each for each in divisors(share) if each >= least)}
