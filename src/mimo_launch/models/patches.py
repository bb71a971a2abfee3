"""Arrays of the data set, cut into patches on the host and packed on the device.

Decides: the interface between data and encoders. A data set returns arrays of the model's
`input_shape`; a `Reader` cuts each array into the patches that become tokens, in the order of rows.
Cutting and casting happen where samples are read, perhaps in another thread, so that packing only
copies.
Relies on: pinned memory on CUDA, for asynchronous copies.
Leaves: reading arrays to `train`, the choice of the patches that a rank holds to `stage_interface`,
embedding them to the encoders.

Legend: P values of a patch, N patches, s side of the square of patches that becomes one row.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Protocol, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mimo_launch.kinds.registry import kind_of
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layout.replica_views import EncoderView
from mimo_launch.spec.spec import Clips, Codes, Images, Model

Tokens = TypeVar("Tokens", Tensor, range)


@dataclass(frozen=True, slots=True)
class Patches:
    """The patches that become tokens of an encoder: values [N, P] and positions [N, axes].

    For images: pixels and (y, x), for learned positions also the height and width of the image in
    patches. Patches that pad the list for cp and tp give no rows.
    """

    values: Tensor
    positions: Tensor


# An array of the data set, or the patches cut from it.
Image = np.ndarray | Patches


def cut_image(
    array: np.ndarray,
    *,
    images: Images,
    dtype: torch.dtype,
    pinned: bool,
    measured: bool = False,
) -> Patches:
    """Cut an image, `array` [channels, height, width], into patches of `dtype` on the host.

    To read videos, `array` is [channels, frames, height, width]; its frames share patches.

    The patches of a square that becomes one row are adjacent, in row-major order, and so are the
    squares of an image: a row is a view of its patches, and only positions give the place of a
    patch. If `measured`, positions also give the size of the image.
    """
    side, s = images.patch, images.shuffle
    channels, (height, width) = array.shape[0], array.shape[-2:]
    rows, columns = height // (s * side), width // (s * side)
    # Pixels that do not fill a row are cut off, as by a convolution without padding.
    array = array[..., : rows * s * side, : columns * s * side]
    # torch does not take a read-only array.
    source = torch.from_numpy(array if array.flags.writeable else array.copy())
    squares = source.reshape(channels, images.frames, rows, s, side, columns, s, side)
    squares = squares.permute(2, 5, 3, 6, 0, 1, 4, 7)
    # One pass reorders, casts and, for a GPU, pins.
    pixels = torch.empty(squares.shape, dtype=dtype, pin_memory=pinned).copy_(squares)
    places = patch_places(rows, columns, s, pinned=pinned, measured=measured)
    return Patches(pixels.view(-1, images.values_of_patch), places)


def cut_tiles(array: np.ndarray, *, images: Images, dtype: torch.dtype, pinned: bool) -> Patches:
    """Cut tiles, `array` [tiles, channels, height, width], one after another; see `cut_image`."""
    cut = partial(cut_image, images=images, dtype=dtype, pinned=False, measured=True)
    tiles = [cut(each) for each in array]
    values = torch.cat([each.values for each in tiles])
    positions = torch.cat([each.positions for each in tiles])
    return Patches(*(x.pin_memory() if pinned else x for x in (values, positions)))


@lru_cache(maxsize=256)
def patch_places(
    rows: int, columns: int, s: int, *, pinned: bool, measured: bool = False
) -> Tensor:
    """Return the (y, x) of every patch of an image of `rows x columns` squares, in patch order.

    If `measured`, append the height and width of the image, [N, 4].
    """
    places = np.indices((rows * s, columns * s)).reshape(2, rows, s, columns, s)
    found = torch.from_numpy(places.transpose(1, 3, 2, 4, 0).reshape(-1, 2))
    if measured:
        size = torch.tensor([rows * s, columns * s])
        found = torch.cat([found, size.expand(len(found), 2)], dim=1)
    return found.pin_memory() if pinned else found


def own_share(given: Patches, context: ParallelContext) -> Patches:
    """Return the patches that this tp rank embeds: with sequence parallelism, only its own tokens.

    Attention and MLP regions gather them later.
    """
    return Patches(own_tokens(given.values, context), own_tokens(given.positions, context))


def own_tokens(x_N: Tokens, context: ParallelContext) -> Tokens:
    """Return this tp rank's part of a cp rank's tokens, or of their numbers."""
    if not context.sequence_parallel:
        return x_N
    share = len(x_N) // context.tp.size
    return x_N[context.tp.index * share : (context.tp.index + 1) * share]


def cut_clip(array: np.ndarray, *, clips: Clips, dtype: torch.dtype, pinned: bool) -> Patches:
    """Cut a log-mel clip, `array` [mels, frames], into tokens of `dtype` on the host.

    Values are [tokens, mels * frames seen], with a band's frames adjacent. Positions [tokens, 2]
    are the place in the clip, or in its chunk, and how many frames are missing before the
    next token, at the end of a chunk.
    """
    source = torch.from_numpy(array if array.flags.writeable else array.copy())
    seen, step = clips.frames_seen, clips.frames_per_token
    chunks = torch.split(source, clips.chunk_frames or max(1, array.shape[1]), dim=1)
    numbers = [clips.tokens_of(each.shape[1]) for each in chunks]
    windows = []
    for chunk, number in zip(chunks, numbers, strict=True):
        width = (number - 1) * step + seen
        padded = F.pad(chunk, (seen // 2, width - seen // 2 - chunk.shape[1]))
        windows.append(padded.unfold(1, seen, step).transpose(0, 1))
    shape = sum(numbers), array.shape[0], seen
    values = torch.empty(shape, dtype=dtype, pin_memory=pinned).copy_(torch.cat(windows))
    lengths = tuple(each.shape[1] for each in chunks)
    return Patches(values.flatten(1), _places(tuple(numbers), lengths, step, pinned))


@lru_cache(maxsize=256)
def _places(numbers: tuple[int, ...], lengths: tuple[int, ...], step: int, pinned: bool) -> Tensor:
    """Return the place of every token in its chunk, and the frames missing after it."""
    found = [
        (place, max(0, (place + 1) * step - length))
        for number, length in zip(numbers, lengths, strict=True)
        for place in range(number)
    ]
    positions = torch.tensor(found, dtype=torch.int64).view(-1, 2)
    return positions.pin_memory() if pinned else positions


class PatchCutter(Protocol):
    """Cuts one array into patches of `dtype`, in pinned memory if a GPU will copy them."""

    def __call__(self, array: np.ndarray, *, dtype: torch.dtype, pinned: bool) -> Patches:
        """Return the patches on the host, with the patches of a row adjacent."""
        ...


def cut_codes(array: np.ndarray, *, codes: Codes, dtype: torch.dtype, pinned: bool) -> Patches:
    """Cut codes, `array` [codebooks, frames], into rows [frames + 1, 2 * codebooks] on the host.

    Values are the codes that a row reads, from the frame before, and the codes that it must
    predict. They stay integers, whatever `dtype` is.
    """
    start, end = (np.full((codes.codebooks, 1), c) for c in (codes.start_code, codes.end_code))
    seen, said = np.concatenate([start, array], 1), np.concatenate([array, end], 1)
    values = torch.from_numpy(np.concatenate([seen, said]).T.astype(np.int64))
    positions = torch.ones((len(values), 1), dtype=torch.int64)
    return Patches(*(x.pin_memory() if pinned else x for x in (values, positions)))


@dataclass(frozen=True, slots=True)
class Reader:
    """The input of one encoder: `width` values and `axes` coordinates for each patch.

    `source` describes the arrays and the number of their rows. Values have `dtype`, or the compute
    dtype.
    """

    source: Images | Clips | Codes
    width: int
    axes: int
    cut: PatchCutter
    dtype: torch.dtype | None = None

    @property
    def row_width(self) -> int:
        """Number of values in the patches that become one row."""
        return self.width * self.source.patches_per_row


def reader(model: Model) -> Reader:
    """Return the reader of an encoder. Raises: TypeError for a model that reads no arrays."""
    kind = kind_of(model)
    if (images := kind.images) is not None:
        # A grid of learned positions also needs the height and width of the image.
        measured = kind.tokens.table is not None
        if kind.tokens.tiles is not None:
            return Reader(images, images.values_of_patch, 4, partial(cut_tiles, images=images))
        cut = partial(cut_image, images=images, measured=measured)
        return Reader(images, images.values_of_patch, 4 if measured else 2, cut)
    if (clips := kind.clips) is not None:
        return Reader(clips, clips.frames_seen * clips.mels, 2, partial(cut_clip, clips=clips))
    if (codes := kind.codes) is not None:
        # Padding has coordinate 0.
        cut = partial(cut_codes, codes=codes)
        return Reader(codes, 2 * codes.codebooks, 1, cut, torch.int64)
    raise TypeError(f"a model of kind {model.kind} reads no arrays")


def without_loose(
    arrays: Sequence[Image],
    numbers: Sequence[int],
    how: Reader,
    context: ParallelContext,
) -> tuple[list[Image], list[Image]]:
    """Return the patches of each array's rows, and its `numbers` of loose patches, separately."""
    dtype = how.dtype or context.compute_dtype
    cut = [x if isinstance(x, Patches) else how.cut(x, dtype=dtype, pinned=False) for x in arrays]
    ends = [len(each.values) - number for each, number in zip(cut, numbers, strict=True)]
    pairs = list(zip(cut, ends, strict=True))
    return (
        [Patches(each.values[:end], each.positions[:end]) for each, end in pairs],
        [Patches(each.values[end:], each.positions[end:]) for each, end in pairs],
    )


def pack(arrays: Sequence[Image], how: Reader, context: ParallelContext, held: range) -> Patches:
    """Copy the patches of arrays, concatenated, to the device, in the dtype of the reader.

    An array that is not cut yet is cut here. The list is padded with zeros at the end; this rank
    keeps the part `held` of it.
    """
    device, dtype = context.device, how.dtype or context.compute_dtype
    values = torch.zeros((len(held), how.width), dtype=dtype, device=device)
    positions = torch.zeros((len(held), how.axes), dtype=torch.int64, device=device)
    cut = [x if isinstance(x, Patches) else how.cut(x, dtype=dtype, pinned=False) for x in arrays]
    for number, here, part in parts_held((len(each.values) for each in cut), held):
        values[here].copy_(cut[number].values[part], non_blocking=True)
        positions[here].copy_(cut[number].positions[part], non_blocking=True)
    return Patches(values, positions)


def parts_held(lengths: Iterable[int], held: range) -> Iterator[tuple[int, slice, slice]]:
    """Yield the items that have a part among the places `held` of a list of them.

    Items of these lengths follow each other. For each: its number, the places of its part among
    those held, and the part of the item.
    """
    first = 0
    for number, length in enumerate(lengths):
        start, stop = max(first, held.start), min(first + length, held.stop)
        if start < stop:
            here = slice(start - held.start, stop - held.start)
            yield number, here, slice(start - first, stop - first)
        first += length


def image_places(view: EncoderView, held: range, *, measured: bool = False) -> np.ndarray:
    """Return the place (y, x) of each patch `held` in its image, int64 [N, 2]; 0 for padding.

    If `measured`, append the height and width of the image, [N, 4].
    """
    side = math.isqrt(view.module.patches_per_row)
    places = np.zeros((len(held), 4 if measured else 2), dtype=np.int64)
    for number, here, part in parts_held(view.lengths, held):
        found = patch_places(*view.sizes[number], side, pinned=False, measured=measured)
        places[here] = found.numpy()[part]
    return places
