"""Reads the index of a checkpoint, `tensors.json`: the files and offsets of the boxes of tensors.

Decides: that each element of each tensor lies in one box, in a file of the folder: an element
without a box would keep the value that was in memory before.
Relies on: no torch, so that the command line can look at checkpoints before it imports torch.
Leaves: reading the boxes to `storage`.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from secrets import randbelow
from typing import Any

from mimo_launch.checkpoint.folder import (
    Base,
    DamagedCheckpoint,
    Sums,
    all_checkpoints,
    crc_of,
    is_complete,
    read_marker,
)
from mimo_launch.spec.files import MEGABYTE, read_json
from mimo_launch.spec.load import MARKER, spec_from_data
from mimo_launch.spec.spec import Spec

TENSORS = "tensors.json"
# An entry has a few hundred bytes, and there may be thousands of ranks and tensors.
_MAX_BYTES = 1024 * MEGABYTE
# More dimensions and elements than in any real tensor.
_MAX_DIMENSIONS, _MAX_ELEMENTS = 16, 2**62
_PRIME = 2**61 - 1
Numbers = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StoredBox:
    """A part of a tensor: its offsets, its sizes, and its file and bytes there."""

    offsets: Numbers
    sizes: Numbers
    file: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor: its full shape, the name of its dtype in torch (`float32`), its boxes."""

    shape: Numbers
    dtype: str
    boxes: tuple[StoredBox, ...]


def read_index(folder: Path) -> dict[str, Entry]:
    """Return the tensors of a checkpoint by name. Raises: DamagedCheckpoint."""
    try:
        index = read_json(folder / TENSORS, _MAX_BYTES)
        sizes = {file.name: file.stat().st_size for file in folder.iterdir() if file.is_file()}
        entries = {str(name): _entry(entry) for name, entry in index.items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise DamagedCheckpoint(f"{TENSORS} cannot be read: {error}") from error
    for name, entry in entries.items():
        reason = uncovered(entry.shape, [(box.offsets, box.sizes) for box in entry.boxes])
        if reason:
            raise DamagedCheckpoint(f"{TENSORS} is damaged: of {name} {reason}")
        for box in entry.boxes:
            if box.offset + box.length > sizes.get(box.file, -1):
                raise DamagedCheckpoint(f"{TENSORS} is damaged: {name} is not in {box.file}")
    return entries


def index_text(index: Mapping[str, Any]) -> str:
    """Return the contents of `tensors.json`. Raises: ValueError if `read_index` would refuse it."""
    text = json.dumps(index)
    if len(text) > _MAX_BYTES:
        boxes = sum(len(entry["chunks"]) for entry in index.values())
        raise ValueError(
            f"its index of {boxes:,} boxes has {len(text) / MEGABYTE:,.0f} MB, and a run reads "
            f"back at most {_MAX_BYTES / MEGABYTE:,.0f} MB; cut weights over fewer ranks"
        )
    return text


def uncovered(shape: Numbers, boxes: Sequence[tuple[Numbers, Numbers]]) -> str:
    """Return why boxes (offsets, sizes) do not cover each element of a shape once, or ""."""
    for offsets, sizes in boxes:
        ends = [first + size for first, size in zip(offsets, sizes, strict=True)]
        if len(ends) != len(shape) or any(e > s for e, s in zip(ends, shape, strict=True)):
            return f"a part reaches beyond the shape {list(shape)}"
    found = sum(prod(sizes) for _, sizes in boxes)
    if found != prod(shape):
        return f"{found} of {prod(shape)} elements are there"
    # The number of elements is right: if none is there twice, none is missing.
    return "some elements are there twice" if _overlap(shape, boxes) else ""


def _overlap(shape: Numbers, boxes: Sequence[tuple[Numbers, Numbers]]) -> bool:
    """Return whether boxes of the right total size overlap.

    If each axis is stretched at random, boxes still fill the shape if each element is in one box.
    If not, their volumes add up to the volume of the shape with probability below 2**-56.
    """
    places = [defaultdict[int, int](partial(randbelow, _PRIME)) for _ in shape]

    def volume(offsets: Numbers, sizes: Numbers) -> int:
        of_axes = zip(places, offsets, sizes, strict=True)
        return prod(at[first + size] - at[first] for at, first, size in of_axes) % _PRIME

    found = sum(volume(*box) for box in boxes)
    return found % _PRIME != volume((0,) * len(shape), shape)


def _entry(entry: Any) -> Entry:
    shape = _numbers(entry["shape"])
    if len(shape) > _MAX_DIMENSIONS or prod(shape) > _MAX_ELEMENTS:
        raise ValueError(f"no tensor has the shape {list(shape[:_MAX_DIMENSIONS])}")
    boxes = []
    for offsets, sizes, file, offset, length in entry["chunks"]:
        first, extent = _numbers(offsets), _numbers(sizes)
        if not len(first) == len(extent) == len(shape):
            raise ValueError(f"a part of a tensor of shape {list(shape)} has other dimensions")
        # Keep only the name: a path in an untrusted index must not lead out of the folder.
        boxes.append(StoredBox(first, extent, Path(str(file)).name, *_numbers([offset, length])))
    return Entry(shape, str(entry["dtype"]), tuple(boxes))


def _numbers(found: Any) -> Numbers:
    if not isinstance(found, list) or not all(type(n) is int and n >= 0 for n in found):
        raise ValueError("a size or an offset is not a number from 0 on")
    return tuple(found)


class NoCheckpoint(Exception):
    """There is no checkpoint to read; the message says what was found instead."""

    help = "name a folder under runs/, or one of its checkpoints"


class NoBase(NoCheckpoint):
    """A folder with weights that a checkpoint leaves out is gone, or has changed."""

    help = "put the folder back as it was"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint: path, step, spec of the run, checksums of files, full shapes.

    `shapes` has the weights that it leaves out, too; `bases` says where those of each module are.
    """

    path: Path
    step: int
    spec: Spec
    sums: Sums
    shapes: dict[str, tuple[int, ...]]
    bases: dict[str, Base]

    def segments(self, module: str) -> dict[str, tuple[int, ...]]:
        """Return the full shapes of a module's segments, by their names in the module."""
        prefix = prefix_of(module)
        return {
            name.removeprefix(prefix): shape
            for name, shape in self.shapes.items()
            if name.startswith(prefix)
        }

    @property
    def num_bytes(self) -> int:
        """Return the total size of its files."""
        return sum(size for size, _ in self.sums.values())

    def check(self, read: Callable[[int], None]) -> None:
        """Read every file once and compare its checksum; call `read` with the bytes of each.

        Raises: NoCheckpoint if one differs or cannot be read.
        """
        for name, (size, crc) in self.sums.items():
            try:
                found = crc_of(self.path / Path(name).name, lambda: None)
            except OSError as error:
                raise NoCheckpoint(f"{self.path} cannot be read: {error}") from error
            if found != crc:
                raise NoCheckpoint(f"{self.path} is damaged: the checksum of {name} is another")
            read(size)


def prefix_of(module: str) -> str:
    """Return the prefix of the names that `boxes` gives to a module's weights."""
    return f"weights/{module}."


def open_checkpoint(path: Path, step: int | None) -> Checkpoint:
    """Return the checkpoint of a step of a run, or its newest; `path` may be a checkpoint itself.

    For commands that read weights: this takes the newest checkpoint with files of the right sizes;
    `Checkpoint.check` reads their contents. A run itself resumes from
    `checkpoint.usable.newest_usable`. If a live run completes one checkpoint and deletes another
    meanwhile, this looks again.

    Raises: NoCheckpoint.
    """
    while True:
        before = _state(path)
        try:
            return _open(path, step)
        except NoCheckpoint:
            if _state(path) == before:
                raise


def _state(path: Path) -> list[tuple[str, int]]:
    """Return the names and times of checkpoints; they change when a run saves or deletes one."""
    state = []
    for folder in all_checkpoints(path):
        made = 0
        with suppress(OSError):
            made = (folder / MARKER).stat().st_mtime_ns
        state.append((folder.name, made))
    return state


def _open(path: Path, step: int | None) -> Checkpoint:
    if (path / MARKER).is_file():
        found = [path]
    else:
        found = [folder for folder in all_checkpoints(path) if is_complete(folder)]
    opened, damaged = [], []
    for folder in found:
        try:
            marker = read_marker(folder)
        except DamagedCheckpoint as error:
            damaged.append(f"{folder.name}: {error}")
            continue
        if step in (None, marker.counts["step"]):
            spec = spec_from_data(marker.spec)
            try:
                shapes = {name: entry.shape for name, entry in read_index(folder).items()}
            except DamagedCheckpoint as error:
                raise NoCheckpoint(f"{folder} cannot be read: {error}") from error
            for base in marker.bases.values():
                shapes |= base.shapes
            counts, bases = marker.counts, marker.bases
            return Checkpoint(folder, counts["step"], spec, marker.files, shapes, bases)
        opened.append(str(marker.counts["step"]))
    if not path.is_dir():
        raise NoCheckpoint(f"{path} is not a folder")
    wanted = "complete checkpoint" if step is None else f"checkpoint of step {step}"
    others = f"; there are those of {', '.join(reversed(opened))}" if opened else ""
    broken = f"; damaged: {'; '.join(damaged)}" if damaged else ""
    raise NoCheckpoint(f"{path} has no {wanted}{others}{broken}")
