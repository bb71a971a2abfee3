"""Changes of settings on the same ranks and grids: for a faster step, or to need less memory.

Decides: which values are tried: microbatches, schedules, recomputing, sharding, split experts;
which of them save memory, and their order: the ones that cost least time first.
Relies on: the spec; `changes` for what a change is.
Leaves: grids and ranks to `grid_changes`; whether a change is legal and fits, and what it gains or
costs, to `advice`.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from mimo_launch.kinds.registry import kind_of
from mimo_launch.layout.samples import runs_in_phases
from mimo_launch.layout.space import divisors, group_sizes, microbatch_numbers
from mimo_launch.search.changes import Change, Ideas, Settings, changed
from mimo_launch.spec.spec import ExpertGrid, Spec

# Fewer leave the ranks of a pipeline idle for too long.
MICROBATCHES_PER_STAGE = 4
# More stages on a rank shorten bubbles by little, and send more activations.
_MOST_STAGES = 5


def setting_ideas(spec: Spec) -> Ideas:
    """Yield other settings of the same grids."""
    if not spec.train.numbers.is_mixed:
        yield "precision", {"train.precision": "bf16"}
    for name, module in spec.modules.items():
        if module.recomputes:
            yield "recompute", {f"modules.{name}.recompute": "none"}
    yield from _microbatches(spec)
    yield from _schedules(spec)
    yield from _experts(spec)
    for name, module in spec.modules.items():
        for other in ("optimizer", "full") if module.grid.dp > 1 else ():
            if module.sharding != other:
                yield "sharding", {f"modules.{name}.sharding": other}


def _microbatches(spec: Spec) -> Ideas:
    """Yield other numbers of microbatches, in a step and in a group for encoders."""
    schedule, language = spec.schedule, spec.language
    own = schedule.microbatches
    legal = microbatch_numbers(spec, language.grid)
    full = MICROBATCHES_PER_STAGE * language.grid.pp
    wanted = (2 * own, own // 2, full, 4 * own, 2 * full, 1)
    near = (min(legal, key=lambda each: (abs(each - number), each)) for number in wanted)
    for number in dict.fromkeys(near):
        if number != own:
            yield "microbatches", {"schedule.microbatches": number, **groups_for(spec, number)}
    if in_phases(spec):
        for at_once in (None, language.grid.pp):
            yield "encoder_microbatches", {"schedule.encoder_microbatches": at_once}
    elif ((at_once := _least_group(spec, own)) or 1) != (schedule.encoder_microbatches or 1):
        yield "encoder_microbatches", {"schedule.encoder_microbatches": at_once}


def _schedules(spec: Spec) -> Ideas:
    """Yield other orders of the work of a pipeline."""
    own, pp = spec.schedule, spec.language.grid.pp
    if pp == 1:
        return
    stages = [n for n in divisors(spec.language.model.layers // pp or 1) if 1 < n <= _MOST_STAGES]
    kinds = [("1f1b", 1), *(("interleaved", n) for n in dict.fromkeys((*stages[:1], *stages[-1:])))]
    if in_phases(spec):
        kinds.append(("bubble_filling", 1))
    for kind, virtual in kinds:
        if (kind, virtual) != (own.kind, own.virtual_stages):
            yield "schedule", {"schedule.kind": kind, "schedule.virtual_stages": virtual}


def _experts(spec: Spec) -> Ideas:
    """Yield other numbers of ranks over which experts are split: on a host, or on whole hosts."""
    per_host = spec.nodes.gpus if spec.nodes else 1
    for name, module in spec.modules.items():
        moe, own = kind_of(module.model).moe, module.experts or ExpertGrid()
        if moe is None:
            continue
        for ep in dict.fromkeys((2 * own.ep, own.ep // 2, per_host, 8 * own.ep, moe.experts)):
            fits_hosts = ep and (per_host % ep == 0 or ep % per_host == 0)
            if fits_hosts and ep != own.ep and moe.experts % ep == 0:
                yield "experts", {f"modules.{name}.experts": {"ep": ep, "tp": own.tp}}


def in_phases(spec: Spec) -> bool:
    """Return whether an encoder shares ranks with language."""
    return any(runs_in_phases(spec, name) for name in spec.encoders)


def groups_for(spec: Spec, microbatches: int) -> Settings:
    """Return the group of microbatches that encoders on other ranks need; nothing in phases."""
    if in_phases(spec):
        return {}
    return {"schedule.encoder_microbatches": _least_group(spec, microbatches)}


def _least_group(spec: Spec, microbatches: int) -> int | None:
    """Return the fewest microbatches that divide their samples evenly over each encoder's replicas.

    None if one is enough, or no number is.
    """
    least = next(iter(group_sizes(spec, spec.encoders, microbatches)), 1)
    return None if least == 1 else least


def recomputing_changes(spec: Spec) -> Iterator[Change]:
    """Yield full recomputation of each module, without and with full sharding."""
    for name, module in spec.modules.items():
        recompute = {f"modules.{name}.recompute": "full"}
        sharding = {f"modules.{name}.sharding": "full"} if module.grid.dp > 1 else {}
        for settings in (recompute, recompute | sharding):
            if found := changed(spec, "recompute", settings):
                yield found


def smaller_changes(spec: Spec, first: Change) -> Iterator[Change]:
    """Yield the same change with settings that need less memory, the cheapest first."""
    own, pp = first.spec, first.spec.language.grid.pp
    cut = {
        f"modules.{name}.sequence_parallel": True
        for name, module in own.modules.items()
        if module.grid.tp > 1
    }
    light: dict[str, Any] = {**cut, "schedule.encoder_microbatches": pp} if in_phases(own) else cut
    sharded = _of_modules("sharding", [n for n, m in own.modules.items() if m.grid.dp > 1])
    recomputed = _of_modules("recompute", own.modules)
    twice, four_times = _more_microbatches(own, 2), _more_microbatches(own, 4)
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
    legal = microbatch_numbers(spec, spec.language.grid)
    least = min(legal[-1], factor * spec.schedule.microbatches)
    return {"schedule.microbatches": next(each for each in legal if each >= least)}
