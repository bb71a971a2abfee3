"""Gathers whole matrices from their parts over shards and tp, and sends the results back.

Decides: which rank works on which matrix, and how many travel together.
Relies on: FSDP2, which cuts dim 0 into equal runs of rows; weights for their parts over tp.
Leaves: the work on a matrix to its caller.

Parts travel over the shards first, so that one rank of each tp index has a part as tp cuts it, and
then over tp. Results go back the same way.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import torch
from torch import Tensor

from mimo_launch.comm.collectives import all_to_all_uneven
from mimo_launch.comm.process_groups import GridSet, Group
from mimo_launch.kinds.weights import Share, Weight
from mimo_launch.layers.parameter_segments import Placed, shard_rows
from mimo_launch.models.build import RankModule

# Numbers of the matrices that a rank works on at a time, to bound the memory of copies.
AT_A_TIME = 1 << 26


@dataclass(frozen=True, slots=True)
class Part:
    """The rows of a matrix that this rank holds, perhaps none: `values` is a view of them.

    `rows` counts the rows on each of the `shards`, which together hold what `cut` gives this rank.
    """

    weight: Weight
    values: Tensor
    rows: tuple[int, ...]
    shards: Group
    cut: Group

    def shape(self, index: int) -> tuple[int, ...]:
        """Return the shape of what rank `index` of `cut` holds."""
        return self.weight.local_shape(self._share(index))

    def split(self, whole: Tensor) -> list[Tensor]:
        """Return what each rank of `cut` holds of a whole matrix."""
        if (axis := self.weight.axis) is None:
            return [whole] * self.cut.size
        held = [self.weight.part(self._share(index)) for index in range(self.cut.size)]
        return [whole.narrow(axis, part.start, len(part)) for part in held]

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """Return a matrix, given what each rank of `cut` holds, flat; several may hold the same."""
        axis, size = self.weight.axis, self.cut.size
        shaped = [part.view(self.shape(index)) for index, part in enumerate(parts)]
        return shaped[0] if axis is None else torch.cat(shaped[:: self.weight.copies(size)], axis)

    def _share(self, index: int) -> Share:
        size = self.cut.size
        return Share(tp=size, index=index, expert_tp=size, expert_index=index)


def parts_of(
    module: RankModule, grids: GridSet, tensors: Mapping[Tensor, Tensor]
) -> Iterator[Part]:
    """Yield the parts of matrices in `tensors`, the local tensor of each parameter.

    All ranks that hold a matrix yield their parts of it in the same order.
    """
    for item in module.declared():
        if (local := tensors.get(item.parameter)) is None:
            continue
        shards, own = grids.replicas(module.name, item.parameter), shard_rows(item.parameter)
        for placed in item.placed:
            weight = placed.segment.weight
            cut = module.context.expert_tp if weight.experts else module.context.tp
            rows = tuple(_held_rows(placed, item.parameter.shape[0], shards.size))
            first = max(0, placed.first_row - own.start)
            values = local[first : first + rows[shards.index]]
            yield Part(weight, values, rows, shards, cut)


def replace_whole(
    parts: Iterable[Part], work: Callable[[list[Tensor]], list[Tensor]], dtype: torch.dtype
) -> None:
    """Replace matrices, gathered whole, by the results of `work`; they travel in `dtype`.

    Ranks: collective over the ranks that hold parts of the same matrices.
    """
    batches: dict[tuple[Group, Group, int], list[Part]] = {}
    sizes: Counter[tuple[Group, Group]] = Counter()
    for part in parts:
        ranks = part.shards, part.cut
        number = sizes[ranks] // (AT_A_TIME * part.shards.size * part.cut.size)
        batches.setdefault((*ranks, number), []).append(part)
        sizes[ranks] += prod(part.weight.shape)
    for batch in batches.values():
        _replace(batch, work, dtype)


def _replace(
    parts: list[Part], work: Callable[[list[Tensor]], list[Tensor]], dtype: torch.dtype
) -> None:
    """Replace matrices that the same ranks hold, all together."""
    shards, cut, empty = parts[0].shards, parts[0].cut, parts[0].values.new_empty(0, dtype=dtype)
    places = [divmod(each, cut.size) for each in _dealt(parts, shards.size * cut.size)]
    sizes = [[rows * part.shape(cut.index)[1] for rows in part.rows] for part in parts]
    over_shards = _Exchange([place[0] for place in places], sizes, shards, empty)
    held = [parts[item] for item in over_shards.owned]
    sizes = [[prod(part.shape(index)) for index in range(cut.size)] for part in held]
    over_cut = _Exchange([places[item][1] for item in over_shards.owned], sizes, cut, empty)

    local = over_shards.gather([part.values.to(dtype) for part in parts])
    pieces = over_cut.gather([torch.cat(each) for each in local])
    own = [held[item] for item in over_cut.owned]
    made = work([part.join(each) for part, each in zip(own, pieces, strict=True)])
    pieces = [part.split(whole) for part, whole in zip(own, made, strict=True)]
    back = over_cut.scatter(pieces)
    local = [
        list(torch.split(each.view(part.shape(cut.index)), list(part.rows)))
        for part, each in zip(held, back, strict=True)
    ]
    for part, values in zip(parts, over_shards.scatter(local), strict=True):
        part.values.copy_(values.view_as(part.values))


def _dealt(parts: Sequence[Part], ranks: int) -> list[int]:
    """Return the rank that works on each matrix, so that all have about the same work."""
    work = [prod(part.weight.shape) * min(part.weight.shape) for part in parts]
    loads, found = [0] * ranks, [0] * len(work)
    for item in sorted(range(len(work)), key=work.__getitem__, reverse=True):
        found[item] = loads.index(min(loads))
        loads[found[item]] += work[item]
    return found


@dataclass(frozen=True)
class _Exchange:
    """Moves items, of which each rank of a group has a piece, to their owners and back.

    `sizes` are the numbers in the piece of each rank, by item. `empty` has the type of all pieces.
    """

    owners: list[int]
    sizes: list[list[int]]
    group: Group
    empty: Tensor

    @cached_property
    def owned(self) -> list[int]:
        """The items of this rank."""
        return [item for item, owner in enumerate(self.owners) if owner == self.group.index]

    def gather(self, pieces: Sequence[Tensor]) -> list[list[Tensor]]:
        """Return, for each item of this rank, the pieces of all ranks, flat."""
        parted = self._travel((pieces[item] for item in self._order), self._sent, self._received)
        by_rank = [
            torch.split(flat, [self.sizes[item][rank] for item in self.owned])
            for rank, flat in enumerate(torch.split(parted, self._received))
        ]
        return [list(each) for each in zip(*by_rank, strict=True)]

    def scatter(self, items: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        """Return this rank's piece of every item, flat, given all pieces of each item it owns."""
        by_rank = (pieces[rank] for rank in range(self.group.size) for pieces in items)
        flat = self._travel(by_rank, self._received, self._sent)
        sizes = [self.sizes[item][self.group.index] for item in self._order]
        found = dict(zip(self._order, torch.split(flat, sizes), strict=True))
        return [found[item] for item in range(len(self.owners))]

    @cached_property
    def _order(self) -> list[int]:
        return sorted(range(len(self.owners)), key=self.owners.__getitem__)

    @cached_property
    def _sent(self) -> list[int]:
        sent = [0] * self.group.size
        for owner, sizes in zip(self.owners, self.sizes, strict=True):
            sent[owner] += sizes[self.group.index]
        return sent

    @cached_property
    def _received(self) -> list[int]:
        return [
            sum(self.sizes[item][rank] for item in self.owned) for rank in range(self.group.size)
        ]

    def _travel(self, pieces: Iterable[Tensor], send: list[int], receive: list[int]) -> Tensor:
        flat = torch.cat([self.empty, *(piece.flatten() for piece in pieces)])
        if self.group.handle is None:
            return flat
        return all_to_all_uneven(flat, send, receive, self.group)


def _held_rows(placed: Placed, rows: int, shards: int) -> Iterator[int]:
    """Yield how many rows of a segment each shard of a parameter of `rows` holds."""
    each = -(-rows // shards)
    for start in range(0, shards * each, each):
        held = min(placed.last_row, start + each) - max(placed.first_row, start)
        yield max(0, held)
