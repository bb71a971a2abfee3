"""Opens the caches of rows that this rank keeps, each in the folder of its recipe.

Decides: what the recipe of rows is: the model, the numbers in which it computes and the weights
themselves, wherever they came from; how the room in a folder is shared out.
Relies on: weights of a frozen encoder never change.
Leaves: files to `models.kept_rows`, agreeing on a step to `prefetch`.

The mark of the weights is a sum over all of their elements of a hash of the element and its place,
so that ranks add up their shards, and every layout finds the same mark.
"""

import json
import os
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import reduce
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from mimo_launch import __version__
from mimo_launch.comm.objects import gather_objects
from mimo_launch.data.sources.kept_files import cache_folder
from mimo_launch.layers.parallel_context import torch_type
from mimo_launch.layers.parameter_segments import LocalSegment, local_segments
from mimo_launch.layout.layout import ModuleLayout
from mimo_launch.models.build import RankModule
from mimo_launch.models.fsdp import fsdp_modules
from mimo_launch.models.kept_rows import ERRORS, RowCache, State
from mimo_launch.spec.base import Axis
from mimo_launch.spec.spec import Spec
from mimo_launch.train.rank_session import RankSession

# Odd factors of splitmix64, as signed numbers of 64 bits.
_MIX = (-0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15)
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_WHOLE = 1 << 64
# Names of folders of recipes, and how many of them a message lists.
_NAME, _LISTED = re.compile("[0-9a-f]{32}"), 5


def open_caches(session: RankSession) -> tuple[dict[str, RowCache], dict[str, Path]]:
    """Return the caches of encoders with their last stage on this rank, and the folders of all.

    Ranks: collective over the world if any module keeps rows. The weights must be loaded.
    """
    keeping = [module for module in session.layout.modules if module.keeps_rows]
    if not keeping:
        return {}, {}
    mine = {each.name: _part(session, each) for each in keeping}
    ranks = gather_objects(mine)
    found, folders = {}, {}
    for module in keeping:
        name = module.name
        mark = sum(rank[name][0] for rank in ranks) % _WHOLE
        used = max(rank[name][1] for rank in ranks)
        folders[name] = _folder(session.spec, name) / _recipe(session.spec, name, mark)
        if _has_last(session, module):
            found[name] = _open(session.spec, module, folders[name], used)
    return found, folders


def reason_of(told: int, name: str, folders: Mapping[str, Path]) -> str:
    """Return why the rows of a module are not kept, or nothing if they may be; see `told`."""
    state, error = State(told // ERRORS), os.strerror(told % ERRORS)
    folder = folders[name].parent
    match state:
        case State.FULL:
            return f"{folder} is full, see `limit_gib`{_others(folder, folders.values())}"
        case State.NOT_WRITTEN:
            return f"{folder} cannot be written: {error}"
        case State.NOT_READ:
            return f"a file in {folder} cannot be read: {error}"
        case State.DAMAGED:
            return "a file is damaged"
        case _:
            return ""


def _others(folder: Path, used: Collection[Path]) -> str:
    """Return which rows in a folder this run does not use, as far as this host has it."""
    try:
        names = sorted(each.name for each in folder.iterdir() if each not in used)
    except OSError:
        return ""
    names = [each for each in names if _NAME.fullmatch(each)]
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    listed = ", ".join(names[:_LISTED]) + more
    return f"; delete what no other run uses of {listed}" if names else ""


def _recipe(spec: Spec, name: str, mark: int) -> str:
    """Return the name of the folder for rows of a module with weights of this mark."""
    written, numbers = spec.modules[name], spec.train.numbers
    recipe = {
        "release": __version__,
        "torch": torch.__version__,
        "model": written.model.model_dump(mode="json"),
        "backend": written.backend,
        "numbers": [str(torch_type(each)) for each in (numbers.stored, numbers.computed)],
        "width": spec.sent_width(name),
        "weights": mark,
    }
    return sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:32]


def _open(spec: Spec, module: ModuleLayout, folder: Path, used: int) -> RowCache:
    asked, width = spec.modules[module.name].row_cache, spec.sent_width(module.name)
    if asked is None:
        raise ValueError(f"{module.name} keeps no rows")
    # One rank of each replica writes.
    room = max(0, int(asked.limit_gib * 2**30) - used) // module.grid.size(Axis.DP)
    dtype = torch_type(spec.train.numbers.computed)
    return RowCache(folder, width=width, dtype=dtype, room=room)


def _folder(spec: Spec, name: str) -> Path:
    asked = spec.modules[name].row_cache
    return cache_folder("rows") if asked is None or asked.folder is None else Path(asked.folder)


def _has_last(session: RankSession, module: ModuleLayout) -> bool:
    return session.rank in module.grid and any(
        stage.is_last for stage in module.stages_of(session.rank)
    )


def _part(session: RankSession, module: ModuleLayout) -> tuple[int, int]:
    """Return this rank's part of the mark of a module, and the bytes that its folder holds."""
    here = session.modules.get(module.name)
    used = 0
    if _has_last(session, module):
        used = bytes_in(_folder(session.spec, module.name))
    return 0 if here is None else _mark(here), used


def bytes_in(folder: Path) -> int:
    """Return the bytes of the files in a folder, where other runs may rename and remove files."""
    found = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            found += path.stat().st_size if path.is_file() else 0
    return found


def _mark(module: RankModule) -> int:
    """Return this rank's part of the mark of a module's weights."""
    # An evaluation leaves weights gathered, so that every rank holds all of them.
    for network in module.stages.values():
        for unit in fsdp_modules(network):
            unit.reshard()
    parts = local_segments(module.declared(), lambda parameter: parameter.detach())
    return sum(_hash(each) for each in parts if each.segment.counted) % _WHOLE


def _hash(item: LocalSegment) -> int:
    local = item.local
    places: Any = torch.zeros((), dtype=torch.int64, device=local.device)
    for size, offset, whole in zip(local.shape, item.offsets, item.segment.shape, strict=True):
        along = torch.arange(offset, offset + size, device=local.device)
        places = places.unsqueeze(-1) * whole + along
    seed = int.from_bytes(sha256(item.name.encode()).digest()[:7], "big")
    bits = local.contiguous().view(_BITS[local.element_size()]).long()
    mixed = reduce(_stir, _MIX, (places + seed) * _MIX[0] ^ bits)
    return int(mixed.sum())


def _stir(values: torch.Tensor, factor: int) -> torch.Tensor:
    """Spread every bit over the whole number; products wrap around."""
    return (values ^ (values >> 29)) * factor
