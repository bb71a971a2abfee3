"""Rows of images and clips: how many an encoder makes of each, and their places in a sample.

Decides: that every image goes to every image encoder, and every clip to every audio encoder; that
their rows replace the marker, encoder after encoder in written order.
Relies on: `hugging_face.image_processor` and `log_mel` for sizes.
Leaves: pixels and frames to `samples`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mimo_launch.data.dataset import BadSample
from mimo_launch.data.webdataset.decode_media import Medium
from mimo_launch.hugging_face.image_processor import ImageRecipe, ImageTooThin, recipe_of
from mimo_launch.layout.step_data import ImageSpan
from mimo_launch.spec.spec import EncoderModel, Spec, clip_input, image_input

# Height and width of an image in pixels, or length and rate of a clip in samples and Hz.
MediumSize = tuple[int, int]


@dataclass(frozen=True, slots=True)
class MediaInput:
    """The input of one encoder, and the number of rows that it makes."""

    encoder: str
    model: EncoderModel
    medium: Medium
    recipe: ImageRecipe | None

    @property
    def sizing(self) -> list[object]:
        """What the number of rows depends on: if it differs, an index is out of date."""
        if clips := clip_input(self.model):
            return [self.encoder, clips.frames, clips.fixed_length, clips.frames_per_row]
        images, recipe = image_input(self.model), self.recipe
        if images is None or recipe is None:
            raise TypeError(f"{self.encoder} takes no images")
        return [self.encoder, images.row_side, repr(recipe.resize), recipe.pad_square, recipe.crop]

    def rows(self, size: MediumSize) -> tuple[int, int]:
        """Return the height and width in rows of an image or a clip. Raises: BadSample."""
        if self.recipe is None:
            return 1, self._clip_rows(*size)
        images = image_input(self.model)
        if images is None:
            raise TypeError(f"{self.encoder} takes no images")
        try:
            height, width = self.recipe.size(*size)
        except ImageTooThin as error:
            raise BadSample(str(error)) from error
        side = images.row_side
        if min(height, width) < side:
            raise BadSample(f"an image of {size[1]} x {size[0]} pixels is too small for one row")
        return height // side, width // side

    def _clip_rows(self, samples: int, rate: int) -> int:
        # Only for sound: it imports torch, which an index of images does not need.
        from mimo_launch.data.log_mel import ClipTooLong, num_frames

        clips = clip_input(self.model)
        if clips is None:
            raise TypeError(f"{self.encoder} takes no clips")
        if min(samples, rate) < 1:
            raise BadSample("a clip of no samples")
        try:
            return num_frames(clips, samples, rate) // clips.frames_per_row
        except ClipTooLong as error:
            raise BadSample(f"for `{self.encoder}`, {error}") from error


def media_inputs_of(spec: Spec) -> tuple[MediaInput, ...]:
    """Return the inputs of the encoders of a spec, in written order. Raises: ProcessorError."""
    found: list[MediaInput] = []
    for name, module in spec.encoders.items():
        model = module.model
        if isinstance(model, EncoderModel) and clip_input(model):
            found.append(MediaInput(name, model, "audio", None))
        elif isinstance(model, EncoderModel):
            found.append(MediaInput(name, model, "image", recipe_of(spec, name)))
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
