"""Rank classes: sets of ranks that are alike, so that one of them can represent all.

Decides: which ranks are alike, and the partners of a class, as the first ranks of other classes.
Relies on: `channels` for the partners of a rank.
Leaves: the programs of classes to `bubble_filling`, their course to `deadlock_proof`.

Ranks of one class have equal labels (such as their roles), and for some modules their replicas are
also on ranks of the same classes. A class meets every class that any of its ranks meets. Where its
ranks meet different classes, each is assumed to wait for all of them.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property

from mimo_launch.layout.balance import replica_links
from mimo_launch.layout.bridge_routing import components
from mimo_launch.layout.layout import Layout, ModuleLayout
from mimo_launch.layout.rank_groups import tied_ranks
from mimo_launch.schedule.actions import Action
from mimo_launch.schedule.channels import Meetings
from mimo_launch.schedule.data_flow import fills_bubbles
from mimo_launch.spec.base import Axis


def classes_of(layout: Layout) -> tuple[int, ...]:
    """Return the class of each rank, by its role and the replicas of encoders that fill bubbles.

    Classes are numbered in the order of their first ranks.
    """
    modules = [module for module in layout.encoders if fills_bubbles(layout, module)]
    return refined(layout.roles, modules)


def refined(labels: Sequence[object], modules: Iterable[ModuleLayout]) -> tuple[int, ...]:
    """Return the class of each rank: a refinement of `labels`.

    For each module, ranks of one class belong to replicas on ranks of the same classes.
    """
    replicas = [module.grid.slices(Axis.DP) for module in modules]
    classes = _numbered(labels)
    while True:
        columns = [classes]
        for of_module in replicas:
            keys = [tuple(sorted([classes[rank] for rank in ranks])) for ranks in of_module]
            columns.append([-1] * len(classes))
            for ranks, kind in zip(of_module, _numbered(keys), strict=True):
                for rank in ranks:
                    columns[-1][rank] = kind
        finer = _numbered(zip(*columns, strict=True))
        if max(finer) == max(classes):
            return tuple(classes)
        classes = finer


def _numbered(keys: Iterable[object]) -> list[int]:
    """Replace each key by a number, from 0 in the order in which keys first appear."""
    numbers: dict[object, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]


class ClassMeetings(Meetings):
    """The partners of the first rank of each class, which represents all ranks of the class."""

    def __init__(self, layout: Layout, classes: Sequence[int]) -> None:
        super().__init__(layout)
        first: dict[int, int] = {}
        for rank, each in enumerate(classes):
            first.setdefault(each, rank)
        self.stand_ins = tuple(first[each] for each in classes)
        self.ranks = tuple(sorted(first.values()))
        self._edges: dict[tuple[str, int, int], dict[int, list[int]]] = {}
        self._bridges: dict[str, tuple[dict[int, list[int]], dict[int, list[int]]]] = {}
        self._stages: dict[tuple[str, int], tuple[int, ...]] = {}
        self._replicas: dict[tuple[str, int], tuple[int, ...]] = {}

    def partners(self, rank: int, action: Action) -> Sequence[int]:
        """Return the classes that any rank of this class meets."""
        is_up = action.kind.at_source
        if action.stage is None:
            out, back = self._of_bridge(action.module)
            return (out if is_up else back).get(rank, [])
        module, other = self.layout[action.module], action.stage + (1 if is_up else -1)
        places = module.pp_index(action.stage), module.pp_index(other)
        return self._of_edge(module, *places).get(rank, [])

    def replica(self, module: ModuleLayout, rank: int) -> Sequence[int]:
        """Return the classes of the ranks that hold the same stages of the same replica."""
        if (module.name, rank) not in self._replicas:
            self._replicas[module.name, rank] = self._first_of(super().replica(module, rank))
        return self._replicas[module.name, rank]

    def tied(self, module: ModuleLayout, rank: int) -> Sequence[int]:
        """Return the classes of all ranks of a replica that hold a part of a tied embedding."""
        replica = super().whole_replica(module, rank)
        tied = tied_ranks(self.layout, module.name)
        return self._first_of(each for each in replica if each in tied)

    def whole_replica(self, module: ModuleLayout, rank: int) -> Sequence[int]:
        """Return the classes of the ranks of the same replica."""
        return self._first_of(super().whole_replica(module, rank))

    def stage(self, module: ModuleLayout, stage: int) -> Sequence[int]:
        """Return the classes of the ranks that hold a stage."""
        if (module.name, stage) not in self._stages:
            self._stages[module.name, stage] = self._first_of(super().stage(module, stage))
        return self._stages[module.name, stage]

    def component(self, rank: int, bridge: str) -> Sequence[int]:
        """Return the classes of every component to which ranks of this class belong."""
        return next(ranks for ranks in self._components[bridge] if rank in ranks)

    def _first_of(self, ranks: Iterable[int]) -> tuple[int, ...]:
        return tuple(sorted({self.stand_ins[rank] for rank in ranks}))

    def _of_edge(self, module: ModuleLayout, here: int, there: int) -> dict[int, list[int]]:
        """Return the partners at pp index `there` of each class of ranks at pp index `here`."""
        key = module.name, here, there
        if key not in self._edges:
            apart = (there - here) * module.grid.strides[Axis.PP]
            ranks = module.grid.slice(pp=here)
            self._edges[key] = self._grouped((rank, rank + apart) for rank in ranks)
        return self._edges[key]

    def _of_bridge(self, bridge: str) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
        """Return the partners of classes over a bridge: at its source, and at its target."""
        if bridge not in self._bridges:
            ends = self.layout.bridges[bridge]
            module, reader = self.layout[ends.source], self.layout[ends.target]
            last = module.pp_index(len(module.stages) - 1)
            source = [self._first_of(ranks) for ranks in module.grid.slices(Axis.DP, pp=last)]
            target = [self._first_of(ranks) for ranks in reader.grid.slices(Axis.DP, pp=0)]
            linked = set(zip(source, replica_links(self.layout, bridge), strict=True))
            pairs = {
                (sources, target[replica]) for sources, replicas in linked for replica in replicas
            }
            both = [(one, other) for ones, others in pairs for one in ones for other in others]
            self._bridges[bridge] = (
                self._grouped(both),
                self._grouped((other, one) for one, other in both),
            )
        return self._bridges[bridge]

    def _grouped(self, pairs: Iterable[tuple[int, int]]) -> dict[int, list[int]]:
        found: dict[int, set[int]] = {}
        for one, other in pairs:
            found.setdefault(self.stand_ins[one], set()).add(self.stand_ins[other])
        return {one: sorted(others) for one, others in found.items()}

    @cached_property
    def _components(self) -> dict[str, list[tuple[int, ...]]]:
        """The classes that meet in each exchange; components that share a class are joined."""
        found = {}
        for bridge in self.layout.bridges:
            joined: list[set[int]] = []
            parts = components(self.layout, bridge)
            for mine in dict.fromkeys(self._first_of(ranks) for ranks in parts):
                apart = [each for each in joined if each.isdisjoint(mine)]
                met = [each for each in joined if not each.isdisjoint(mine)]
                joined = [*apart, set(mine).union(*met)]
            found[bridge] = [tuple(sorted(each)) for each in joined]
        return found
