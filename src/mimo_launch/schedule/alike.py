"""Ranks that are alike: they hold the same stages, beside ranks that do, and do the same work.

Decides: a number for each rank, equal for ranks that one program can serve.
Relies on: `roles` for what a rank holds.
Leaves: the work itself to `bubble`.
"""

from collections.abc import Iterable

from mimo_launch.layout.layout import Layout, ModuleLayout
from mimo_launch.schedule.roles import fills_bubbles, role_of


def classes_of(layout: Layout) -> tuple[int, ...]:
    """Return the class of each rank.

    Two ranks of one class have one role, and for each encoder in the bubbles the replicas that they
    belong to are on ranks of the same classes, too.
    """
    modules = [module for module in layout.encoders if fills_bubbles(layout, module)]
    labels = _numbered([role_of(layout, rank) for rank in range(layout.world_size)])
    return refined(labels, modules)


def refined(labels: tuple[int, ...], modules: Iterable[ModuleLayout]) -> tuple[int, ...]:
    """Return classes that are finer than `labels`, one per rank.

    For each of the modules, ranks of one class belong to replicas on ranks of the same classes.
    """
    replicas = [ranks for module in modules for ranks in module.grid.groups("tp", "cp", "pp")]
    while True:
        beside: list[list[object]] = [[label] for label in labels]
        for ranks in replicas:
            kinds = tuple(sorted(labels[rank] for rank in ranks))
            for rank in ranks:
                beside[rank].append(kinds)
        finer = _numbered([tuple(each) for each in beside])
        if max(finer) == max(labels):
            return labels
        labels = finer


def _numbered(keys: list[tuple[object, ...]]) -> tuple[int, ...]:
    """Replace each key by the number of different keys before its first place."""
    numbers: dict[tuple[object, ...], int] = {}
    return tuple(numbers.setdefault(key, len(numbers)) for key in keys)
