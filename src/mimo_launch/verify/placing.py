"""The fewest ranks on which modules of given sizes lie to each other as they do in a spec.

Decides: the first rank of each module, and of the idle ranks.
Relies on: the ranges of the spec.
Leaves: how many ranks a module gets to `regrid`.

All starts and stops of ranges, in order, cut the ranks into intervals. Relations of ranges stay as
they are as long as no cut passes another: each cut is at least one rank behind the one before. A
module of a given size sets the distance of its two cuts. The least places that satisfy all of this
are those of the longest paths.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from mimo_launch.layout.layout import world_size
from mimo_launch.spec.model import Spec, rank_range


@dataclass(frozen=True)
class Placing:
    """The cuts of a spec: how many, and between which two each module and the idle ranks stand."""

    num_cuts: int
    ends: Mapping[str, tuple[int, int]]
    idle: tuple[int, int] | None

    @classmethod
    def of(cls, spec: Spec) -> "Placing":
        """Number the cuts of a spec."""
        ranges = {name: module.rank_range for name, module in spec.modules.items()}
        idle = None if spec.idle_ranks is None else rank_range(spec.idle_ranks)
        every = [*ranges.values(), *([] if idle is None else [idle])]
        cuts = sorted({0, world_size(spec)} | {end for r in every for end in (r.start, r.stop)})
        number = {cut: index for index, cut in enumerate(cuts)}
        ends = {name: (number[r.start], number[r.stop]) for name, r in ranges.items()}
        between = None if idle is None else (number[idle.start], number[idle.stop])
        return cls(len(cuts), ends, between)

    def least(
        self, exact: Mapping[str, int], at_least: Mapping[str, int], limit: float
    ) -> list[int] | None:
        """Return the least place of each cut; None if the last is beyond `limit` or there is none.

        `exact` are sizes of modules, `at_least` bounds of those that have no size yet.
        """
        edges = [(cut, cut + 1, 1) for cut in range(self.num_cuts - 1)]
        edges += [(*self.ends[name], size) for name, size in (*exact.items(), *at_least.items())]
        backward = [(stop, start, -exact[name]) for name, (start, stop) in self.ends.items()
                    if name in exact]  # fmt: skip
        places = list(range(self.num_cuts))
        changed = True
        while changed:
            if places[-1] > limit:
                return None
            changed = False
            for before, after, distance in (*edges, *backward):
                if places[before] + distance > places[after]:
                    places[after] = places[before] + distance
                    changed = True
        return places
