"""Specs on few ranks: what is left of a layout when a machine has fewer GPUs than it has ranks."""

from mimo_launch.checks.all_checks import check
from mimo_launch.layout.layout import world_size
from mimo_launch.spec.spec import Spec
from mimo_launch.verify.shrink import shrink
from mimo_launch.verify.shrink_grids import regrid


def fitted(spec: Spec, num_ranks: int, precision: str = "fp64") -> Spec | None:
    """Return the shrunk spec, unchanged if it fits, else on at most `num_ranks` ranks.

    As many axes as possible stay above 1, pipelines before data parallelism; which modules are
    colocated, disjoint or overlap stays. None if nothing legal fits.
    """
    if world_size(spec) <= num_ranks:
        return shrink(spec, precision)
    try:
        small = shrink(regrid(spec, num_ranks), precision)
    except ValueError:
        return None
    return None if any(finding.is_error for finding in check(small)) else small
