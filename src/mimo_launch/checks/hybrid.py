"""Checks of hybrid models: patterns, and Mamba-2 heads and groups over tp and cp.

Decides: which grids can cut Mamba layers.
Relies on: the model types of the spec.
Leaves: attention heads and widths, which these models have like any other, to `widths`.
"""

from math import lcm

from mimo_launch.checks.rule import Findings, divisors, next_multiple
from mimo_launch.diag.diagnostic import Diagnostic, Related, Severity
from mimo_launch.spec.language import MAMBA, MambaSizes
from mimo_launch.spec.model import Grid, HybridModel, Spec

DEFAULTS = MambaSizes(heads=1)


def mamba_has_sizes(spec: Spec, name: str, model: HybridModel) -> Findings:
    """Sizes of Mamba layers are given where there are such layers, and only there."""
    path = ("modules", name, "model")
    related = (Related(path=(*path, "pattern"), label=model.pattern),)
    if MAMBA in model.pattern and model.mamba is None:
        yield Diagnostic(
            code="mamba-without-sizes",
            headline=f"`{name}` has Mamba layers, and nothing says how large they are",
            path=(*path, "pattern"),
            why="heads, state and groups of Mamba-2 do not follow from the width",
            help=f"write `mamba: {_fitting(model.hidden, spec.modules[name].grid)}` in `model`",
        )
    if MAMBA not in model.pattern and model.mamba is not None:
        yield Diagnostic(
            code="setting-without-effect",
            severity=Severity.WARNING,
            headline=f"`mamba` of `{name}` does nothing: no layer is `{MAMBA}`",
            path=(*path, "mamba"),
            at_key=True,
            why="it says how large Mamba layers are",
            help="delete `mamba`",
            related=related,
        )


def mamba_heads_over_groups(spec: Spec, name: str, model: HybridModel) -> Findings:
    """Each group serves equally many heads."""
    sizes = _sizes(model)
    if sizes is None or sizes.heads % sizes.groups == 0:
        return
    fits = ", ".join(f"`groups: {each}`" for each in divisors(sizes.heads))
    yield Diagnostic(
        code="mamba-heads-over-groups",
        headline=f"`{name}`: groups {sizes.groups} does not divide {sizes.heads} Mamba heads",
        path=("modules", name, "model", "mamba", "heads"),
        why="the heads of a group share its B and C, and every group has as many",
        help=f"these fit: {fits}",
    )


def mamba_over_grid(spec: Spec, name: str, model: HybridModel) -> Findings:
    """Ranks of tp and cp compute whole heads, and whole groups or equal parts of one."""
    sizes, grid = _sizes(model), spec.modules[name].grid
    if sizes is None:
        return
    ranks = grid.tp * grid.cp
    path = ("modules", name, "model", "mamba", "heads")
    related = tuple(
        Related(path=("modules", name, "grid", axis), label=f"{axis} {size}")
        for axis, size in (("tp", grid.tp), ("cp", grid.cp))
        if size > 1
    )
    if sizes.heads % ranks:
        yield Diagnostic(
            code="mamba-heads-over-grid",
            headline=f"`{name}`: {sizes.heads} Mamba heads do not split over tp {grid.tp} * cp "
            f"{grid.cp} = {ranks} ranks",
            path=path,
            why="tp cuts heads, and cp ranks trade tokens of all heads for all tokens of some",
            help=f"write `heads: {next_multiple(sizes.heads, ranks)}`",
            related=related,
        )
    elif not splits(sizes.groups, grid.tp, grid.cp):
        fits = [n for n in divisors(sizes.heads) if splits(n, grid.tp, grid.cp)]
        yield Diagnostic(
            code="mamba-groups-over-grid",
            headline=f"`{name}`: {sizes.groups} Mamba groups do not split over tp {grid.tp} and "
            f"cp {grid.cp}",
            path=path,
            why="a rank computes the heads of whole groups, or equally many ranks share a group",
            help=f"these fit: {', '.join(f'`groups: {each}`' for each in fits)}",
            related=related,
        )


def splits(groups: int, tp: int, cp: int) -> bool:
    """Return whether groups are shared out over tp, and those of a tp rank over cp."""
    if groups % tp and tp % groups:
        return False
    mine = max(1, groups // tp)
    return mine % cp == 0 or cp % mine == 0


def _fitting(width: int, grid: Grid) -> str:
    """Return sizes of Mamba layers about twice as wide as the stream, as a spec says them."""
    ranks, groups = grid.tp * grid.cp, DEFAULTS.groups
    heads = next_multiple(max(1, 2 * width // DEFAULTS.head_dim), lcm(ranks, groups))
    if splits(groups, grid.tp, grid.cp):
        return f"{{heads: {heads}}}"
    return f"{{heads: {heads}, groups: {ranks}}}"


def _sizes(model: HybridModel) -> MambaSizes | None:
    """Return the sizes of the Mamba layers of a model, if it has any."""
    return model.mamba if MAMBA in model.pattern else None
