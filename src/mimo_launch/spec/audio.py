"""The encoder of audio, and how clips become rows.

Decides: keys, defaults and derived sizes of what is read from clips, and of Whisper's encoder.
Relies on: `encoder_blocks` for blocks and projector.
Leaves: frames of videos to `images`.
"""

from typing import Literal

from pydantic import Field

from mimo_launch.spec.base import Count, Strict
from mimo_launch.spec.encoder_blocks import TransformerEncoder

# The second convolution of Whisper has stride 2.
FRAMES_PER_TOKEN = 2


class Clips(Strict):
    """How log-mel clips of any length, up to a limit, become rows.

    As in encoders of images, a patch is the input of one token: two frames of a clip.
    """

    mels: Count = Field(80, description="Mel bands of a frame: 80, or 128 in large-v3.")
    frames: Count = Field(
        3000,
        description="Longest clip, in frames of 10 ms; half as many positions are stored.",
    )
    fixed_length: bool = Field(
        False,
        description="Pad every clip with silence to `frames`, as Whisper does; otherwise only to "
        "whole rows.",
    )
    stack: Count = Field(
        1,
        description="Frame stacking: this many neighbouring tokens become one row, as wide as all "
        "of them, before the projector.",
    )

    @property
    def patches_per_row(self) -> int:
        """Number of tokens that become one row."""
        return self.stack

    @property
    def frames_per_row(self) -> int:
        """Number of frames that become one row."""
        return FRAMES_PER_TOKEN * self.stack

    @property
    def max_rows(self) -> int:
        """Number of rows of the longest clip."""
        return self.frames // self.frames_per_row

    @property
    def row_of_patches(self) -> tuple[int, int]:
        """Height and width, in patches, of the part that becomes one row."""
        return 1, self.stack

    @property
    def drops_silence(self) -> bool:
        """Whether tokens of the silence after a clip are left out."""
        return False

    @property
    def has_one_length(self) -> bool:
        """Whether all clips have the same number of tokens."""
        return self.fixed_length and not self.drops_silence

    def input_shape(self, height: int, width: int, loose: int = 0) -> tuple[int, ...]:
        """Return (mels, frames) of a clip that is `width` rows long and one row high.

        `loose` tokens follow its rows, and then the frame of silence that the last token sees.
        """
        frames = height * width * self.frames_per_row + loose * FRAMES_PER_TOKEN
        return self.mels, frames + (self.drops_silence and frames < self.frames)

    def size_in_rows(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """Return height and width, in rows, of a clip (mels, frames)."""
        return 1, shape[1] // self.frames_per_row


class AudioModel(Clips, TransformerEncoder):
    """The encoder of Whisper (arXiv:2212.04356); its second convolution joins two frames."""

    kind: Literal["audio"]
    unpadded: bool = Field(
        False,
        description="Leave out the tokens of the silence behind a clip, as Qwen2-Audio does: the "
        "convolutions see that silence, attention does not. Tokens at the end that do not fill a "
        "row are attended to.",
    )
    pooling: Literal["mean"] | None = Field(
        None,
        description="What makes one row, as wide as one token, of `stack` tokens, which otherwise "
        "stand side by side. `mean`: their mean, in front of the last norm (Qwen2-Audio).",
    )

    @property
    def drops_silence(self) -> bool:
        """Whether tokens of the silence after a clip are left out."""
        return self.unpadded

    @property
    def row_width(self) -> int:
        """Width of the tokens of a row, the input of the projector."""
        return self.hidden * (1 if self.pooling else self.patches_per_row)
