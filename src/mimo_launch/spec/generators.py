"""The kinds of generator: models after language, each with its own loss.

Decides: keys, defaults and derived sizes; which codes of a codec are not sounds.
Relies on: `images` for images, `language_models` for blocks of decoders.
Leaves: what fits together to `checks`.
"""

from typing import Literal

from pydantic import Field

from mimo_launch.spec.base import Codebooks, CountFrom0, Strict, Tokens
from mimo_launch.spec.encoder_blocks import EncoderBlocks, EncoderModel
from mimo_launch.spec.images import Images
from mimo_launch.spec.language_models import DecoderBlocks


class FlowModel(Images, EncoderBlocks):
    """A generator of images: a transformer that learns the path from noise to patches, given rows.

    Rectified flow (arXiv:2209.03003).
    """

    kind: Literal["flow"]
    shuffle: Literal[1] = Field(1, description="Each patch is a row.")


class Codes(Strict):
    """How clips of codec tokens become rows: one for each frame, and one for the end.

    A frame has a code of each codebook. A row predicts the next frame from the one before it: the
    first row reads `start`, and the last row predicts `end`.
    """

    kind: str
    codebooks: Codebooks = Field(
        1, description="Codebooks of the codec; a frame has a code of each.", examples=[8]
    )
    vocab: Tokens = Field(
        description="Number of codes in each codebook, `start` and `end` included.",
        examples=[1026],
    )
    start: CountFrom0 | None = Field(
        None, description="The code in front of the first frame; default: the last but one."
    )
    end: CountFrom0 | None = Field(
        None, description="The code behind the last frame; default: the last one."
    )

    @property
    def start_code(self) -> int:
        """The code before the first frame, default applied."""
        return self.vocab - 2 if self.start is None else self.start

    @property
    def end_code(self) -> int:
        """The code after the last frame, default applied."""
        return self.vocab - 1 if self.end is None else self.end

    @property
    def patches_per_row(self) -> int:
        """A frame is a row."""
        return 1

    @property
    def row_of_patches(self) -> tuple[int, int]:
        """Height and width, in frames, of the part that becomes one row."""
        return 1, 1

    def input_shape(self, height: int, width: int) -> tuple[int, ...]:
        """Return (codebooks, frames) of a clip of `width` rows, one high."""
        return self.codebooks, height * width - 1

    def size_in_rows(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """Return height and width, in rows, of a clip (codebooks, frames)."""
        return 1, shape[1] + 1


class TalkerModel(Codes, DecoderBlocks, EncoderModel):
    """A generator of speech: a decoder that predicts codec tokens, frame by frame, given rows.

    The rows of language come before the frames, as in the talker of Qwen2.5-Omni
    (arXiv:2503.20215). All codes of a frame are predicted together, as in the parallel pattern of
    MusicGen (arXiv:2306.05284, section 2.2).
    """

    kind: Literal["talker"]
    reads_text: bool = Field(
        False,
        description="Add the embedding of its token to each row of language, as Qwen2.5-Omni does.",
    )


GeneratorKinds = FlowModel | TalkerModel
