"""The FastConformer encoder of Parakeet: convolutions over mel bands and time, and in each block.

Decides: its keys that differ from those of an `audio` encoder, and their defaults.
Relies on: `encoders` for all others.
Leaves: nothing.
"""

from typing import Literal

from pydantic import Field

from mimo_launch.spec.base import Count
from mimo_launch.spec.encoders import AudioModel


class ConformerModel(AudioModel):
    """A FastConformer (arXiv:2305.05084): a token for eight frames of 10 ms.

    Each block has a half of an MLP, attention with relative positions (arXiv:1901.02860), a
    convolution over tokens and another half of an MLP. The norms of its convolutions use statistics
    that are stored with the weights and do not change.
    """

    # Every rule about an `audio` encoder holds for it.
    kind: Literal["conformer"]  # type: ignore[assignment]
    mels: Count = Field(80, description="Mel bands of a frame, a multiple of 8.")
    channels: Count = Field(
        256, description="Channels of the convolutions before the blocks.", examples=[4]
    )
    kernel: Count = Field(
        9, description="Tokens that the convolution of a block sees, an odd number.", examples=[9]
    )
    bias: bool = Field(True, description="Biases in attention and MLPs.")
    conv_bias: bool = Field(True, description="Biases in the convolutions of blocks.")
    scale_input: bool = Field(
        True, description="Multiply tokens by the root of `hidden` before the first block."
    )
    stack: Literal[1] = Field(1, description="Each token is a row.")
    pooling: None = Field(None, description="Each token is a row.")
    chunk: None = Field(None, description="Tokens attend to their whole clip.")
    unpadded: Literal[True] = Field(True, description="Silence after a clip is left out.")
    fixed_length: Literal[False] = Field(False, description="Silence after a clip is left out.")

    @property
    def frames_per_token(self) -> int:
        """Frames from the middle of one token to that of the next."""
        return 8

    @property
    def frames_seen(self) -> int:
        """Frames that the convolutions of a token see."""
        return 15

    @property
    def chunk_frames(self) -> int:
        """A whole clip: its last token may see fewer frames."""
        return self.frames
