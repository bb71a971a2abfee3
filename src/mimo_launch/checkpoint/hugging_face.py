"""Loads the weights of a module from a Hugging Face folder, on any layout.

Decides: which elements of the files each rank reads; how a vocabulary larger than the file's is
filled; that every tensor of the files is used, left out by rule, or an error; that a tensor that is
left out because it repeats another must be equal to it.
Relies on: `folder_tensors` for slices; `hugging_face` for names.
Leaves: comparing the model to `checks`, which has compared config.json.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from torch import Tensor

from mimo_launch.checkpoint.boxes import WEIGHTS as PREFIX
from mimo_launch.checkpoint.boxes import (
    Box,
    Fit,
    WeightsDoNotFit,
    differences,
    fit,
    note_filled,
    plain,
    size,
    weight_boxes,
)
from mimo_launch.checkpoint.folder_tensors import FolderTensors, block_scales, mean_row
from mimo_launch.checkpoint.storage import CheckpointError
from mimo_launch.comm.objects import from_first, gather_objects
from mimo_launch.hugging_face.folder import (
    TYPES,
    Config,
    ConfigError,
    FilesError,
    TensorHeader,
    read_config,
)
from mimo_launch.hugging_face.part import Part
from mimo_launch.hugging_face.quantized import read_tensors
from mimo_launch.hugging_face.registry import part_of
from mimo_launch.hugging_face.repeats import repeats
from mimo_launch.hugging_face.tensors import EMBEDDING, HEAD, OF_WORDS, Place
from mimo_launch.kinds.adapters import is_adapter
from mimo_launch.kinds.language import is_of_loss
from mimo_launch.kinds.registry import kind_of
from mimo_launch.kinds.vocabulary import vocab_size
from mimo_launch.layers.packed import PackedRows
from mimo_launch.spec.spec import Spec
from mimo_launch.train.events import WeightsLoaded
from mimo_launch.train.rank_session import RankSession

# The tensors of a part, by name in its family: the name in the files, and the header.
Stored = Mapping[str, tuple[str, TensorHeader]]


def load_hugging_face(
    session: RankSession, name: str, folder: Path, group: dist.ProcessGroup, *, partial: bool
) -> tuple[WeightsLoaded, frozenset[str]]:
    """Fill the weights of a module; each rank reads only its own parts, and returns their names.

    Ranks: collective over the world. Raises: WeightsDoNotFit unless every tensor of the files and
    of the model fits or is left out by rule, or `partial` ones will do and at least one fits;
    CheckpointError if a file cannot be read.
    """
    spec = session.spec
    model, vocab = spec.modules[name].model, vocab_size(spec)
    config, headers = _contents_on_first(folder, group)
    part = part_of(config, model.kind)
    stored = _stored(part, headers)
    module = session.modules.get(name)
    boxes = [] if module is None else list(weight_boxes(module, packed=True))
    placed = list(_placed(part, name, model, boxes, stored, vocab))
    mine = [(box, place) for _, box, place in placed]
    every: dict[str, Place | None] = {}
    for theirs in gather_objects({box.name: place for box, place in mine}, group):
        every |= theirs
    places = {key: _found(place, stored) for key, place in every.items() if place is not None}
    saved = {
        key: _offered(stored[place.name][1].shape, place)
        for key, place in places.items()
        if place.name in stored
    }
    fitting = fit(saved, [box for box, place in mine if place is not None], group)
    used = {stored[place.name][0] for place in places.values() if place.name in stored}
    unused = sorted(set(headers) - used)
    # A part of width 0 has tensors without elements in files, and none here.
    unknown = [k for k in unused if not part.is_ignored(k, model) and 0 not in headers[k].shape]
    unfit = f"`init_from` of `{name}`: {folder} does not fit: "
    if problem := _misfit(fitting, headers, unknown, partial=partial):
        raise WeightsDoNotFit(f"{unfit}{problem}")
    error = _read(folder, stored, fitting.boxes, places, vocab, session.progress.beat)
    for rank, problem in enumerate(gather_objects(error, group)):
        if problem:
            raise CheckpointError(f"`init_from` of `{name}`: rank {rank}: {problem}")
    pairs = {} if partial else repeats(part, model)
    unlike = _unlike(folder, stored, fitting.boxes, pairs, session.progress.beat)
    if unlike := next(filter(None, gather_objects(unlike, group)), ""):
        raise WeightsDoNotFit(f"{unfit}{unlike}")
    event = WeightsLoaded(
        module=name,
        checkpoint=str(folder),
        num_loaded=fitting.num_loaded,
        missing=(*fitting.missing, *sorted(every.keys() - places.keys())),
        misfits=fitting.misfits,
        unused=tuple(unused),
    )
    there = {box.name for box in fitting.boxes}
    filled = [
        replace(box, name=ours, tensor=box.tensor[: sum(map(len, _filled(box, vocab)))])
        for ours, box, _ in placed
        if box.name in there
    ]
    note_filled(session.modules, filled)
    return event, frozenset(box.name for box in filled)


def _misfit(
    fitting: Fit, headers: Mapping[str, TensorHeader], unknown: list[str], *, partial: bool
) -> str:
    """Return how a folder and the model differ, if they do and that will not do."""
    missing = [f"{key} ({size(shape)})" for key, shape in fitting.missing.items()]
    if fitting.num_loaded and (partial or not (missing or fitting.misfits or unknown)):
        return ""
    differ = differences(
        missing_there=missing,
        of_another_shape=fitting.misfits,
        there_only=[f"{key} ({size(headers[key].shape)})" for key in unknown],
    )
    return differ + ("; `init_partial: true` loads what fits" if fitting.num_loaded else "")


def fill_from_folder(folder: Path, spec: Spec, name: str, boxes: Sequence[Box]) -> None:
    """Fill boxes of a module's weights in this process alone.

    Raises: CheckpointError if the folder lacks one or cannot be read.
    """
    model, vocab = spec.modules[name].model, vocab_size(spec)
    try:
        part, headers = part_of(read_config(folder), model.kind), read_tensors(folder)
    except (ConfigError, FilesError) as error:
        raise CheckpointError(f"{folder} cannot be read: {error}") from error
    stored = _stored(part, headers)
    found, places = list[Box](), dict[str, Place]()
    for ours, box, place in _placed(part, name, model, boxes, stored, vocab):
        if place is None or place.name not in stored:
            raise CheckpointError(f"{folder} lacks {plain(ours)}")
        found.append(box)
        places[box.name] = _found(place, stored)
    if problem := _read(folder, stored, found, places, vocab, lambda: None):
        raise CheckpointError(problem)


def _stored(part: Part, headers: Mapping[str, TensorHeader]) -> Stored:
    """Return the tensors of a part."""
    return {
        inner: (theirs, header)
        for theirs, header in headers.items()
        if (inner := part.inner_name(theirs)) is not None
    }


def _contents_on_first(
    folder: Path, group: dist.ProcessGroup
) -> tuple[Config, dict[str, TensorHeader]]:
    """Return the configuration and the headers of the files, as read by the first rank.

    Ranks: collective over `group`. Raises: CheckpointError on all ranks.
    """
    config: Config = {}
    headers: dict[str, TensorHeader] = {}
    problem = ""
    if dist.get_rank(group) == 0:
        try:
            config, headers = read_config(folder), read_tensors(folder)
        except (ConfigError, FilesError) as error:
            problem = f"{folder} cannot be read: {error}"
    config, headers, problem = from_first((config, headers, problem), group)
    if problem:
        raise CheckpointError(problem)
    return config, headers


def _placed(
    part: Part, module: str, model: Any, boxes: Iterable[Box], stored: Stored, vocab: int
) -> Iterator[tuple[str, Box, Place | None]]:
    """Yield the names of boxes, the boxes under their names in the files, and their places there.

    Rows of a tensor have the name of a slice of it. A box without a place keeps its name and its
    initial values. The full shape of a vocabulary has the rows that the files and the model share:
    further rows of the model are filled by rule, and its padding is never used.
    """
    for box in boxes:
        if is_adapter(box.name) or is_of_loss(box.name):
            continue
        key, shape = box.name.removeprefix(f"{PREFIX}/{module}."), box.shape
        if (place := _place_of(part, key, model)) is not None:
            other = part.family.other_place(key, model)
            place = place if other is None or other.name not in stored else other
            if place.optional and place.name not in stored:
                yield box.name, replace(box, name=key), None
                continue
            if (
                place.name == EMBEDDING not in stored
                and kind_of(model).text.tied
                and HEAD in stored
            ):
                place = replace(place, name=HEAD)  # Either tensor may hold the values of both.
            key = place.key
            if key in OF_WORDS:
                there = stored[key][1].shape[0] if key in stored else vocab
                shape = (min(there, vocab), *shape[1:])
        yield box.name, replace(box, name=key, shape=shape), place


def _place_of(part: Part, key: str, model: Any) -> Place | None:
    """Return the place of a segment; one that the family lacks is missing under our name."""
    try:
        return part.place(key, model)
    except KeyError:
        return Place(key)


def _found(place: Place, stored: Stored) -> Place:
    """Return a place as in the file: the shape shows whether entries of a stack are transposed."""
    entry, whole = place.stacked, place.shape
    if place.name not in stored or entry is None or whole is None:
        return place
    there = stored[place.name][1].shape
    if there == whole or there != (whole[0], *whole[:0:-1]):
        return place
    turned = replace(entry, transposed=not entry.transposed)
    return replace(place, shape=there, stacked=turned)


def _offered(shape: tuple[int, ...], place: Place) -> tuple[int, ...]:
    """Return the shape of a tensor's part for a segment; the tensor's shape if it does not fit."""
    if place.stacked is not None:
        if shape != place.shape:
            return shape
        rows, *rest = place.stacked.shape_in(shape)
        return rows if place.num_rows is None else place.num_rows, *rest
    if place.runs is not None and place.num_rows is not None:
        fits = shape[0] == place.runs.whole(place.num_rows)
        return (place.num_rows, *shape[1:]) if fits else shape
    if shape == place.shape == ():
        return (1,)
    found = shape = shape[::-1] if place.transposed else shape
    if place.shape is not None and shape == place.shape:
        rows, *rest = shape[_leading(shape) :]
        found = (rows, prod(rest)) if rest else (rows,)
        found = (shape[0] * shape[1], *shape[2:]) if place.grid else found
    if place.num_rows is not None and place.first_row + place.num_rows <= shape[0]:
        found = place.num_rows, *found[1:]
    return found


def _leading(shape: tuple[int, ...]) -> int:
    """Return the number of leading dimensions of size 1, without counting the last dimension."""
    return next((i for i, size in enumerate(shape[:-1]) if size > 1), len(shape) - 1)


def _read(
    folder: Path,
    stored: Stored,
    boxes: Sequence[Box],
    places: Mapping[str, Place],
    vocab: int,
    beat: Callable[[], None],
) -> str:
    """Fill boxes; return the first error as text, or ""."""
    with FolderTensors(folder) as there:
        for box in boxes:
            beat()
            place = places[box.name]
            name, header = stored[place.name]
            if header.dtype not in TYPES:
                return f"{header.file} cannot be read: {name} has type {header.dtype}"
            try:
                _fill(box, there.sliceable(name, header), place, vocab, beat)
            except (OSError, RuntimeError, ValueError, SafetensorError) as error:
                return f"{header.file} cannot be read: {type(error).__name__}: {error}"
    return ""


def _unlike(
    folder: Path,
    stored: Stored,
    boxes: Sequence[Box],
    pairs: Mapping[str, str],
    beat: Callable[[], None],
) -> str:
    """Describe the first tensor that should repeat another but differs within the boxes, or ""."""
    with FolderTensors(folder) as there:
        for box, (one, other) in product(boxes, pairs.items()):
            if box.name == other and one in stored:
                rows, *columns = _spans(box)
                rows = range(rows.start, min(rows.stop, box.shape[0]))
                if not there.equal(stored[one], stored[other], rows, columns, beat):
                    untie = "`tied: false` in `model` and " if one == HEAD else ""
                    return (
                        f"{stored[one][0]} is not {stored[other][0]}, which the model has in its "
                        f"place; write {untie}`init_partial: true`"
                    )
    return ""


def _spans(box: Box) -> list[range]:
    """Return the rows, columns and so on of a box in the whole tensor."""
    return [range(o, o + n) for o, n in zip(box.offsets, box.tensor.shape, strict=True)]


def read_place(saved: Any, place: Place, rows: range, rest: Sequence[range]) -> Tensor:
    """Return rows, columns and so on of our tensor at a place; `saved` is sliced without steps."""
    if place.stacked is not None:
        entry: Tensor = place.stacked.read(saved, place.first_row, [rows, *rest])
        return entry
    there = slice(place.first_row + rows.start, place.first_row + rows.stop)
    columns = [slice(x.start, x.stop) for x in rest]
    held: Tensor
    if place.shape == ():
        held = saved[()].view(1)
    elif place.transposed:
        held = saved[(*columns, there)].mT
    elif place.runs is not None:
        cut = place.runs.pieces(place.first_row, rows)
        held = torch.cat([saved[(each, *columns)] for _, each in cut])
    elif place.channels:
        held = place.apart(saved[(there, slice(None))])[(slice(None), *columns)]
    elif place.shape is None:
        held = saved[(there, *columns)]
    elif place.grid:
        held = saved[(slice(None), slice(None), *columns)].flatten(0, 1)[there]
    else:
        first = _leading(place.shape)
        held = saved[(*(slice(None),) * first, there)].flatten(0, first)
        held = held.flatten(1)[(slice(None), *columns)] if held.dim() > 1 else held
    return held


def _filled(box: Box, vocab: int) -> tuple[range, range]:
    """Return the rows of a box that the file has, and after them those of further words.

    The padding of words is in neither.
    """
    rows, *_ = _spans(box)
    saved = box.shape[0]
    end = vocab if box.name in OF_WORDS else saved
    read = range(rows.start, min(rows.stop, saved))
    return read, range(max(rows.start, saved), min(rows.stop, end))


def _fill(box: Box, saved: Any, place: Place, vocab: int, beat: Callable[[], None]) -> None:
    """Read one box; a vocabulary may be larger than the tensor in the file."""
    _, *rest = _spans(box)
    found, further = _filled(box, vocab)
    if found:
        into = box.tensor[: len(found)]
        values, scales = read_place(saved, place, found, rest), block_scales(saved)
        if scales and isinstance(into, PackedRows) and into.keeps(scales.kind, scales.block):
            into.copy_(values, read_place(scales.each, place, found, rest))
        else:
            into.copy_(values)
    if further:
        mean = mean_row(saved, box.shape[0], beat)
        box.tensor[len(found) : len(found) + len(further)].copy_(mean)
