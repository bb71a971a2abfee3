"""The `data` section of the spec: what to train on.

Decides: keys, defaults and limits of each kind of generated data.
Relies on: `base`; `user_data` and `files_data` for users' own files.
Leaves: what fits together to `checks`, samples to `data`.
"""

from typing import Annotated, Literal

from pydantic import Field

from mimo_launch.spec.base import MAX_COUNT, Count
from mimo_launch.spec.files_data import CustomData, FilesData
from mimo_launch.spec.of_kind import OfKind
from mimo_launch.spec.user_data import Samples, WebdatasetData


class DigitsData(Samples):
    """Strips of real handwritten digits to read out or to draw; they ship with the package."""

    kind: Literal["digits"]
    tasks: tuple[Literal["read", "draw"], ...] = Field(
        ("read",),
        strict=False,
        min_length=1,
        description="What samples ask for, each one of these with equal probability. `read`: the "
        "digits of a strip, from its image or from words. `draw`: an image of each digit, from "
        "words; needs a generator.",
        examples=[["read", "draw"]],
    )
    min_digits: Annotated[int, Field(ge=1, le=16)] = Field(1, description="Shortest strip.")
    max_digits: Annotated[int, Field(ge=1, le=16)] = Field(6, description="Longest strip.")
    text_only: Annotated[float, Field(ge=0, le=1)] = Field(
        0.1, description="Share of samples that spell their digits in words, without an image."
    )
    samples: Count = Field(20000, description="Training strips in one epoch.")


class SyntheticData(Samples):
    """Random tokens, images and clips of random or given sizes, made from (seed, sample) alone."""

    kind: Literal["synthetic"]
    text_only: Annotated[float, Field(ge=0, le=1)] = Field(
        0.1, description="Probability that a sample has no image or clip for a given encoder."
    )
    min_patches: Count = Field(1, description="Smallest image, in patches.")
    max_patches: Count = Field(12, description="Largest image, in patches.")
    image: tuple[Count, Count] | None = Field(
        None,
        description="Height and width of every image, in patches, instead of random sizes.",
        strict=False,
    )
    min_frames: Count = Field(2, description="Shortest clip of an audio encoder, in frames.")
    max_frames: Count = Field(
        48, description="Longest clip, in frames; the encoder's own limit holds, too."
    )
    min_images: Count = Field(
        1, description="Fewest images or clips of a sample for one encoder, if it has one at all."
    )
    max_images: Count = Field(
        1,
        description="Most images or clips of a sample for one encoder; each further one by a coin "
        "toss.",
    )
    max_temporal_patches: Annotated[int, Field(ge=1, le=2**16)] = Field(
        1,
        description="Most temporal patches of an image of an encoder that reads `video`: one of "
        "several is a video, each number is as likely.",
    )
    max_documents: Count = Field(
        1, description="Most documents packed into a sample; they do not attend to each other."
    )
    min_text: Annotated[int, Field(ge=2, le=MAX_COUNT)] = Field(
        2, description="Fewest text tokens of a sample."
    )
    max_text: Annotated[int, Field(ge=2, le=MAX_COUNT)] | None = Field(
        None,
        description="Most text tokens of a sample, within what `batch.seq` leaves, the default.",
    )
    samples: Count = Field(4096, description="Training samples in one epoch.")

    def most_text(self, room: int) -> int:
        """Return the most text tokens of a sample with room for this many."""
        return min(room, self.max_text or room)


_Kinds = DigitsData | SyntheticData | WebdatasetData | FilesData
_AnyData = Annotated[_Kinds, Field(discriminator="kind")] | CustomData
Data = Annotated[_AnyData, OfKind(_AnyData)]
