"""Changes of ranks and grids, by which a step may be faster.

Decides: which placements and grids are tried, the nearest to the current ones first, and the
microbatches that go with them.
Relies on: the spec, and the GPU time of each module.
Leaves: other settings to `setting_changes`.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from mimo_launch.checks.proposals import grids_of
from mimo_launch.checks.rule import divisors, show_ranks
from mimo_launch.layout.layout import world_size
from mimo_launch.search.changes import Ideas
from mimo_launch.search.setting_changes import MICROBATCHES_PER_STAGE, groups_for, in_phases
from mimo_launch.spec.base import LANGUAGE
from mimo_launch.spec.spec import Grid, Spec

_MAX_GRIDS = 10
# Shorter sequences are cut over cp only if they already are.
_LONG = 16_384


def grid_ideas(spec: Spec) -> Ideas:
    """Yield other grids of one module on its own ranks, language first."""
    for name in sorted(spec.modules, key=lambda name: name != LANGUAGE):
        for grid in grids_on(spec, name, len(spec.modules[name].rank_range)):
            settings: dict[str, Any] = {f"modules.{name}.grid": grid.model_dump()}
            if name == LANGUAGE:
                settings |= _microbatches(spec, grid, behind=not in_phases(spec))
                settings |= groups_for(spec, settings["schedule.microbatches"])
            yield f"grid of {name}", settings


def placement_ideas(spec: Spec, work: Mapping[str, float]) -> Ideas:
    """Yield other ranks of modules: all on all ranks, or all encoders or one on separate ranks.

    `work` is the GPU time of each module in a step.
    """
    others = [name for name in spec.modules if name != LANGUAGE]
    world = world_size(spec)
    if not others:
        return
    if any(len(module.rank_range) < world for module in spec.modules.values()):
        for grid in (*_as_now(spec, world), *grids_on(spec, LANGUAGE, world)):
            settings = _microbatches(spec, grid, behind=False)
            everywhere = range(world)
            found = _placed(spec, grid, everywhere, dict.fromkeys(others, everywhere), 0)
            if found is not None:
                yield "placement", {**settings, **found}
    if spec.generators or world == 1:
        return
    needed = sum(work.get(name, 0.0) for name in others)
    share = work.get(LANGUAGE, 0.0) / max(1e-12, needed + work.get(LANGUAGE, 0.0))
    for shape in (*_as_now(spec, world), *grids_on(spec, LANGUAGE, world))[:3]:
        unit = shape.tp * shape.pp * shape.cp
        sizes = [n for n in divisors(spec.batch.global_) if n * unit < world]
        sizes.sort(key=lambda n: abs(n * unit - share * world))
        for dp in sizes[:3]:
            grid = shape.model_copy(update={"dp": dp})
            yield from _apart(spec, grid, world, others)
            if len(others) == len(spec.encoders) > 1:
                # One separate encoder, the one with most work first.
                for name in sorted(others, key=lambda name: -work.get(name, 0.0)):
                    yield from _apart(spec, grid, world, [name])


def _apart(spec: Spec, grid: Grid, world: int, names: Collection[str]) -> Ideas:
    """Yield some modules on the ranks that language leaves, all others on language's ranks."""
    own = grid.num_ranks
    left = world - own
    settings = _microbatches(spec, grid, behind=True)
    at_once = spec.batch.global_ // settings["schedule.microbatches"]
    first = left if left % grid.tp == 0 else 0
    rest = range(left) if first else range(own, world)
    ranks = range(first, first + own)
    places = {name: rest if name in names else ranks for name in spec.modules if name != LANGUAGE}
    found = _placed(spec, grid, ranks, places, at_once)
    if found is not None:
        yield "placement", {**settings, **found}


def _placed(
    spec: Spec, grid: Grid, ranks: range, places: Mapping[str, range], at_once: int
) -> dict[str, Any] | None:
    """Return the settings of a placement: language on `ranks`, every other module on its `places`.

    Modules on ranks without language work on `at_once` samples together, the others on all of a
    step. None if a module has no grid on its ranks.
    """
    settings: dict[str, Any] = {"idle_ranks": None}
    settings[f"modules.{LANGUAGE}.ranks"] = show_ranks(ranks)
    settings[f"modules.{LANGUAGE}.grid"] = grid.model_dump()
    for name, rest in places.items():
        module, samples = spec.modules[name].grid, spec.batch.global_ if rest == ranks else at_once
        # The least tp with equal shares of samples for all replicas: 1, or no less than now.
        unit = module.cp * module.pp
        sizes = [
            tp for tp in divisors(len(rest)) if tp >= module.tp and len(rest) % (tp * unit) == 0
        ]
        fits = [tp for tp in (1, *sizes) if samples % (len(rest) // (tp * unit) or 1) == 0]
        if not fits or len(rest) % unit:
            return None
        dp = len(rest) // (fits[0] * unit)
        own = Grid(tp=fits[0], cp=module.cp, pp=module.pp, dp=dp)
        settings[f"modules.{name}.ranks"] = show_ranks(rest)
        settings[f"modules.{name}.grid"] = own.model_dump()
    return settings


def _as_now(spec: Spec, num_ranks: int) -> Iterator[Grid]:
    """Yield language's grid with the dp that fills `num_ranks`, if there is one."""
    grid = spec.language.grid
    dp, rest = divmod(num_ranks, grid.tp * grid.cp * grid.pp)
    if rest == 0 and dp and spec.batch.global_ % dp == 0:
        yield grid.model_copy(update={"dp": dp})


def grids_on(spec: Spec, name: str, num_ranks: int) -> list[Grid]:
    """Return other grids of a module on this many ranks, the nearest to the current one first."""
    module, per_host = spec.modules[name], spec.nodes.gpus if spec.nodes else num_ranks
    now, cuts = module.grid, {module.grid.cp}
    if name == LANGUAGE and (now.cp > 1 or spec.batch.seq >= _LONG):
        cuts |= {2 * now.cp, max(1, now.cp // 2)}
    found = [
        grid
        for grid in grids_of(num_ranks)
        if grid.cp in cuts
        and spec.batch.global_ % grid.dp == 0
        and per_host % grid.tp == 0
        and grid.pp <= module.model.layers
        and (grid.tp, grid.pp, grid.cp) != (now.tp, now.pp, now.cp)
    ]
    found.sort(key=lambda grid: (_distance(grid, now), grid.pp, grid.cp))
    return found[:_MAX_GRIDS]


def _distance(grid: Grid, now: Grid) -> float:
    """Return how far a grid is from the current one: the sum of the factors between their sizes.

    A deeper pipeline counts twice: it waits longer, and a shallower one rarely does not fit.
    """
    deeper = 2 if grid.pp > now.pp else 1
    return _factor(grid.tp, now.tp) + deeper * _factor(grid.pp, now.pp) + _factor(grid.cp, now.cp)


def _factor(one: int, other: int) -> float:
    """Return the factor by which two sizes differ, 1 if they are equal."""
    return max(one, other) / min(one, other)


def _microbatches(spec: Spec, grid: Grid, *, behind: bool) -> dict[str, Any]:
    """Return the microbatches for a grid of language; `behind` says that encoders use other ranks.

    There are enough to fill the pipeline, and none is larger than now.
    """
    share = spec.batch.global_ // grid.dp
    now = spec.batch.global_ // (spec.language.grid.dp * spec.schedule.microbatches)
    stages = grid.pp + (behind and len(spec.modules) > 1)
    least = max(MICROBATCHES_PER_STAGE * stages if stages > 1 else 1, -(-share // now))
    fits = [number for number in divisors(share) if number >= least] or [share]
    kind = {} if grid.pp > 1 else {"schedule.kind": "1f1b", "schedule.virtual_stages": 1}
    return {"schedule.microbatches": fits[0], "schedule.encoder_microbatches": None, **kind}
