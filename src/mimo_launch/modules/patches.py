"""Images as patches: cut on the host, packed on the device.

Decides: the order of patches, and that they are cut and cast where samples are read, which may be
another thread, so that packing is nothing but copies.
Relies on: pinned memory on CUDA, from which copies are made while the host goes on.
Leaves: the embedding of patches to `vision`, which patches a rank holds to its callers.

Legend: P pixels of a patch, N patches, s side of the square of patches that becomes one row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from mimo_launch.parallel.context import ParallelContext
from mimo_launch.spec.model import VitModel


@dataclass(frozen=True, slots=True)
class Patches:
    """Pixels [N, P] and (y, x) in their image [N, 2].

    Patches that only pad the list to what cp and tp need give no rows.
    """

    pixels: Tensor
    positions: Tensor


def cut_image(image: np.ndarray, model: VitModel, dtype: torch.dtype, *, pinned: bool) -> Patches:
    """Cut an image [channels, height, width] into patches of `dtype` on the host.

    The patches of a square that becomes one row stand together, in row-major order, and so do the
    squares of an image: a row is a view of its patches, and positions alone say where a patch is.
    """
    side, s = model.patch, model.shuffle
    channels, height, width = image.shape
    rows, columns = height // (s * side), width // (s * side)
    # torch does not take an array that must not be written to.
    source = torch.from_numpy(image if image.flags.writeable else image.copy())
    squares = source.reshape(channels, rows, s, side, columns, s, side).permute(1, 4, 2, 5, 0, 3, 6)
    # One pass: put in order, cast and, for a GPU, pinned.
    pixels = torch.empty(squares.shape, dtype=dtype, pin_memory=pinned).copy_(squares)
    return Patches(pixels.view(-1, channels * side * side), _places(rows, columns, s, pinned))


@lru_cache(maxsize=256)
def _places(rows: int, columns: int, s: int, pinned: bool) -> Tensor:
    """Return the (y, x) of every patch of an image of `rows x columns` squares, in their order."""
    places = np.indices((rows * s, columns * s)).reshape(2, rows, s, columns, s)
    found = torch.from_numpy(places.transpose(1, 3, 2, 4, 0).reshape(-1, 2))
    return found.pin_memory() if pinned else found


def pack_images(
    images: Sequence[Patches | np.ndarray], model: VitModel, context: ParallelContext, held: range
) -> Patches:
    """Bring the patches of images, one after another, to the device, in the compute type.

    An image that is not cut yet is cut here. Of the list, padded at the end, this rank keeps
    `held`.
    """
    device, dtype = context.device, context.compute_dtype
    pixels = torch.zeros((len(held), model.channels * model.patch**2), dtype=dtype, device=device)
    positions = torch.zeros((len(held), 2), dtype=torch.int64, device=device)
    first = 0
    for image in images:
        cut = image if isinstance(image, Patches) else cut_image(image, model, dtype, pinned=False)
        last = first + len(cut.pixels)
        start, stop = max(first, held.start), min(last, held.stop)
        if start < stop:
            here = slice(start - held.start, stop - held.start)
            part = slice(start - first, stop - first)
            pixels[here].copy_(cut.pixels[part], non_blocking=True)
            positions[here].copy_(cut.positions[part], non_blocking=True)
        first = last
    return Patches(pixels, positions)
