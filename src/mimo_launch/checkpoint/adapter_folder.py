"""Loads the adapter of a module from a folder of peft.

Decides: that every update of the module is in the folder and every update there belongs to a map
with an adapter; that each of our maps gets its rows of a map that files fuse, such as q, k
and v; that a different factor goes into B.
Relies on: `hugging_face` for names; safetensors, of which each rank reads what it holds.
Leaves: the weights below the adapter to `hugging_face`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from torch import Tensor

from mimo_launch.checkpoint.boxes import (
    WEIGHTS,
    Box,
    WeightsDoNotFit,
    differences,
    note_filled,
    plain,
    weight_boxes,
)
from mimo_launch.checkpoint.hugging_face import read_place
from mimo_launch.checkpoint.storage import CheckpointError
from mimo_launch.comm.objects import gather_objects
from mimo_launch.hugging_face import adapter_config as theirs
from mimo_launch.hugging_face.adapter_config import AdapterConfig, StackName, read_adapter_config
from mimo_launch.hugging_face.folder import FilesError, read_config
from mimo_launch.hugging_face.part import Part
from mimo_launch.hugging_face.registry import part_of
from mimo_launch.hugging_face.tensors import Place
from mimo_launch.kinds.adapters import DOWN, UP, is_adapter
from mimo_launch.kinds.registry import kind_of
from mimo_launch.train.events import WeightsLoaded
from mimo_launch.train.rank_session import RankSession


def load_adapter(
    session: RankSession, name: str, folder: Path, base: Path, group: dist.ProcessGroup
) -> WeightsLoaded:
    """Fill the adapter of a module; `base` is the folder of the weights below it.

    Ranks: collective over the world. Raises: WeightsDoNotFit; CheckpointError if a file cannot be
    read.
    """
    module, problem, missing, used = session.modules.get(name), "", list[str](), set[str]()
    known: set[str] = set()
    try:
        part = part_of(read_config(base), session.spec.modules[name].model.kind)
        config = read_adapter_config(folder)
        with safe_open(folder / theirs.ADAPTER_WEIGHTS, framework="pt") as file:
            known = set(file.keys())
            # The boxes of A and of B need both; a layer has few maps.
            read_tensor = lru_cache(maxsize=16)(file.get_tensor)
            for box in [] if module is None else weight_boxes(module):
                if not is_adapter(box.name):
                    continue
                found = _Update.of(session, name, box, part, known)
                if found is None:
                    missing.append(plain(box.name))
                    continue
                used |= {found.module + theirs.DOWN, found.module + theirs.UP}
                found.fill(box, read_tensor, config)
                note_filled(session.modules, [box])
        mine = {key for key in known if _belongs(part, key)}
    except (OSError, ValueError, FilesError, SafetensorError) as error:
        problem, mine = str(error), set()
    answers = gather_objects((problem, missing, used, mine), group)
    for rank, (text, *_) in enumerate(answers):
        if text:
            raise CheckpointError(f"`adapter.init_from` of `{name}`: rank {rank}: {text}")
    lacking = sorted({each for _, absent, _, _ in answers for each in absent})
    read = {each for _, _, some, _ in answers for each in some}
    unread = sorted({each for *_, own in answers for each in own} - read)
    if lacking or unread:
        raise WeightsDoNotFit(
            f"`adapter.init_from` of `{name}`: {folder} does not fit: "
            + differences(missing_there=lacking, there_only=unread)
            + "; `targets` must name the maps that have an update there"
        )
    return WeightsLoaded(
        module=name,
        checkpoint=str(folder),
        num_loaded=len(read),
        missing=(),
        misfits=(),
        unused=tuple(sorted(known - read)),
    )


def _belongs(part: Part, key: str) -> bool:
    """Return whether a tensor of an adapter is of a part of the model."""
    return part.inner_name(key.removeprefix(theirs.PREFIX)) is not None


@dataclass(frozen=True, slots=True)
class _Update:
    """The update of one of our maps in the files: its module there, and the rows of B."""

    module: str
    place: Place
    rank: int
    scale: float
    stack: StackName | None = None
    experts: int = 0

    @classmethod
    def of(
        cls, session: RankSession, name: str, box: Box, part: Part, known: set[str]
    ) -> "_Update | None":
        """Return the update of which a box is A or B; None if the files lack it."""
        spec, key = session.spec.modules[name], box.name.removeprefix(f"{WEIGHTS}/{name}.")
        start = key.removesuffix(DOWN).removesuffix(UP)
        place = part.place(f"{start}weight", spec.model)
        if place is None or spec.adapter is None or place.transposed:
            return None
        own, moe = start.split(".")[-2], kind_of(spec.model).moe
        number = None if place.stacked is None else place.stacked.number
        in_files, place = place.name, part.loaded(f"{start}weight", place, spec.model)
        for each in (place.name, *part.file_names(in_files)):
            module = theirs.PREFIX + each.removesuffix(".weight")
            if module + theirs.DOWN in known:
                return cls(module, place, spec.adapter.rank, spec.adapter.scale)
            stack = StackName.of(each, own, number)
            if stack is not None and moe is not None:
                module = theirs.PREFIX + stack.wrapper
                if module + theirs.DOWN in known:
                    rank, scale = spec.adapter.rank, spec.adapter.scale
                    return cls(module, place, rank, scale, stack, moe.experts)
        return None

    def fill(self, box: Box, read: Callable[[str], Tensor], config: AdapterConfig) -> None:
        """Fill a box of A or B. Raises: ValueError if the rank differs."""
        down, up = read(self.module + theirs.DOWN), read(self.module + theirs.UP)
        name = self.module.removeprefix(theirs.PREFIX)
        if self.stack is not None:
            name = f"{self.stack.module}.{self.stack.parameter}"
            down = down.view(self.experts, -1, down.shape[1])[self.stack.number]
            up = up.view(len(up), -1, self.experts)[:, :, self.stack.number]
        mine = self._rows(up)
        columns = self._columns(mine)
        factor = config.scale(name) / self.scale
        whole = factor * mine[:, columns] if box.name.endswith(UP) else down[columns]
        spans = (slice(o, o + n) for o, n in zip(box.offsets, box.tensor.shape, strict=True))
        box.tensor.copy_(whole[tuple(spans)])

    def _rows(self, up: Tensor) -> Tensor:
        """Return the rows of B that are of our map."""
        if self.stack is not None and self.stack.parameter == theirs.FUSED:
            entry, half = self.place.stacked, len(up) // 2
            if entry is not None and entry.step > 1:
                return up[self.place.first_row :: entry.step]
            return up[half:] if self.stack.own == "up" else up[:half]
        if self.stack is not None:
            return up
        number = len(up) if self.place.num_rows is None else self.place.num_rows
        place = replace(self.place, shape=None)  # B is a matrix, whatever its map is in the file.
        return read_place(up, place, range(number), [range(up.shape[1])])

    def _columns(self, up: Tensor) -> slice:
        """Return the part of the rank that is of our map: all, or its block on the diagonal.

        Raises: ValueError if the rank differs.
        """
        there = up.shape[1]
        if there == self.rank:
            return slice(None)
        if there % self.rank == 0:
            blocks = [i for i, each in enumerate(torch.split(up, self.rank, dim=1)) if each.any()]
            if len(blocks) < 2:
                first = self.rank * (blocks[0] if blocks else 0)
                return slice(first, first + self.rank)
        raise ValueError(f"{self.module} has rank {there}, and `adapter.rank` is {self.rank}")
