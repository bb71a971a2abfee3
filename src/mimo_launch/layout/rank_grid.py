"""The ranks of one module as a box with named axes, fastest axis first, and the box of its experts.

Decides: the rank of each coordinate and the groups along any set of axes; which ranks hold
different experts of a layer, split one, or hold replicas of one.
Relies on: consecutive ranks from `first_rank` on; for experts, tp x ep that divides the ranks of a
stage.
Leaves: live process groups to `comm`, which tokens go where to `layers.experts`.

The ranks of a stage, in increasing order, are the box of its experts: neighbours split an expert
(expert_tp), the next neighbours hold the next experts (ep), and replicas repeat that (expert_dp).
The grid of the module determines the ranks of a stage and the tokens of a rank. The box of experts
determines the experts of a rank, and tokens travel between ranks.
"""

from collections.abc import Collection, Container, Iterator, Sequence
from functools import cached_property
from math import prod

from mimo_launch.diag.frozen import frozen
from mimo_launch.spec.base import EXPERT_AXES, Axis
from mimo_launch.spec.spec import ModuleSpec


@frozen(slots=False)
class RankGrid:
    """A box of ranks; the first of `axes` varies fastest with the rank.

    Example: `RankGrid(AXES, (2, 1, 2, 1), first_rank=4)` holds ranks 4 to 7;
    `groups(Axis.TP)` yields `(4, 5)` and `(6, 7)`, `groups(Axis.DP)` yields `(4, 6)` and `(5, 7)`.
    dp is itself a box: `dp_shards` neighbours along DP_SHARD, and their copies along DP_COPY.
    """

    axes: tuple[Axis, ...]
    sizes: tuple[int, ...]
    first_rank: int = 0
    dp_shards: int | None = None

    @classmethod
    def of(cls, module: ModuleSpec) -> "RankGrid":
        """Return the ranks of a module in the order of its axes."""
        axes = tuple(map(Axis, module.order))
        sizes = tuple(getattr(module.grid, axis) for axis in axes)
        over, dp = module.shard_over, module.grid.dp
        # A check refuses others.
        divides = over is not None and dp % over == 0
        return cls(axes, sizes, module.rank_range.start, over if divides else None)

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
        strides, step = dict[str, int](), 1
        for axis, size in self._parts:
            strides[axis] = step
            step *= size
        if Axis.DP_SHARD in strides:
            strides[Axis.DP] = strides[Axis.DP_SHARD]
        return strides

    @cached_property
    def _size_of(self) -> dict[str, int]:
        return {**dict(zip(self.axes, self.sizes, strict=True)), **dict(self._parts)}

    @cached_property
    def _parts(self) -> tuple[tuple[Axis, int], ...]:
        """The axes and sizes of the box, with dp as two axes."""
        found: list[tuple[Axis, int]] = []
        for axis, size in zip(self.axes, self.sizes, strict=True):
            if axis == Axis.DP:
                shards = self.dp_shards or size
                found += [(Axis.DP_SHARD, shards), (Axis.DP_COPY, size // shards)]
            else:
                found.append((axis, size))
        return tuple(found)

    def size(self, axis: Axis) -> int:
        """Number of ranks along `axis`."""
        return self._size_of[axis]

    def __contains__(self, rank: int) -> bool:
        return rank in self.ranks

    def rank_at(self, **coords: int) -> int:
        """Return the rank at the given positions of axes; axes left out are 0."""
        return self.first_rank + sum(index * self.strides[axis] for axis, index in coords.items())

    def index(self, axis: Axis, rank: int) -> int:
        """Return the position of `rank` along `axis`."""
        return (rank - self.first_rank) // self.strides[axis] % self._size_of[axis]

    def coords_of(self, rank: int) -> dict[Axis, int]:
        """Return the position of `rank` along every axis.

        Raises: ValueError if the rank is outside the box.
        """
        if rank not in self:
            raise ValueError(f"rank {rank} is not in {self.ranks.start}-{self.ranks.stop - 1}")
        return {axis: self.index(axis, rank) for axis in self.axes}

    def group_of(self, rank: int, *axes: Axis) -> tuple[int, ...]:
        """Return the ranks that differ from `rank` only along `axes`, in increasing order."""
        base = rank - sum(self.index(axis, rank) * self.strides[axis] for axis in axes)
        return tuple([base + offset for offset in self._offsets(axes)])

    def slice(self, **coords: int) -> tuple[int, ...]:
        """Return the ranks at the given positions of some axes, in increasing order."""
        start, offsets = self.rank_at(**coords), self._offsets(self._others(coords))
        if isinstance(offsets, range):
            return tuple(range(start, start + len(offsets)))
        return tuple([start + offset for offset in offsets])

    def runs(self, **coords: int) -> Iterator[range]:
        """Yield the same ranks as `slice`, as runs of consecutive ranks in increasing order."""
        length, apart = 1, list[Axis]()
        for axis in self._others(coords):
            if self.strides[axis] == length:
                length *= self._size_of[axis]
            else:
                apart.append(axis)
        for start in map(self.rank_at(**coords).__add__, self._offsets(apart)):
            yield range(start, start + length)

    def slices(self, axis: Axis, **coords: int) -> tuple[tuple[int, ...], ...]:
        """Return the slice at every position of `axis`, in order; `coords` fixes other axes."""
        start, inside = self.rank_at(**coords), self._offsets(self._others({axis, *coords}))
        firsts = [start + offset for offset in self._offsets((axis,))]
        return tuple([tuple([first + offset for offset in inside]) for first in firsts])

    def groups(self, *axes: Axis) -> tuple[tuple[int, ...], ...]:
        """Return every group along `axes`, ordered by first rank; together they cover the box."""
        starts = [self.first_rank + offset for offset in self._offsets(self._others(axes))]
        inside = self._offsets(axes)
        return tuple([tuple([start + offset for offset in inside]) for start in starts])

    def _others(self, axes: Container[str]) -> tuple[Axis, ...]:
        return tuple(axis for axis, _ in self._parts if not _holds(axes, axis))

    def _offsets(self, axes: Collection[str]) -> Sequence[int]:
        """Return the distances to all ranks that differ only along `axes`, in increasing order.

        They are a range from 0 if the ranks are consecutive.
        """
        offsets: Sequence[int] = range(1)
        # A stride is larger than every offset along earlier axes, so they stay sorted.
        for axis, size in self._parts:
            if _holds(axes, axis):
                stride = self.strides[axis]
                if isinstance(offsets, range) and stride == len(offsets):
                    offsets = range(size * stride)
                    continue
                steps = range(0, size * stride, stride)
                offsets = [step + offset for step in steps for offset in offsets]
        return offsets


def _holds(axes: Container[str], part: Axis) -> bool:
    """Return whether axes hold a part of the box; dp holds two."""
    return part in axes or (part in (Axis.DP_SHARD, Axis.DP_COPY) and Axis.DP in axes)


@frozen(slots=False)
class ExpertView:
    """The box of the experts, the same in every stage, and the ranks of each stage."""

    box: RankGrid
    stages: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, grid: RankGrid, *, tp: int, ep: int) -> "ExpertView":
        """Return the view of a module's grid; dp is the stage's ranks over tp x ep."""
        stages = tuple(grid.slice(pp=index) for index in range(grid.size(Axis.PP)))
        return cls(RankGrid(EXPERT_AXES, (tp, ep, len(stages[0]) // (tp * ep))), stages)

    def size(self, axis: Axis) -> int:
        """Number of ranks along an axis of experts."""
        return self.box.size(axis)

    def groups(self, axis: Axis) -> tuple[tuple[int, ...], ...]:
        """Return every group along an axis, stage after stage."""
        boxes = self.box.groups(axis)
        return tuple(
            tuple([ranks[place] for place in places]) for ranks in self.stages for places in boxes
        )

    def group_of(self, rank: int, axis: Axis) -> tuple[int, ...]:
        """Return the ranks of the same stage that differ from `rank` only along an axis."""
        ranks = next(ranks for ranks in self.stages if rank in ranks)
        return tuple([ranks[place] for place in self.box.group_of(ranks.index(rank), axis)])

    def slice(self, **coords: int) -> tuple[int, ...]:
        """Return the ranks of all stages at the given positions, in increasing order."""
        places = self.box.slice(**coords)
        return tuple(sorted([ranks[place] for ranks in self.stages for place in places]))

    def index(self, axis: Axis, rank: int) -> int:
        """Return the position of `rank` along an axis."""
        return self.box.index(axis, self._places[rank])

    @cached_property
    def _places(self) -> dict[int, int]:
        """The place of each rank in its stage, which is its place in the box."""
        return {rank: place for ranks in self.stages for place, rank in enumerate(ranks)}
