"""The FastConformer encoder of Parakeet: convolutions over mel bands and time, and in each block.

Decides: its keys that differ from those of an `audio` encoder, and their defaults.
Relies on: `encoders` for all others.
Leaves: nothing.
"""

from typing import Literal

from pydantic import Field

from mimo_launch.spec.base import Count
from mimo_launch.spec.encoders import SubsampledAudio


class ConformerModel(SubsampledAudio):
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
    chunk: None = Field(None, description="Tokens attend to their whole clip.")

    @property
    def features(self) -> Literal["whisper", "nemo"]:
        """Whose log-mel frames it reads."""
        return "nemo"

    @property
    def chunk_frames(self) -> int:
        """A whole clip: its last token may see fewer frames."""
        return self.frames
