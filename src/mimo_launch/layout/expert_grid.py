"""Where experts stand: a second factorisation of the ranks of each pipeline stage.

Decides: which ranks share out the experts of a layer, split one, or hold replicas of one.
Relies on: sizes whose product divides the ranks of a stage.
Leaves: which tokens go where to `layers.token_dispatch`.

The ranks of a stage, in increasing order, are a box with the axes tp, ep and dp, tp fastest:
neighbours split an expert, their neighbours hold the next experts, and the same comes again for
each replica. Nothing else follows from the grid of the module: a rank has its tokens from that one
and its experts from this one, and tokens travel between the two.
"""

from dataclasses import dataclass
from functools import cached_property

from mimo_launch.layout.rank_grid import RankGrid

AXES = ("tp", "ep", "dp")


@dataclass(frozen=True)
class ExpertView:
    """The box of the experts, the same in every stage, and the ranks of each stage that fill it."""

    box: RankGrid
    stages: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, grid: RankGrid, *, tp: int, ep: int) -> "ExpertView":
        """Return the view of a module's grid; replicas take what tp and ep leave."""
        stages = tuple(grid.slice(pp=index) for index in range(grid.size("pp")))
        return cls(RankGrid(AXES, (tp, ep, len(stages[0]) // (tp * ep))), stages)

    def size(self, axis: str) -> int:
        """Number of ranks along `axis`: tp, ep or dp."""
        return self.box.size(axis)

    def groups(self, axis: str) -> tuple[tuple[int, ...], ...]:
        """Return every group along an axis, stage after stage."""
        return tuple(
            tuple(ranks[place] for place in places)
            for ranks in self.stages
            for places in self.box.groups(axis)
        )

    def index(self, axis: str, rank: int) -> int:
        """Return the position of `rank` along an axis."""
        return self.box.index(axis, self._places[rank])

    @cached_property
    def _places(self) -> dict[int, int]:
        """The place of each rank in its stage, which is that in the box."""
        return {rank: place for ranks in self.stages for place, rank in enumerate(ranks)}
