"""Specs on few ranks: what is left of a layout when a machine has fewer GPUs than it has ranks."""

from itertools import product

from mimo_launch.layout.checks.entry import check
from mimo_launch.layout.layout import world_size
from mimo_launch.spec.model import Grid, Spec
from mimo_launch.verify.regrid import reduced, regrid
from mimo_launch.verify.shrink import shrink

# What a layout loses last has the most weight: data parallelism is in nearly all of them.
AXES = {"pp": 1.4, "cp": 1.3, "tp": 1.2, "dp": 1.0}


def fitted(spec: Spec, num_ranks: int, precision: str = "fp64") -> Spec | None:
    """Return the shrunk spec, unchanged if it fits, else on at most `num_ranks` ranks.

    As many axes as possible stay above 1, pipelines before data parallelism, then as many ranks as
    possible are used; which modules are colocated, disjoint or overlap stays. None if nothing legal
    fits.
    """
    if world_size(spec) <= num_ranks:
        return shrink(spec, precision)
    names = list(spec.modules)
    choices = product(*(_smaller(reduced(spec.modules[name].grid)) for name in names))
    found = (regrid(spec, dict(zip(names, grids, strict=True))) for grids in choices)
    fitting = [made for made in found if world_size(made) <= num_ranks]
    fitting.sort(key=lambda made: (-_kept(made), -world_size(made)))
    small = (shrink(made, precision) for made in fitting)
    return next((made for made in small if not any(f.is_error for f in check(made))), None)


def _smaller(grid: Grid) -> list[Grid]:
    """Return all grids with some axes of this one at 1."""
    sizes = [sorted({1, getattr(grid, axis)}) for axis in AXES]
    return [Grid(**dict(zip(AXES, some, strict=True))) for some in product(*sizes)]


def _kept(made: Spec) -> float:
    return sum(
        weight * (getattr(module.grid, axis) > 1)
        # Sharding without replicas would shard nothing.
        + (axis == "dp" and module.sharding == "full" and module.grid.dp > 1)
        for module in made.modules.values()
        for axis, weight in AXES.items()
    )
