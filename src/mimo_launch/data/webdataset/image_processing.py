"""Carries out a recipe on a decoded image, number for number as transformers' Pillow processors.

Decides: that resizing happens on 8-bit pixels, and arithmetic in float32 behind it.
Relies on: Pillow's filters; `hugging_face.image_processor` for sizes.
Leaves: opening files to `decode`.
"""

import math

import numpy as np
import numpy.typing as npt
from PIL import Image

from mimo_launch.hugging_face.image_recipe import ImageRecipe

Pixels = npt.NDArray[np.float32]


def process(image: Image.Image, recipe: ImageRecipe) -> Pixels:
    """Return an image as an encoder takes it, [channels, height, width].

    Args:
        image: Of mode "RGB", or "L" for one channel.
        recipe: What is done to it.

    Raises:
        ImageTooThin: No size can be made of it.
    """
    if recipe.pad_square:
        image = _pad_square(image, recipe.mean)
    height, width = recipe.resized(image.height, image.width)
    if recipe.resize is not None:
        image = image.resize((width, height), resample=Image.Resampling(recipe.resample))
    pixels = np.asarray(image)
    pixels = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    if recipe.crop is not None:
        pixels = _center_crop(pixels, *recipe.crop)
    mean, std = (
        np.asarray(each, dtype=np.float32)[:, None, None] for each in (recipe.mean, recipe.std)
    )
    # Scaled in double precision and rounded once, as the reference does.
    scaled = (pixels * np.float64(recipe.scale)).astype(np.float32)
    return np.ascontiguousarray((scaled - mean) / std)


def _pad_square(image: Image.Image, mean: tuple[float, ...]) -> Image.Image:
    """Return the image in the middle of a square of the mean colour."""
    side = max(image.size)
    color = tuple(int(each * 255) for each in mean)
    square = Image.new(image.mode, (side, side), color)
    square.paste(image, ((side - image.width) // 2, (side - image.height) // 2))
    return square


def _center_crop(pixels: npt.NDArray[np.uint8], height: int, width: int) -> npt.NDArray[np.uint8]:
    """Return the middle of an image [channels, y, x]; black where it has no pixels."""
    found = np.zeros((len(pixels), height, width), dtype=pixels.dtype)
    from_y, to_y = _overlap(pixels.shape[1], height)
    from_x, to_x = _overlap(pixels.shape[2], width)
    found[:, to_y, to_x] = pixels[:, from_y, from_x]
    return found


def _overlap(have: int, want: int) -> tuple[slice, slice]:
    """Return which part of `have` pixels stands where among `want`."""
    if have >= want:
        first = (have - want) // 2
        return slice(first, first + want), slice(0, want)
    # The odd pixel of the border stands before the image, as in the reference.
    first = math.ceil((want - have) / 2)
    return slice(0, have), slice(first, first + have)
