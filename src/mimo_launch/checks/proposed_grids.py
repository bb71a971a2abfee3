"""Proposes another grid on the same ranks where a grid cannot cut a model.

Decides: which grid is nearest to the one that was written.
Relies on: the rules about sizes, which judge every candidate.
Leaves: the model as it is: another number of heads would be another model.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from math import log2

from mimo_launch.checks.rule import Rule, divisors, run_rules
from mimo_launch.diag.diagnostic import Diagnostic, YamlPath
from mimo_launch.spec.base import AXES
from mimo_launch.spec.spec import Grid, MissingPartError, Spec

# Findings that another grid ends.
_CODES = (
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
_MOST_TRIED = 200


def with_grids(
    spec: Spec, findings: Sequence[Diagnostic], rules: Sequence[Rule]
) -> list[Diagnostic]:
    """Return findings whose help is the nearest grid on which no rule has a new finding."""
    faulty = {str(item.path[1]) for item in findings if item.code in _CODES}
    grids = {name: _nearest(spec, name, rules) for name in sorted(faulty)}
    return [
        replace(item, help=_help(item, grid, spec.modules[str(item.path[1])].grid))
        if item.code in _CODES and (grid := grids[str(item.path[1])]) is not None
        else item
        for item in findings
    ]


def _help(item: Diagnostic, grid: Grid, written: Grid) -> str:
    shown = show_grid(grid)
    if item.code != "grid-size-mismatch":
        return f"write `{shown}`"
    # One size alone is the smaller change.
    other = item.help.removeprefix("these fit: ")
    if not other.startswith("`ranks"):
        return item.help
    # Another rank is the smaller change if the model would be cut in another way.
    same = all(getattr(grid, axis) == getattr(written, axis) for axis in AXES if axis != "dp")
    return f"write `{shown}`, or {other}" if same else f"write {other}, or `{shown}`"


def show_grid(grid: Grid) -> str:
    """Return the line of a spec for a grid."""
    sizes = {axis: getattr(grid, axis) for axis in ("tp", "cp", "pp", "dp")}
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
        changed = module.model_copy(update={"grid": grid})
        modules = {**spec.modules, name: changed}
        after = faults(spec.model_copy(update={"modules": modules}), rules)
        if any(code in _CODES and path[1] == name for code, path in after):
            continue
        if after <= before:
            return grid
        # It cuts the model; what it leaves to mend is elsewhere, such as in the batch.
        some = some or grid
    return some


def faults(spec: Spec, rules: Sequence[Rule]) -> set[tuple[str, YamlPath]]:
    """Return the code and the place of each error that rules find."""
    return {(item.code, item.path) for item in run_rules(spec, rules) if item.is_error}


def nearest_grids(written: Grid, num_ranks: int) -> list[Grid]:
    """Return the grids on some ranks that are worth a try, the nearest first.

    Raises: MissingPartError if a size of the grid is wrong: then none is nearest.
    """
    return sorted(grids_of(num_ranks), key=lambda each: _distance(written, each))[:_MOST_TRIED]


def grids_of(num_ranks: int) -> list[Grid]:
    """Return every grid on some ranks, those with a smaller tp first, then cp, then pp."""
    sizes = divisors(num_ranks)
    return [
        Grid(tp=tp, cp=cp, pp=pp, dp=num_ranks // (tp * cp * pp))
        for tp, cp, pp in product(sizes, sizes, sizes)
        if tp * cp * pp <= num_ranks and num_ranks % (tp * cp * pp) == 0
    ]


def _distance(written: Grid, grid: Grid) -> tuple[int, int, float]:
    """Order grids: few axes changed besides dp, rather to a smaller size, and by little."""
    steps = [log2(getattr(grid, axis) / getattr(written, axis)) for axis in AXES if axis != "dp"]
    changed = sum(step != 0 for step in steps)
    return changed, sum(step > 0 for step in steps), sum(map(abs, steps))
