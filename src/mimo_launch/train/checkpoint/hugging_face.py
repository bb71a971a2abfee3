"""Takes the weights of a decoder from a Hugging Face folder, on any layout.

Decides: which elements of the files each rank reads, what fills the vocabulary beyond the file's,
and that every tensor of the files is used, left out by rule, or an error.
Relies on: safetensors, which reads slices and runs no code; `layout.hugging_face` for names.
Leaves: whether the model is the same to `layout.checks`, which has compared config.json.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open

from mimo_launch.comm.objects import from_first, gather_objects
from mimo_launch.layout.hugging_face.decoder import EMBEDDING, HEAD, is_ignored, place
from mimo_launch.layout.hugging_face.folder import INDEX, WEIGHTS
from mimo_launch.layout.tokens import vocab_size
from mimo_launch.spec.model import DecoderModel
from mimo_launch.train.checkpoint.chunks import WEIGHTS as PREFIX
from mimo_launch.train.checkpoint.chunks import Chunk, weight_chunks
from mimo_launch.train.checkpoint.fitting import WeightsDoNotFit, differences, fit, size
from mimo_launch.train.checkpoint.storage import CheckpointError
from mimo_launch.train.events import WeightsLoaded
from mimo_launch.train.session import RankSession

FLOATS = ("F64", "F32", "BF16", "F16")
# Rows of a vocabulary that are in memory at once while their mean is taken.
BLOCK = 4096


@dataclass(frozen=True, slots=True)
class Stored:
    """Where a tensor is, and what it looks like."""

    file: str
    shape: tuple[int, ...]


def load_hugging_face(
    session: RankSession, name: str, folder: Path, group: dist.ProcessGroup
) -> WeightsLoaded:
    """Fill the weights of a decoder, each rank reading what it holds.

    Ranks: collective over the world. Raises: WeightsDoNotFit unless every tensor of the files and
    of the model is accounted for, or the spec says `init_partial` and at least one fits;
    CheckpointError if a file cannot be read.
    """
    model = session.spec.modules[name].model
    if not isinstance(model, DecoderModel):
        raise TypeError(f"a {model.kind} has no names in a Hugging Face folder")
    stored = _headers_on_first(folder, group)
    module, vocab = session.modules.get(name), vocab_size(session.spec)
    chunks = [] if module is None else [_renamed(c, name, model) for c in weight_chunks(module)]
    chunks = [_of_file(chunk, stored, vocab) for chunk in chunks]
    found = fit({key: each.shape for key, each in stored.items()}, chunks, group)
    unknown = [key for key in found.unused if not is_ignored(key, model)]
    missing = [f"{key} ({size(shape)})" for key, shape in found.missing.items()]
    partial = session.spec.modules[name].init_partial
    if found.num_loaded == 0 or ((missing or found.misfits or unknown) and not partial):
        raise WeightsDoNotFit(
            f"`init_from` of `{name}`: {folder} does not fit: "
            + differences(
                missing_there=missing,
                of_another_shape=found.misfits,
                there_only=[f"{key} ({size(stored[key].shape)})" for key in unknown],
            )
            + ("" if found.num_loaded == 0 else "; `init_partial: true` loads what fits")
        )
    error = _read(folder, stored, found.chunks, vocab, session.where.beat)
    for rank, problem in enumerate(gather_objects(error, group)):
        if problem:
            raise CheckpointError(f"`init_from` of `{name}`: rank {rank}: {problem}")
    return WeightsLoaded(
        module=name,
        checkpoint=str(folder),
        num_loaded=found.num_loaded,
        missing=tuple(found.missing),
        misfits=found.misfits,
        unused=found.unused,
    )


def _renamed(chunk: Chunk, module: str, model: DecoderModel) -> Chunk:
    """Return a chunk under the name it has in the files."""
    return replace(chunk, name=place(chunk.name.removeprefix(f"{PREFIX}/{module}."), model).name)


def _of_file(chunk: Chunk, stored: dict[str, Stored], vocab: int) -> Chunk:
    """Return a chunk whose full shape has the vocabulary of the files, if ours holds that.

    The rows of ours beyond it are filled by rule, those that pad ours are never used.
    """
    if chunk.name not in (EMBEDDING, HEAD):
        return chunk
    there = stored[chunk.name].shape[0] if chunk.name in stored else vocab
    return replace(chunk, shape=(min(there, vocab), *chunk.shape[1:]))


def _headers_on_first(folder: Path, group: dist.ProcessGroup) -> dict[str, Stored]:
    """Return what the files hold, as the first rank sees it.

    Ranks: collective over `group`. Raises: CheckpointError on all ranks.
    """
    found: dict[str, Stored] = {}
    problem = ""
    if dist.get_rank(group) == 0:
        try:
            found = dict(_headers(folder))
        except (OSError, ValueError, SafetensorError) as error:
            problem = f"{folder} cannot be read: {error}"
    found, problem = from_first((found, problem), group)
    if problem:
        raise CheckpointError(problem)
    return found


def _headers(folder: Path) -> Iterator[tuple[str, Stored]]:
    """Yield every tensor of the files.

    Raises: ValueError if the index is not one, or a tensor holds no floating-point numbers.
    """
    files = {WEIGHTS}
    if not (folder / WEIGHTS).is_file():
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        places = index.get("weight_map") if isinstance(index, dict) else None
        if not isinstance(places, dict) or not all(isinstance(x, str) for x in places.values()):
            raise ValueError(f"{INDEX} has no `weight_map` of file names")
        # The name alone: a path of a stranger must not lead out of the folder.
        files = {Path(place).name for place in places.values()}
    for file in sorted(files):
        with safe_open(folder / file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118  It is no dict.
                part = opened.get_slice(name)
                if part.get_dtype() not in FLOATS:
                    raise ValueError(f"{name} in {file} has type {part.get_dtype()}")
                yield name, Stored(file, tuple(part.get_shape()))


def _read(
    folder: Path,
    stored: dict[str, Stored],
    chunks: tuple[Chunk, ...],
    vocab: int,
    beat: Callable[[], None],
) -> str:
    """Fill chunks; return what went wrong, if anything."""
    with ExitStack() as stack:
        opened: dict[str, Any] = {}
        try:
            for chunk in chunks:
                beat()
                file = stored[chunk.name].file
                if file not in opened:
                    opened[file] = stack.enter_context(safe_open(folder / file, framework="pt"))
                _fill(chunk, opened[file].get_slice(chunk.name), vocab, beat)
        except (OSError, RuntimeError, ValueError, SafetensorError) as error:
            return f"{type(error).__name__}: {error}"
    return ""


def _fill(chunk: Chunk, saved: Any, vocab: int, beat: Callable[[], None]) -> None:
    """Read the box of one chunk; only a vocabulary reaches beyond the tensor of the file."""
    box = [range(o, o + n) for o, n in zip(chunk.offsets, chunk.tensor.shape, strict=True)]
    end = min(box[0].stop, chunk.shape[0])
    if box[0].start < end:
        held = saved[(slice(box[0].start, end), *(slice(x.start, x.stop) for x in box[1:]))]
        chunk.tensor[: end - box[0].start].copy_(held)
    if chunk.name in (EMBEDDING, HEAD):
        first, last = max(box[0].start, chunk.shape[0]), min(box[0].stop, vocab)
        if first < last:
            mean = _mean_row(saved, chunk.shape[0], beat)
            chunk.tensor[first - box[0].start : last - box[0].start].copy_(mean)


def _mean_row(saved: Any, num_rows: int, beat: Callable[[], None]) -> torch.Tensor:
    """Return the mean of all rows in float64, the same on every rank.

    A new output row that is the mean has the mean logit, so no new word is likelier than old ones
    (J. Hewitt, Initializing New Word Embeddings for Pretrained Language Models, 2021).
    """
    total = torch.zeros((), dtype=torch.float64)
    for first in range(0, num_rows, BLOCK):
        beat()
        total = total + saved[first : first + BLOCK].double().sum(0)
    return total / num_rows
