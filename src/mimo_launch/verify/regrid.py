"""Reduces grids of many ranks to few, with the same relations between modules.

Decides: what else of a spec follows from smaller grids: ranks, groups of microbatches, the batch.
Relies on: `search_grids` for the grids.
Leaves: model sizes to `shrink`.
"""

from math import lcm

from mimo_launch.layout.encoder_placement import LANGUAGE
from mimo_launch.spec.model import Grid, HybridModel, LanguageModel, ModuleSpec, ScheduleSpec, Spec
from mimo_launch.verify.placing import Placing
from mimo_launch.verify.search_grids import fewest, kv_heads_on

# Grids of at most so many ranks are proved as they are.
MAX_RANKS = 32
# Larger ones are reduced, to as few as keep everything; never more than these.
MOST_RANKS = 64


def regrid(spec: Spec, most_ranks: int = MOST_RANKS) -> Spec:
    """Return the spec on small grids, whose modules lie to each other as before.

    Raises: ValueError if that takes more than `most_ranks` ranks.
    """
    choices, cuts = fewest(spec, most_ranks)
    placing = Placing.of(spec)
    modules = {}
    for name, module in spec.modules.items():
        start, stop = (cuts[end] for end in placing.ends[name])
        grid = choices[name].grid
        modules[name] = module.model_copy(
            update={
                "grid": grid,
                "ranks": _written(start, stop),
                "experts": choices[name].experts,
                "model": _regrid_model(module, grid),
            }
        )
    # A batch that every dp size and group size divides, with two samples per microbatch.
    share = lcm(*(module.grid.dp for module in modules.values()))
    schedule = _regrid_schedule(spec, modules[LANGUAGE].grid.pp)
    size = 2 * share * schedule.microbatches
    idle = placing.idle and _written(*(cuts[end] for end in placing.idle))
    return spec.model_copy(
        update={
            "modules": modules,
            "schedule": schedule,
            "idle_ranks": idle,
            "batch": spec.batch.model_copy(update={"global_": size}),
        }
    )


def _written(start: int, stop: int) -> str:
    return str(start) if stop == start + 1 else f"{start}-{stop - 1}"


def _regrid_model(module: ModuleSpec, grid: Grid) -> object:
    """Return the model with key/value heads and Mamba groups shared as before."""
    model = module.model
    if isinstance(model, LanguageModel) and model.num_kv_heads < module.grid.tp:
        heads = kv_heads_on(model, module.grid, grid)
        model = model.model_copy(update={"kv_heads": heads})
    if isinstance(model, HybridModel) and model.mamba:
        groups = _regrid_groups(model.mamba.groups, module.grid, grid)
        sizes = model.mamba.model_copy(update={"groups": groups})
        model = model.model_copy(update={"mamba": sizes})
    return model


def _regrid_groups(groups: int, old: Grid, new: Grid) -> int:
    """Keep whether tp ranks, and cp ranks inside of them, share a Mamba group or have several."""
    if groups < old.tp:
        return 1
    local = groups // old.tp
    return new.tp * (new.cp * min(2, local // old.cp) if local >= old.cp else 1)


def _regrid_schedule(spec: Spec, pp: int) -> ScheduleSpec:
    """Interleaving needs a multiple of pp microbatches, in each group too."""
    schedule, old = spec.schedule, spec.language.grid.pp
    if schedule.kind != "interleaved":
        return schedule
    group = schedule.encoder_microbatches
    update = {
        "microbatches": pp * (schedule.microbatches // old),
        "encoder_microbatches": None if group is None else pp * max(1, group // old),
    }
    return schedule.model_copy(update=update)
