"""Proposes what to change where a grid cannot cut a model, or samples of a step do not divide.

Decides: which grid is nearest to the one that was written; what is offered rather than another
batch, and in which order: groups of microbatches, fewer microbatches, another grid on the same
ranks or fewer ranks, and last, separately, another batch, since training depends on it.
Relies on: the rules about sizes, which judge every candidate.
Leaves: the batch that fits to `batch`. It never changes the model: another number of heads would
be another model.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from math import log2, prod
from typing import Any

from mimo_launch.checks.rule import Rule, run_rules
from mimo_launch.diag.diagnostic import Diagnostic, YamlPath
from mimo_launch.layout.samples import grouped_encoders, shares_ranks
from mimo_launch.layout.space import divisors, grids_on
from mimo_launch.spec.base import AXES, LANGUAGE, Axis, MissingPartError, rank_text
from mimo_launch.spec.spec import Grid, Spec

# Findings that another grid resolves.
_OF_GRIDS = (
    "grid-size-mismatch",
    "heads-over-tp",
    "kv-heads-over-tp",
    "mlp-over-tp",
    "layers-over-pp",
    "shared-expert-over-tp",
    "mamba-heads-over-grid",
    "mamba-groups-over-grid",
    "deltanet-heads-over-grid",
    "deltanet-groups-over-grid",
)
_OF_HOSTS = "group-crosses-nodes"
# Findings that fewer or other shares of the batch resolve.
_OF_BATCHES = ("batch-not-divisible", "encoder-share-uneven")
_MOST_TRIED = 200

# A line to write, and the spec with it.
Offer = tuple[str, Spec]


def with_grids(
    spec: Spec, findings: Sequence[Diagnostic], rules: Sequence[Rule]
) -> list[Diagnostic]:
    """Return the findings; help offers the nearest grid on which no rule has a new finding."""
    faulty = {str(item.path[1]) for item in findings if item.code in _OF_GRIDS}
    grids = {name: _nearest(spec, name, rules) for name in sorted(faulty)}
    found = []
    for item in findings:
        grid = grids[str(item.path[1])] if item.code in _OF_GRIDS else None
        if grid is None:
            found.append(item)
            continue
        shown, help_ = show_grid(grid), item.help
        # For a grid that does not fill its ranks, one size alone is the smaller change.
        other = help_.removeprefix("these fit: ")
        if item.code != "grid-size-mismatch":
            help_ = f"write `{shown}`"
        elif other.startswith("`ranks"):
            # Other ranks are the smaller change if the grid cuts the model in another way.
            written = spec.modules[str(item.path[1])].grid
            alike = [getattr(grid, a) == getattr(written, a) for a in AXES if a != Axis.DP]
            help_ = f"`{shown}`, or {other}" if all(alike) else f"{other}, or `{shown}`"
            help_ = f"write {help_}"
        found.append(replace(item, help=help_))
    return found


def show_grid(grid: Grid) -> str:
    """Return the line of a spec for a grid."""
    sizes = {axis: getattr(grid, axis) for axis in (Axis.TP, Axis.CP, Axis.PP, Axis.DP)}
    shown = ", ".join(f"{axis}: {size}" for axis, size in sizes.items() if size > 1) or "dp: 1"
    return f"grid: {{{shown}}}"


def _nearest(spec: Spec, name: str, rules: Sequence[Rule]) -> Grid | None:
    module = spec.modules[name]
    try:
        near = nearest_grids(module.grid, len(module.rank_range))
    except MissingPartError:
        return None
    before = faults(spec, rules)
    some: Grid | None = None
    for grid in near:
        after = faults(_with_module(spec, name, grid=grid), rules)
        if any(code in _OF_GRIDS and path[1] == name for code, path in after):
            continue
        if after <= before:
            return grid
        # It cuts the model; its new findings are about something else, such as the batch.
        some = some or grid
    return some


def faults(spec: Spec, rules: Sequence[Rule]) -> set[tuple[str, YamlPath]]:
    """Return the code and the place of each error that rules find."""
    return {(item.code, item.path) for item in run_rules(spec, rules) if item.is_error}


def nearest_grids(written: Grid, num_ranks: int) -> list[Grid]:
    """Return the grids on this many ranks that are worth a try, the nearest first.

    Raises: MissingPartError if a size of the written grid is wrong: then none is nearest.
    """
    return sorted(grids_on(num_ranks), key=lambda each: _distance(written, each))[:_MOST_TRIED]


def _distance(written: Grid, grid: Grid) -> tuple[int, int, float]:
    """Return a key to sort grids: axes changed besides dp, axes made larger, size of the change."""
    steps = [log2(getattr(grid, axis) / getattr(written, axis)) for axis in AXES if axis != Axis.DP]
    changed = sum(step != 0 for step in steps)
    return changed, sum(step > 0 for step in steps), sum(map(abs, steps))


def with_shares(
    spec: Spec, findings: Sequence[Diagnostic], rules: Sequence[Rule]
) -> list[Diagnostic]:
    """Return the findings; help offers each way to resolve them without a new finding."""
    found = []
    for item in findings:
        if item.code not in _OF_BATCHES:
            found.append(item)
            continue
        name = str(item.path[1]) if item.path[0] == "modules" else LANGUAGE
        left = faults(spec, rules) - {(item.code, item.path)}
        lines: list[str] = []
        for way in (_groups(spec, name), _fewer(spec), _grids(spec, name)):
            tried = islice(way, _MOST_TRIED)
            fitting = (line for line, changed in tried if faults(changed, rules) <= left)
            with suppress(MissingPartError):
                lines += islice(fitting, 1)
        other = f"{item.help}: another batch, with which a run learns otherwise"
        if lines:
            # Each of these computes the same.
            batch = item.help.removeprefix("write ")
            other = f"write {', or '.join(lines)}; {batch} is another batch and learns otherwise"
        help_ = other
        found.append(replace(item, help=help_))
    return found


def with_hosts(
    spec: Spec, findings: Sequence[Diagnostic], rules: Sequence[Rule]
) -> list[Diagnostic]:
    """Return the findings; help offers the nearest grid with no group over two hosts, if any."""
    crossing = dict.fromkeys(str(item.path[1]) for item in findings if item.code == _OF_HOSTS)
    grids = {name: _inside_hosts(spec, name, rules) for name in crossing}
    return [
        replace(item, help=f"write `{show_grid(grid)}`, or {item.help}")
        if item.code == _OF_HOSTS and (grid := grids[str(item.path[1])]) is not None
        else item
        for item in findings
    ]


def _inside_hosts(spec: Spec, name: str, rules: Sequence[Rule]) -> Grid | None:
    """Return the nearest grid of a module on the same ranks with all groups inside hosts."""
    module, before = spec.modules[name], faults(spec, rules)
    gpus = 1 if spec.nodes is None else spec.nodes.gpus
    inner = module.order[: 1 + max(module.order.index(axis) for axis in (Axis.TP, Axis.CP))]
    for grid in nearest_grids(module.grid, len(module.rank_range)):
        # Groups of tp and cp lie within blocks of this many ranks.
        block = prod(getattr(grid, axis) for axis in inner)
        is_inside = gpus % block == 0 and module.rank_range.start % block == 0
        if is_inside and faults(_with_module(spec, name, grid=grid), rules) <= before:
            return grid
    return None


def _groups(spec: Spec, name: str) -> Iterator[Offer]:
    """Yield larger groups of microbatches, the smallest first, for a module that takes groups."""
    if name in spec.generators and shares_ranks(spec, name):
        key = "generator_microbatches"
    elif name in grouped_encoders(spec):
        key = "encoder_microbatches"
    else:
        return
    for size in divisors(spec.schedule.microbatches):
        yield f"`{key}: {size}` in `schedule`", _with_schedule(spec, {key: size})


def _fewer(spec: Spec) -> Iterator[Offer]:
    """Yield fewer microbatches, the most first."""
    for number in reversed(divisors(spec.batch.global_)):
        if number < spec.schedule.microbatches:
            yield f"`microbatches: {number}`", _with_schedule(spec, {"microbatches": number})


def _grids(spec: Spec, name: str) -> Iterator[Offer]:
    """Yield other grids on the same ranks, the nearest first; then fewer ranks."""
    module, ranks = spec.modules[name], spec.modules[name].rank_range
    for grid in nearest_grids(module.grid, len(ranks)):
        if grid.cp != module.grid.cp:
            continue  # Cp cuts long sequences, not batches.
        yield f"`{show_grid(grid)}` for `{name}`", _with_module(spec, name, grid=grid)
    unit = module.grid.num_ranks // module.grid.dp
    for dp in range(min(module.grid.dp - 1, len(ranks) // unit), 0, -1):
        grid = module.grid.replace(dp=dp)
        fewer = rank_text(ranks[: dp * unit])
        line = f"`ranks: {fewer}` for `{name}` with `{show_grid(grid)}`"
        yield line, _with_module(spec, name, ranks=fewer, grid=grid)


def _with_schedule(spec: Spec, settings: dict[str, Any]) -> Spec:
    return spec.replace(schedule=spec.schedule.replace(**settings))


def _with_module(spec: Spec, name: str, **settings: Any) -> Spec:
    module = spec.modules[name].replace(**settings)
    return spec.replace(modules={**spec.modules, name: module})
