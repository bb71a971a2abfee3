"""The interface of a loader, and the tensors that the runtime makes from its samples.

Decides: the form of text, documents and places for a model, and the position ids of text and of the
rows of images on several axes (M-RoPE), as runs of tokens.
Relies on: `layout.step_views` for the samples of a replica, so that every language stage knows them
without messages.
Leaves: reading and decoding to `train`, with the ranks of `layout.step_views`; angles to
`layers.sequence_contexts`.

Text counts by one on every axis. The rows of an image share one time, and count height and width
from there; the next position follows the image's longer side. Each temporal patch of a video has
its own time; the next position follows the longer side or the last of these times (Qwen2.5-Omni).
Source: Qwen2-VL (arXiv:2409.12191), section 2.1.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from mimo_launch.comm.async_copies import to_device
from mimo_launch.data.random_draws import Noise
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.sequence_contexts import Documents
from mimo_launch.layout.replica_views import EncoderView, LanguageView
from mimo_launch.layout.samples import Bridge
from mimo_launch.layout.step_data import ImageSpan, StepData
from mimo_launch.layout.step_views import StepViews
from mimo_launch.models.encoder_inputs import Patches, patch_places
from mimo_launch.models.row_places import RowPlaces
from mimo_launch.models.tile_sources import NEWLINE, row_patches
from mimo_launch.models.tiled_rows import RowSources

NUM_AXES = 3


@dataclass(frozen=True, slots=True)
class PositionRun:
    """Consecutive tokens of text or, with `image`, of one image; their ids start at `position`."""

    first_token: int
    num_tokens: int
    position: int
    image: ImageSpan | None = None


def position_runs(images: Iterable[ImageSpan], seq: int) -> Iterator[PositionRun]:
    """Yield, in order, the runs that cover the `seq` tokens of a sample with these images.

    Lines of an image with text between them count as separate images.
    """
    token = position = corner = 0
    lines = (line for image in images for line in image.lines)
    for image in sorted(lines, key=lambda image: image.position):
        if image.later is None:
            length = image.position - token
            yield PositionRun(token, length, position)
            corner = position + length
        yield PositionRun(image.position, image.rows, corner, image)
        position = corner + image.length
        token = image.position + image.rows
    yield PositionRun(token, seq - token, position)


# Pixels, float32 [channels, height, width], or the patches cut from them.
Image = np.ndarray | Patches


class StepInputs(Protocol):
    """The samples of one step by their position in it; a rank asks only for what it needs."""

    @property
    def data(self) -> StepData:
        """The metadata of the samples."""

    @property
    def views(self) -> StepViews | None:
        """Views of `data` that the loader has already computed, if any."""

    def text(self, sample: int) -> tuple[np.ndarray, np.ndarray]:
        """Return tokens and labels, int64 [seq] each."""

    def documents(self, sample: int) -> np.ndarray:
        """Return the document that each position belongs to, int64 [seq]."""

    def images(self, sample: int, encoder: str) -> Sequence[Image]:
        """Return the images of a sample for one encoder."""

    def noises(self, sample: int, generator: str, numbers: int) -> Sequence[Noise]:
        """Return the noise of each image that a generator makes, in patches of `numbers` values."""


@dataclass(frozen=True, slots=True)
class Text:
    """Tokens and labels of one microbatch, [B, S] over all positions."""

    tokens: Tensor
    labels: Tensor


def read_text(view: LanguageView, inputs: StepInputs, device: torch.device) -> Text:
    """Return the text of one microbatch of one language replica."""
    texts = [inputs.text(sample) for sample in view.samples]
    tokens, labels = (to_device(np.stack(part), device) for part in zip(*texts, strict=True))
    return Text(tokens, labels)


def read_documents(
    view: LanguageView, inputs: StepInputs, device: torch.device
) -> Documents | None:
    """Return the documents of one microbatch; None if every sample is one document."""
    documents = np.stack([inputs.documents(sample) for sample in view.samples])
    if (documents == documents[:, :1]).all():
        return None
    return Documents(to_device(documents, device), document_lengths(documents))


def document_lengths(documents: np.ndarray) -> tuple[int, ...]:
    """Return the lengths of all documents, sample after sample, from their numbers [B, seq]."""
    ends = np.diff(documents, axis=1, append=documents[:, -1:] + 1).flatten().nonzero()[0] + 1
    return tuple(np.diff(ends, prepend=0).tolist())


def read_positions(
    view: LanguageView, inputs: StepInputs, encoders: Collection[str], device: torch.device
) -> Tensor:
    """Return time, height and width of the tokens of one microbatch, [3, B, S] over all positions.

    Rows of `encoders` are places in images, all other tokens are text. Each document counts from 0.
    """
    found, seq = [], view.layout.seq
    for sample in view.samples:
        spans = view.data.samples[sample].spans
        images = [image for name in encoders for image in spans.get(name, ())]
        ids = axis_positions(images, seq)
        documents = inputs.documents(sample)
        starts = np.where(np.diff(documents, prepend=documents[:1]), np.arange(seq), 0)
        # A document starts with text or with the corner of an image: its axes agree there.
        found.append(ids - ids[0, np.maximum.accumulate(starts)])
    return to_device(np.stack(found, axis=1), device)


def read_images(
    view: LanguageView, encoders: Collection[str], device: torch.device
) -> Tensor | None:
    """Return the image number of each token of one microbatch, [B, S] over all positions.

    Text tokens have -1. Return None if there are no images of `encoders`.
    """
    numbers = np.full((len(view.samples), view.layout.seq), -1, dtype=np.int64)
    for row, sample in zip(numbers, view.samples, strict=True):
        spans = view.data.samples[sample].spans
        for number, span in enumerate(each for name in encoders for each in spans.get(name, ())):
            for line in span.lines:
                row[line.position : line.position + line.num_positions] = number
    return to_device(numbers, device) if (numbers >= 0).any() else None


def token_shares(view: LanguageView, device: torch.device) -> Tensor:
    """Return 1/T for each of the T tokens of a sample and 0 for its padding, in float64.

    Shape: [B, S] over all positions of one microbatch. A record of a pack that could not be read
    leaves a gap without tokens.
    """
    tokens = is_token(view)
    return to_device(tokens / np.maximum(1, tokens.sum(axis=1, keepdims=True)), device)


def is_token(view: LanguageView) -> np.ndarray:
    """Return the mask of the positions of one microbatch that are not padding: bool [B, seq]."""
    samples = [view.data.samples[index] for index in view.samples]
    found = np.zeros((len(samples), view.layout.seq), dtype=np.bool_)
    for row, sample in zip(found, samples, strict=True):
        for record in sample.records:
            row[record.first : record.first + record.num_tokens] = True
    return found


def axis_positions(images: Iterable[ImageSpan], seq: int) -> np.ndarray:
    """Return time, height and width of the tokens of a sample, int64 [3, seq]."""
    ids = np.empty((NUM_AXES, seq), dtype=np.int64)
    for run in position_runs(images, seq):
        here = ids[:, run.first_token : run.first_token + run.num_tokens]
        if run.image is None:
            here[:] = np.arange(run.num_tokens)
        else:
            here[0] = run.image.later or 0
            here[1:] = np.indices((run.image.height, run.image.width)).reshape(2, -1)
        here += run.position
    return ids


def image_places(view: EncoderView, held: range) -> np.ndarray:
    """Return the place (y, x) of each patch `held` in its image, int64 [N, 2]; 0 for padding."""
    side = math.isqrt(view.module.patches_per_row)
    places = np.zeros((len(held), 2), dtype=np.int64)
    first = 0
    for image, length in zip(view.images, view.lengths, strict=True):
        last = first + length
        start, stop = max(first, held.start), min(last, held.stop)
        if start < stop:
            found = patch_places(image.height, image.width, side, pinned=False).numpy()
            here = slice(start - held.start, stop - held.start)
            places[here] = found[start - first : stop - first]
        first = last
    return places


def row_sources(view: EncoderView, context: ParallelContext) -> RowSources | None:
    """Return the sources of the rows that this rank makes of tiled images; None without tiles.

    Padding rows of the list use the learned row; no rank reads them.
    """
    if (tiles := view.module.tiles) is None:
        return None
    tp = context.tp.index if context.sequence_parallel else 0
    made, num_patches = view.made(context.cp.index, tp), len(view.held(0)) * context.cp.size
    places = np.full((len(made), 4), num_patches, dtype=np.int64)
    weights = np.tile([1.0, 0, 0, 0], (len(made), 1))
    first_row = first_patch = 0
    for image in view.images:
        start, stop = max(first_row, made.start), min(first_row + image.rows, made.stop)
        if start < stop:
            part = slice(start - first_row, stop - first_row)
            found, shares = (each[part] for each in row_patches(tiles, image.shown))
            here = slice(start - made.start, stop - made.start)
            places[here] = np.where(found == NEWLINE, num_patches, first_patch + found)
            weights[here] = shares
        first_row += image.rows
        first_patch += tiles.num_tiles(image.shown) * tiles.patches
    used = 4 if weights[:, 1:].any() else 1
    shared = to_device(weights[:, :used].copy(), context.device).to(context.compute_dtype)
    return RowSources(to_device(places[:, :used].copy(), context.device), shared)


def row_places(
    views: StepViews,
    bridge: Bridge,
    module: str,
    replica: int,
    forward: int,
    context: ParallelContext,
) -> RowPlaces:
    """Return the places of a bridge's rows in a forward of one of the two modules it joins."""
    runs, cuts = views.places(bridge, module, replica, forward, context.cp.index)
    placed = cuts[context.tp.index] if context.sequence_parallel else runs
    places = [run.place + i for run in placed for i in range(run.num_rows)]
    sizes = tuple(sum(run.num_rows for run in cut) for cut in cuts)
    return RowPlaces(sizes, to_device(np.array(places, np.int64), context.device))
