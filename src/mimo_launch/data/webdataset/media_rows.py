"""Rows of images and clips: how many an encoder makes of each, and their places in a sample.

Decides: that every image goes to every image encoder, and every clip to every audio encoder; that
their rows replace the marker, encoder after encoder in written order.
Relies on: `hugging_face.image_processor` and `log_mel` for sizes; `decode_media` for contents.
Leaves: which members of which files are read to `samples`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from mimo_launch.data.dataset import BadSample
from mimo_launch.data.webdataset.decode_media import Medium, decode_clip, decode_image, process
from mimo_launch.hugging_face.image_processor import ImageRecipe, ImageTooThin, recipe_of
from mimo_launch.kinds.registry import kind_of
from mimo_launch.layout.step_data import ImageSpan
from mimo_launch.spec.spec import Clips, Images, Spec

# Height and width of an image in pixels, or length and rate of a clip in samples and Hz.
MediumSize = tuple[int, int]
Array = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class ImageReader:
    """The images of one encoder: the rows that it makes of each, and their pixels."""

    medium: ClassVar[Medium] = "image"
    encoder: str
    images: Images
    recipe: ImageRecipe

    @property
    def sizing(self) -> list[object]:
        """What the number of rows depends on: if it differs, an index is out of date."""
        side, recipe = self.images.row_side, self.recipe
        return [self.encoder, side, repr(recipe.resize), recipe.pad_square, recipe.crop]

    def rows(self, size: MediumSize) -> tuple[int, int]:
        """Return the height and width in rows of an image. Raises: BadSample."""
        try:
            height, width = self.recipe.size(*size)
        except ImageTooThin as error:
            raise BadSample(str(error)) from error
        side = self.images.row_side
        if min(height, width) < side:
            raise BadSample(f"an image of {size[1]} x {size[0]} pixels is too small for one row")
        return height // side, width // side

    def array(self, suffix: str, data: bytes, span: ImageSpan) -> Array:
        """Return the pixels of an image that becomes `span`, [channels, height, width]."""
        image = decode_image(suffix, data, channels=self.images.channels)
        _, height, width = self.images.input_shape(span.height, span.width)
        # Pixels at the right and below that make no whole row go; convolutions drop them, too.
        return process(image, self.recipe)[:, :height, :width]


@dataclass(frozen=True, slots=True)
class ClipReader:
    """The clips of one encoder: the rows that it makes of each, and their spectrograms."""

    medium: ClassVar[Medium] = "audio"
    encoder: str
    clips: Clips

    @property
    def sizing(self) -> list[object]:
        """What the number of rows depends on: if it differs, an index is out of date."""
        clips = self.clips
        return [self.encoder, clips.frames, clips.fixed_length, clips.frames_per_row]

    def rows(self, size: MediumSize) -> tuple[int, int]:
        """Return 1 and the number of rows of a clip. Raises: BadSample."""
        # Only for sound: it imports torch, which an index of images does not need.
        from mimo_launch.data.log_mel import ClipTooLong, num_frames

        if min(size) < 1:
            raise BadSample("a clip without samples")
        try:
            return 1, num_frames(self.clips, *size) // self.clips.frames_per_row
        except ClipTooLong as error:
            raise BadSample(f"for `{self.encoder}`, {error}") from error

    def array(self, suffix: str, data: bytes, span: ImageSpan) -> Array:
        """Return the log-mel spectrogram of a clip that becomes `span`, [mels, frames]."""
        from mimo_launch.data.log_mel import HOP, RATE, log_mel

        mels, frames = self.clips.input_shape(span.height, span.width)
        # One second more than needed: resampling looks a little ahead.
        clip = decode_clip(suffix, data, seconds=1 + frames * HOP / RATE)
        return log_mel(*clip, mels, frames=frames)


MediaInput = ImageReader | ClipReader


def media_inputs_of(spec: Spec) -> tuple[MediaInput, ...]:
    """Return the inputs of the encoders of a spec, in written order. Raises: ProcessorError."""
    found: list[MediaInput] = []
    for name, module in spec.encoders.items():
        kind = kind_of(module.model)
        if (clips := kind.clips) is not None:
            found.append(ClipReader(name, clips))
        elif (images := kind.images) is not None:
            found.append(ImageReader(name, images, recipe_of(spec, name)))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class PlacedMedium:
    """Rows of one encoder in a sample; `member` is the index of their image or clip."""

    encoder: int
    member: int
    span: ImageSpan


def place_rows(
    media_inputs: Sequence[MediaInput],
    media: Sequence[tuple[int, Medium]],
    sizes: dict[Medium, list[MediumSize]],
) -> list[PlacedMedium]:
    """Return the places of rows in a sample, in order.

    Args:
        media_inputs: Those of the encoders, in written order.
        media: The images and clips in order, each with the text token that it precedes.
        sizes: Sizes of the images and of the clips, in order.

    Raises:
        BadSample: No row can be made of an image or a clip.
    """
    placed: list[PlacedMedium] = []
    taken: dict[Medium, int] = {"image": 0, "audio": 0}
    rows_so_far = 0
    for before, medium in media:
        member = taken[medium]
        taken[medium] += 1
        for number, media_input in enumerate(media_inputs):
            if media_input.medium == medium:
                span = ImageSpan(before + rows_so_far, *media_input.rows(sizes[medium][member]))
                placed.append(PlacedMedium(number, member, span))
                rows_so_far += span.rows
    return placed


def rows_among(num_text: int, spans: Sequence[ImageSpan]) -> npt.NDArray[np.bool_]:
    """Return which tokens of a sample with `num_text` text tokens are rows, bool [tokens]."""
    found = np.zeros(num_text + sum(span.rows for span in spans), dtype=np.bool_)
    for span in spans:
        found[span.position : span.position + span.rows] = True
    return found
