"""Reduces grids of many ranks to few, axis by axis.

Decides: the size of each reduced axis (even above 2: 2, odd: 3) and where modules come to stand.
Relies on: nothing but the spec.
Leaves: model sizes and batch to `shrink`.

Which axes exceed 1, their order, and which modules are colocated, disjoint or overlapping is kept.
"""

from collections.abc import Mapping
from math import lcm

from mimo_launch.spec.model import (
    ExpertGrid,
    Grid,
    HybridModel,
    LanguageModel,
    ModuleSpec,
    ScheduleSpec,
    Spec,
)

MAX_RANKS = 32


def regrid(spec: Spec, smaller: Mapping[str, Grid] | None = None) -> Spec:
    """Return the spec on small grids: those that are given, else every axis reduced.

    Modules on equal ranks get equally many (possibly by a larger dp); the others keep their order
    of first ranks, and an overlap stays an overlap.
    """
    grids = dict(smaller or {n: reduced(module.grid) for n, module in spec.modules.items()})
    for group in _equal_ranges(spec):
        size = lcm(*(grids[name].num_ranks for name in group))
        for name in group:
            grid = grids[name]
            grids[name] = grid.model_copy(update={"dp": grid.dp * size // grid.num_ranks})
    firsts = _first_ranks(spec, grids)
    modules: dict[str, ModuleSpec] = {}
    for name, module in spec.modules.items():
        first, last = firsts[name], firsts[name] + grids[name].num_ranks - 1
        ranks = f"{first}-{last}" if last > first else str(first)
        model = module.model
        if isinstance(model, LanguageModel) and model.num_kv_heads < module.grid.tp:
            # Fewer key/value heads than tp ranks: still shared on the smaller grid.
            model = model.model_copy(update={"kv_heads": 1})
        if isinstance(model, HybridModel) and model.mamba:
            groups = _regrid_groups(model.mamba.groups, module.grid, grids[name])
            sizes = model.mamba.model_copy(update={"groups": groups})
            model = model.model_copy(update={"mamba": sizes})
        update = {"grid": grids[name], "ranks": ranks, "model": model}
        if module.experts is not None:
            update["experts"] = _regrid_experts(module.experts, grids[name])
        modules[name] = module.model_copy(update=update)
    # A batch that every dp size and group size divides, with two samples per microbatch.
    share = lcm(*(grid.dp for grid in grids.values()))
    schedule = _regrid_schedule(spec, grids["language"].pp)
    replicas, microbatches = grids["language"].dp, schedule.microbatches
    size = replicas * microbatches * (2 * share // replicas or 1)
    return spec.model_copy(
        update={
            "modules": modules,
            "schedule": schedule,
            "idle_ranks": None,
            "batch": spec.batch.model_copy(update={"global_": max(size, replicas * microbatches)}),
        }
    )


def _regrid_groups(groups: int, old: Grid, new: Grid) -> int:
    """Keep whether tp ranks, and cp ranks inside of them, share a Mamba group or have several."""
    if groups < old.tp:
        return 1
    local = groups // old.tp
    return new.tp * (new.cp * min(2, local // old.cp) if local >= old.cp else 1)


def _regrid_experts(sizes: ExpertGrid, grid: Grid) -> ExpertGrid:
    """Keep which axes of the experts exceed 1, as far as the ranks of a stage go."""
    ranks = grid.tp * grid.cp * grid.dp

    def fitting(size: int, room: int) -> int:
        return next((n for n in (2, 3) if size > 1 and room % n == 0), 1)

    tp = fitting(sizes.tp, ranks)
    return ExpertGrid(tp=tp, ep=fitting(sizes.ep, ranks // tp))


def _regrid_schedule(spec: Spec, pp: int) -> ScheduleSpec:
    """Interleaving needs a multiple of pp microbatches, in each group too."""
    schedule, old = spec.schedule, spec.language.grid.pp
    if schedule.kind != "interleaved":
        return schedule
    group = schedule.encoder_microbatches
    update = {
        "microbatches": pp * (schedule.microbatches // old),
        "encoder_microbatches": None if group is None else pp * (group // old),
    }
    return schedule.model_copy(update=update)


def reduced(grid: Grid) -> Grid:
    """Return a grid with every axis reduced."""

    def size(value: int) -> int:
        return value if value <= 2 else 3 if value % 2 else 2

    return Grid(tp=size(grid.tp), cp=size(grid.cp), pp=size(grid.pp), dp=size(grid.dp))


def _equal_ranges(spec: Spec) -> list[list[str]]:
    groups: dict[str, list[str]] = {}
    for name, module in spec.modules.items():
        groups.setdefault(module.ranks, []).append(name)
    return list(groups.values())


def _first_ranks(spec: Spec, grids: dict[str, Grid]) -> dict[str, int]:
    """Lay modules out in the order of their first ranks, without holes."""
    order = sorted(spec.modules, key=lambda n: (spec.modules[n].rank_range.start, n))
    firsts: dict[str, int] = {}
    for name in order:
        old, place = spec.modules[name].rank_range, 0
        for other, first in firsts.items():
            before = spec.modules[other].rank_range
            end = first + grids[other].num_ranks
            if before == old:
                place = first
                break
            overlaps = old.start < before.stop and before.start < old.stop
            place = max(place, end - 1 if overlaps else end)
        firsts[name] = place
    return firsts
