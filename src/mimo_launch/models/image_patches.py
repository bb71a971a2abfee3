"""Images as patches, cut on the host.

Decides: the order of patches, and that they are cut and cast where samples are read, which may be
another thread, so that packing is nothing but copies.
Relies on: pinned memory on CUDA, from which copies are made while the host goes on.
Leaves: the embedding of patches to `vision_encoder`, packing to `encoder_inputs`.

Legend: P numbers of a patch, N patches, s side of the square of patches that becomes one row.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.spec.model import ImageInput, VitModel


@dataclass(frozen=True, slots=True)
class Patches:
    """What becomes the tokens of an encoder: values [N, P] and places [N, axes].

    Of an image: its pixels and (y, x), for learned positions also its height and width in patches.
    Patches that only pad the list to what cp and tp need give no rows.
    """

    values: Tensor
    positions: Tensor


def cut_image(
    array: np.ndarray, *, model: VitModel | ImageInput, dtype: torch.dtype, pinned: bool
) -> Patches:
    """Cut an image, `array` [channels, height, width], into patches of `dtype` on the host.

    The patches of a square that becomes one row stand together, in row-major order, and so do the
    squares of an image: a row is a view of its patches, and positions alone say where a patch is.
    """
    side, s = model.patch, model.shuffle
    channels, height, width = array.shape
    rows, columns = height // (s * side), width // (s * side)
    # What is left of a row of patches is cut off, as a convolution without padding does.
    array = array[:, : rows * s * side, : columns * s * side]
    # torch does not take an array that must not be written to.
    source = torch.from_numpy(array if array.flags.writeable else array.copy())
    squares = source.reshape(channels, rows, s, side, columns, s, side).permute(1, 4, 2, 5, 0, 3, 6)
    # One pass: put in order, cast and, for a GPU, pinned.
    pixels = torch.empty(squares.shape, dtype=dtype, pin_memory=pinned).copy_(squares)
    measured = isinstance(model, VitModel) and model.positions == "learned"
    places = patch_places(rows, columns, s, pinned=pinned, measured=measured)
    return Patches(pixels.view(-1, channels * side * side), places)


@lru_cache(maxsize=256)
def patch_places(
    rows: int, columns: int, s: int, *, pinned: bool, measured: bool = False
) -> Tensor:
    """Return the (y, x) of every patch of an image of `rows x columns` squares, in their order.

    `measured`: with the height and width of the image, [N, 4].
    """
    places = np.indices((rows * s, columns * s)).reshape(2, rows, s, columns, s)
    found = torch.from_numpy(places.transpose(1, 3, 2, 4, 0).reshape(-1, 2))
    if measured:
        size = torch.tensor([rows * s, columns * s])
        found = torch.cat([found, size.expand(len(found), 2)], dim=1)
    return found.pin_memory() if pinned else found


def own_share(given: Patches, context: ParallelContext) -> Patches:
    """Return the patches that this tp rank embeds: under sequence parallelism its own tokens only.

    Attention and MLP regions gather them.
    """
    if not context.sequence_parallel:
        return given
    share = given.values.shape[0] // context.tp.size
    mine = slice(context.tp.index * share, (context.tp.index + 1) * share)
    return Patches(given.values[mine], given.positions[mine])
