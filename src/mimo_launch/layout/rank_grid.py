"""The ranks of one module as a box with named axes, fastest axis first, and the box of its experts.

Decides: the rank of each coordinate and the groups along any set of axes; which ranks hold
different experts of a layer, split one, or hold replicas of one.
Relies on: consecutive ranks from `first_rank` on; for experts, sizes whose product divides the
ranks of a stage.
Leaves: live process groups to `comm`, which tokens go where to `layers.experts`.

The ranks of a stage, in increasing order, are the box of its experts, with the axes tp, ep and dp,
tp fastest: neighbours split an expert, the next neighbours hold the next experts, and replicas
repeat that. Only the ranks of stages follow from the grid of the module: it gives a rank its
tokens, the box of experts gives it its experts, and tokens travel between ranks.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod


@dataclass(frozen=True)
class RankGrid:
    """A box of ranks; the first of `axes` varies fastest with the rank.

    Example: `RankGrid(("tp", "cp", "dp", "pp"), (2, 1, 2, 1), first_rank=4)` holds ranks 4 to 7;
    `groups("tp")` yields `(4, 5)` and `(6, 7)`, `groups("dp")` yields `(4, 6)` and `(5, 7)`.
    """

    axes: tuple[str, ...]
    sizes: tuple[int, ...]
    first_rank: int = 0

    @cached_property
    def num_ranks(self) -> int:
        """Number of ranks in the box."""
        return prod(self.sizes)

    @cached_property
    def ranks(self) -> range:
        """Every rank of the box."""
        return range(self.first_rank, self.first_rank + self.num_ranks)

    @cached_property
    def strides(self) -> dict[str, int]:
        """The distance between ranks that are neighbours along an axis."""
        strides, step = {}, 1
        for axis, size in zip(self.axes, self.sizes, strict=True):
            strides[axis] = step
            step *= size
        return strides

    def size(self, axis: str) -> int:
        """Number of ranks along `axis`."""
        return self.sizes[self.axes.index(axis)]

    def __contains__(self, rank: int) -> bool:
        return rank in self.ranks

    def rank_at(self, coords: Mapping[str, int]) -> int:
        """Return the rank at `coords`; axes left out are 0."""
        return self.first_rank + sum(index * self.strides[axis] for axis, index in coords.items())

    def index(self, axis: str, rank: int) -> int:
        """Return the position of `rank` along `axis`."""
        return (rank - self.first_rank) // self.strides[axis] % self.size(axis)

    def coords_of(self, rank: int) -> dict[str, int]:
        """Return the position of `rank` along every axis.

        Raises: ValueError if the rank is outside the box.
        """
        if rank not in self:
            raise ValueError(f"rank {rank} is not in {self.ranks.start}-{self.ranks.stop - 1}")
        return {axis: self.index(axis, rank) for axis in self.axes}

    def group_of(self, rank: int, *axes: str) -> tuple[int, ...]:
        """Return the ranks that differ from `rank` only along `axes`, in increasing order."""
        base = rank - sum(self.index(axis, rank) * self.strides[axis] for axis in axes)
        return tuple(sorted(base + offset for offset in self._offsets(axes)))

    def slice(self, **coords: int) -> tuple[int, ...]:
        """Return the ranks at the given positions of some axes, in increasing order."""
        others = tuple(axis for axis in self.axes if axis not in coords)
        start = self.rank_at(coords)
        return tuple(sorted(start + offset for offset in self._offsets(others)))

    def groups(self, *axes: str) -> tuple[tuple[int, ...], ...]:
        """Return every group along `axes`, ordered by first rank: together they tile the box."""
        others = tuple(axis for axis in self.axes if axis not in axes)
        starts = sorted(self.first_rank + offset for offset in self._offsets(others))
        inside = sorted(self._offsets(axes))
        return tuple(tuple(start + offset for offset in inside) for start in starts)

    def view(self, axes: tuple[str, ...], sizes: tuple[int, ...]) -> "RankGrid":
        """Return a second factorisation of the same ranks.

        Raises: ValueError if the sizes do not fill the same number of ranks.
        """
        if prod(sizes) != self.num_ranks:
            raise ValueError(f"view {sizes} holds {prod(sizes)} ranks, grid has {self.num_ranks}")
        return RankGrid(axes, sizes, self.first_rank)

    def _offsets(self, axes: tuple[str, ...]) -> Iterator[int]:
        steps = [range(0, self.size(a) * self.strides[a], self.strides[a]) for a in axes]
        return (sum(combination) for combination in product(*steps))


AXES = ("tp", "ep", "dp")


@dataclass(frozen=True)
class ExpertView:
    """The box of the experts, the same in every stage, and the ranks of each stage."""

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
        """The place of each rank in its stage, which is its place in the box."""
        return {rank: place for ranks in self.stages for place, rank in enumerate(ranks)}
