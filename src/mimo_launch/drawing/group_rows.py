"""The groups of ranks that meet in collectives, of all ranks or of one.

Decides: that groups of one rank are not shown, nor two kinds of groups that are equal; what
crosses nodes.
Relies on: the grids of `layout`, which make the process groups, too.
Leaves: drawing to `cli` and `rank_cells`.
"""

from collections.abc import Iterator

from mimo_launch.drawing.rows import GroupRow, Ranks
from mimo_launch.layout.layout import EXPERT_GROUPS, MODULE_GROUPS, Layout


def group_rows(layout: Layout, per_node: int | None, rank: int | None = None) -> Iterator[GroupRow]:
    """Yield the groups of more than one rank; with `rank`, only those that contain it."""
    for module in layout.modules:
        if rank is not None and rank not in module.grid:
            continue
        several = (
            tuple(axis for axis in axes if module.grid.size(axis) > 1) for axes in MODULE_GROUPS
        )
        # At dp 1, the groups along dp x cp equal those along cp: show them once.
        for shown in dict.fromkeys(axes for axes in several if axes):
            groups: tuple[Ranks, ...] = (
                module.grid.groups(*shown)
                if rank is None
                else (module.grid.group_of(rank, *shown),)
            )
            crossing = sum(_crosses(group, per_node) for group in groups)
            yield GroupRow(module=module.name, axes=shown, groups=groups, num_crossing=crossing)
        view = module.experts
        if view is None:
            continue
        for axis, name in EXPERT_GROUPS.items():
            if view.size(axis) > 1:
                groups = view.groups(axis) if rank is None else (view.group_of(rank, axis),)
                crossing = sum(_crosses(group, per_node) for group in groups)
                yield GroupRow(
                    module=module.name, axes=(name,), groups=groups, num_crossing=crossing
                )


def _crosses(ranks: Ranks, per_node: int | None) -> bool:
    # Groups are sorted and a node holds consecutive ranks: first and last suffice.
    return per_node is not None and ranks[0] // per_node != ranks[-1] // per_node
