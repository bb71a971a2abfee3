"""Conformers, of Parakeet and of Phi-4: convolutions over mel bands and time, and in each block.

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
    that are stored with the weights and do not change. A Phi-4 multimodal has the same order of
    layers, with other keys.
    """

    # Every rule about an `audio` encoder holds for it.
    kind: Literal["conformer"]  # type: ignore[assignment]
    mels: Count = Field(80, description="Mel bands of a frame, a multiple of 8.")
    channels: Count = Field(
        256, description="Channels of the convolutions before the blocks.", examples=[4]
    )
    kernel: Count = Field(
        9,
        description="Tokens that the convolution of a block sees, an odd number unless `causal`.",
        examples=[9],
    )
    gated: bool = Field(
        False, description="MLPs have a gate, silu(gate) * up, as in Phi-4 multimodal."
    )
    causal: bool = Field(
        False,
        description="The convolution of a block sees its token and earlier ones, then come a map, "
        "SiLU and a second map; there is no norm between them. Its gate is silu(gate), and both "
        "inputs of the product have a second bias, as in Phi-4 multimodal.",
    )
    distance_bias: Count | None = Field(
        None,
        description="In place of the scores of distances, a learned number of each head is added "
        "to the score of two tokens, by their distance, up to this many tokens to each side. All "
        "layers share the numbers, so all are on one stage, as in Phi-4 multimodal.",
        examples=[1000],
    )
    sound: Literal["parakeet", "phi4"] = Field(
        "parakeet",
        description="The frames: `parakeet` scales each band over its clip; `phi4` is as in Phi-4 "
        "multimodal, where a mean of each band, and one over its deviation, are stored with the "
        "weights.",
    )
    bias: bool = Field(True, description="Biases in attention and MLPs.")
    conv_bias: bool = Field(True, description="Biases in the convolutions of blocks.")
    scale_input: bool = Field(
        True, description="Multiply tokens by the root of `hidden` before the first block."
    )
    chunk: None = Field(None, description="Tokens attend to their whole clip.")

    @property
    def features(self) -> Literal["nemo", "phi4"]:
        """Whose log-mel frames it reads."""
        return "nemo" if self.sound == "parakeet" else "phi4"

    @property
    def chunk_frames(self) -> int:
        """A whole clip: its last token may see fewer frames."""
        return self.frames
