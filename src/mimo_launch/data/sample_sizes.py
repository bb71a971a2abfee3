"""The largest image and the longest sample that a data set can hold.

Decides: both, from the spec and the image processors that it names.
Relies on: `hugging_face.image_processor` for the sizes that images get.
Leaves: making samples to `data`.
"""

from dataclasses import dataclass
from math import isqrt

from mimo_launch.hugging_face.image_processor import recipe_of
from mimo_launch.hugging_face.image_recipe import Smart
from mimo_launch.kinds.vocabulary import DIGIT_SIDE
from mimo_launch.spec.model import DigitsData, Spec, WebdatasetData, clip_input, image_input


@dataclass(frozen=True, slots=True)
class ImageSize:
    """An image in rows: patches or, with pixel shuffle, squares of patches. A clip is 1 high."""

    height: int
    width: int

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.height * self.width


def largest_image(spec: Spec, encoder: str) -> ImageSize:
    """Largest image, or longest clip, that `encoder` can meet in a sample, in rows."""
    model, data = spec.encoders[encoder].model, spec.data
    if isinstance(data, DigitsData):
        row_side = images.row_side if (images := image_input(model)) else DIGIT_SIDE
        side = max(1, DIGIT_SIDE // row_side)
        return ImageSize(side, side * data.max_digits)
    if isinstance(data, WebdatasetData):
        return _largest_of_shards(spec, encoder)
    if clips := clip_input(model):
        longest = clips.frames if clips.fixed_length else min(clips.frames, data.max_frames)
        return ImageSize(1, longest // clips.frames_per_row)
    shuffle = images.shuffle if (images := image_input(model)) else 1
    if data.image is not None:
        height, width = data.image
        return ImageSize(height // shuffle, width // shuffle)
    return ImageSize(1, data.max_patches // shuffle**2)


def longest_sample(spec: Spec) -> int:
    """Tokens of the longest sample the data set can hold, end token included."""
    rows = sum(largest_image(spec, encoder).rows for encoder in spec.encoders)
    if isinstance(spec.data, DigitsData):
        words = spec.data.max_digits
        # BOS, image rows or number words, ASK, one digit each, EOS.
        return 1 + max(rows, words) + 1 + words + 1
    if isinstance(spec.data, WebdatasetData):
        # What is longer than a sequence is left out; one image and two tokens of text must fit.
        return 2 + max((rows_of_all(spec, encoder) or 0 for encoder in spec.encoders), default=0)
    return rows * spec.data.max_images + spec.data.min_text


def rows_of_all(spec: Spec, encoder: str) -> int | None:
    """Return the rows of every image or clip of shards, None if they differ."""
    model = spec.encoders[encoder].model
    if clips := clip_input(model):
        return clips.max_rows if clips.fixed_length else None
    images = image_input(model)
    if images is None or (size := recipe_of(spec, encoder).only_size) is None:
        return None
    return size[0] // images.row_side * (size[1] // images.row_side)


def _largest_of_shards(spec: Spec, encoder: str) -> ImageSize:
    """Return the largest image of shards, which nobody has looked at: what limits it is the spec.

    A sample with more rows than `batch.seq` is left out.
    """
    model = spec.encoders[encoder].model
    if clips := clip_input(model):
        return ImageSize(1, min(clips.max_rows, spec.batch.seq))
    if (images := image_input(model)) is None:
        return ImageSize(1, 1)
    recipe, side = recipe_of(spec, encoder), images.row_side
    if recipe.only_size is not None:
        height, width = recipe.only_size
        return ImageSize(height // side, width // side)
    rows = spec.batch.seq
    if isinstance(recipe.resize, Smart):
        rows = max(1, min(rows, recipe.resize.max_pixels // side**2))
    height = isqrt(rows)
    return ImageSize(height, rows // height)
