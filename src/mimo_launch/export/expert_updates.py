"""The updates of experts as peft has them: one A and one B beside each stack of experts.

Decides: the order in both. `transformers` stacks the maps of all experts, and fuses gate and up; A
has rank after rank of an expert, [experts * rank, inputs]; B has expert after expert of a rank,
[outputs, rank * experts]. The rank of a fused map is the sum of its maps' ranks, and all stacks
have the same one: peft knows one rank for parameters, so further rows of A and columns of B are 0.
Relies on: `ParamWrapper` of peft (0.21); names of experts in files and in loaded models.
Leaves: other maps, and writing, to `adapter_folder`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from mimo_launch.export.tensors import FileTensor, SavedUpdate, TensorPart
from mimo_launch.hugging_face.adapter_config import StackName


@dataclass(frozen=True, slots=True)
class ExpertMap:
    """One map of one expert: its number, its rows in the fused map, its update."""

    number: int
    rows: slice
    update: SavedUpdate


@dataclass(frozen=True, slots=True)
class ExpertStack:
    """The maps of a stack of experts, which is a parameter of a module of a loaded model."""

    module: str
    parameter: str
    rows: int
    maps: tuple[ExpertMap, ...]

    @property
    def rank(self) -> int:
        """The sum of the ranks of the maps of an expert."""
        first = self.maps[0].number
        return sum(each.update.down[1][0] for each in self.maps if each.number == first)

    def matrices(self, read: Mapping[str, Tensor], rank: int) -> tuple[Tensor, Tensor]:
        """Return A and B of a rank, from matrices by their names."""
        experts = 1 + max(each.number for each in self.maps)
        down = torch.zeros(experts, rank, self.maps[0].update.down[1][1])
        up = torch.zeros(self.rows, rank, experts)
        taken = [0] * experts
        for each in self.maps:
            own, first = each.update.down[1][0], taken[each.number]
            taken[each.number] += own
            down[each.number, first : first + own] = read[each.update.down[0]]
            up[each.rows, first : first + own, each.number] = read[each.update.up[0]]
        return down.flatten(0, 1), up.flatten(1)


def expert_stacks(tensors: Iterable[FileTensor]) -> tuple[list[FileTensor], list[ExpertStack]]:
    """Return the tensors with updates that are of no experts, and the stacks of the others."""
    others, found = list[FileTensor](), dict[tuple[str, str], ExpertStack]()
    for tensor in tensors:
        for part in tensor.parts:
            if part.update is None:
                continue
            stack = _stack_of(tensor, part, part.update)
            if stack is None:
                others.append(tensor)
                break
            key = stack.module, stack.parameter
            known = found.get(key, ExpertStack(*key, 0, ()))
            rows = max(known.rows, stack.rows)
            found[key] = ExpertStack(*key, rows, (*known.maps, *stack.maps))
    ordered = [
        ExpertStack(
            each.module,
            each.parameter,
            each.rows,
            tuple(sorted(each.maps, key=lambda one: (one.number, one.rows.start))),
        )
        for each in found.values()
    ]
    return others, ordered


def _stack_of(tensor: FileTensor, part: TensorPart, update: SavedUpdate) -> ExpertStack | None:
    """Return the stack of a map of an expert, with this map alone; None for other maps."""
    entry, own, rows = part.place.stacked, part.name.split(".")[-2], part.shape[0]
    name = StackName.of(tensor.name, own, None if entry is None else entry.number)
    if name is None:
        return None
    first, step, whole = (rows if own == "up" else 0), 1, 0
    if entry is not None:
        first, step = part.place.first_row, entry.step
        whole = tensor.shape[2] if entry.transposed else tensor.shape[1]
    mine = ExpertMap(name.number, slice(first, first + step * (rows - 1) + 1, step), update)
    return ExpertStack(name.module, name.parameter, whole or first + rows, (mine,))
