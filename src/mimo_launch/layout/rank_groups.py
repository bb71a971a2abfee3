"""The process groups of a layout, except the groups of bridges.

Decides: their names, their ranks, and the one order in which all ranks create them.
Relies on: `rank_grid` for the ranks along axes.
Leaves: creating them to `comm`, the groups of bridges to `plan`.
"""

from collections.abc import Iterator

from mimo_launch.diag.frozen import frozen
from mimo_launch.layout.layout import Layout, ModuleLayout, cached_in_layout
from mimo_launch.spec.base import Axis

# tp: layers; cp: keys and values; dp x cp: gradients and sharded weights; pp: greedy answers of the
# last stage. Stage edges use point-to-point groups.
MODULE_GROUPS: tuple[tuple[Axis, ...], ...] = (
    (Axis.TP,),
    (Axis.CP,),
    (Axis.DP, Axis.CP),
    (Axis.PP,),
)
# Tokens to their experts; tokens of a split expert; its gradients and sharded weights.
EXPERT_GROUPS = (Axis.EP, Axis.EXPERT_TP, Axis.EXPERT_DP)


@frozen
class RankGroup:
    """A process group to create: its name, made of module and axes, and its ranks."""

    name: str
    ranks: tuple[int, ...]


def groups_of_module(module: ModuleLayout) -> tuple[tuple[Axis, ...], ...]:
    """Return the axes of each group of a module: with copies, shards of one, and copies of one."""
    held = module.sharding
    return (*MODULE_GROUPS, held.shard, held.replicate) if held.replicate else MODULE_GROUPS


@cached_in_layout
def rank_groups(layout: Layout) -> tuple[RankGroup, ...]:
    """Return every process group of every module, in the order in which all ranks create them."""
    along_axes = (
        RankGroup(_name(module, axes), ranks)
        for module in layout.modules
        for axes in groups_of_module(module)
        for ranks in module.grid.groups(*axes)
    )
    of_experts = (
        RankGroup(f"{module.name}.{axis}", ranks)
        for module in layout.modules
        if module.experts is not None
        for axis in EXPERT_GROUPS
        for ranks in module.experts.groups(axis)
    )
    # The ranks of the first and last stage that hold the same part of a tied embedding.
    tied = (
        RankGroup(f"{module.name}.tied", ranks)
        for module in layout.modules
        for ranks in dict.fromkeys(tied_ranks(layout, module.name).values())
    )
    return (*along_axes, *of_experts, *tied)


def groups_of(layout: Layout, rank: int) -> Iterator[RankGroup]:
    """Yield the process groups that hold `rank`."""
    for module in layout.modules_of(rank):
        for axes in groups_of_module(module):
            yield RankGroup(_name(module, axes), module.grid.group_of(rank, *axes))
        if module.experts is not None:
            for axis in EXPERT_GROUPS:
                yield RankGroup(f"{module.name}.{axis}", module.experts.group_of(rank, axis))
    for module in layout.modules_of(rank):
        if rank in (tied := tied_ranks(layout, module.name)):
            yield RankGroup(f"{module.name}.tied", tied[rank])


@cached_in_layout
def tied_ranks(layout: Layout, name: str) -> dict[int, tuple[int, int]]:
    """Return, by rank, the two ranks that hold the same part of a module's tied embedding."""
    module, found = layout[name], dict[int, tuple[int, int]]()
    last = module.pp_index(len(module.stages) - 1)
    if module.tied and last != 0:
        apart = last * module.grid.strides[Axis.PP]
        for rank in module.grid.slice(pp=0):
            found[rank] = found[rank + apart] = rank, rank + apart
    return found


def _name(module: ModuleLayout, axes: tuple[Axis, ...]) -> str:
    return f"{module.name}.{'_'.join(axes)}"
