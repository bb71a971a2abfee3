"""How each kind of encoder reads: what is cut of an array on the host, and packed on the device.

Decides: the seam between data and encoders. A data set gives arrays of the shape that the model's
`input_shape` names; a `Reader` cuts one into the patches that become tokens, in the order of rows.
Relies on: `image_patches` for images, `audio_frames` for clips.
Leaves: reading arrays to `train`, embedding patches to the encoders, which patches a rank holds to
its callers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from mimo_launch.layers.attention_contexts import ImageContext
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.models.audio_frames import VALUES_PER_BAND, cut_clip
from mimo_launch.models.image_patches import Patches, cut_image
from mimo_launch.spec.model import Clips, CustomModel, ImageInput, Model, VitModel


class Cut(Protocol):
    """Cuts one array into patches of `dtype`, in pinned memory where a GPU will copy them."""

    def __call__(self, array: np.ndarray, *, dtype: torch.dtype, pinned: bool) -> Patches:
        """Return the patches, those of a row together, on the host."""
        ...


@dataclass(frozen=True, slots=True)
class Reader:
    """How one encoder reads: `width` values and `axes` coordinates for each patch."""

    width: int
    axes: int
    cut: Cut


def _of_vit(model: VitModel) -> Reader:
    axes = 4 if model.positions == "learned" else 2
    return Reader(model.channels * model.patch**2, axes, partial(cut_image, model=model))


def _of_images(images: ImageInput) -> Reader:
    return Reader(images.patch_size, 2, partial(cut_image, model=images))


def _of_audio(model: Clips) -> Reader:
    return Reader(VALUES_PER_BAND * model.mels, 1, cut_clip)


READERS: dict[str, Callable[..., Reader]] = {"vit": _of_vit, "audio": _of_audio}


def reader(model: Model) -> Reader:
    """Return how an encoder reads. Raises: TypeError for a model that is no encoder."""
    if isinstance(model, CustomModel):
        read = model.input
        return _of_images(read) if isinstance(read, ImageInput) else _of_audio(read)
    if model.kind not in READERS:
        raise TypeError(f"a model of kind {model.kind} reads no arrays")
    return READERS[model.kind](model)


@dataclass(frozen=True, slots=True)
class EncoderInput:
    """The patches of one group that this rank holds: which attend to which, how many rows each tp
    rank owns in the end and, on the first stage, the patches themselves. `places` are (y, x) of
    each in its image, [N, 2], on every stage of a model that turns queries and keys by them. Behind
    its patches this rank, or tp rank under sequence parallelism, holds so many `class_tokens`.
    `images` are height and width, in rows, of each image of the group.
    """  # noqa: D205

    mask: ImageContext
    sizes: tuple[int, ...]
    patches: Patches | None
    places: Tensor | None = None
    class_tokens: int = 0
    images: tuple[tuple[int, int], ...] = ()


def pack(
    arrays: Sequence[Patches | np.ndarray], how: Reader, context: ParallelContext, held: range
) -> Patches:
    """Bring the patches of arrays, one after another, to the device, in the compute type.

    An array that is not cut yet is cut here. Of the list, padded at the end with zeros, this rank
    keeps `held`.
    """
    device, dtype = context.device, context.compute_dtype
    values = torch.zeros((len(held), how.width), dtype=dtype, device=device)
    positions = torch.zeros((len(held), how.axes), dtype=torch.int64, device=device)
    first = 0
    for array in arrays:
        cut = array if isinstance(array, Patches) else how.cut(array, dtype=dtype, pinned=False)
        last = first + len(cut.values)
        start, stop = max(first, held.start), min(last, held.stop)
        if start < stop:
            here = slice(start - held.start, stop - held.start)
            part = slice(start - first, stop - first)
            values[here].copy_(cut.values[part], non_blocking=True)
            positions[here].copy_(cut.positions[part], non_blocking=True)
        first = last
    return Patches(values, positions)
