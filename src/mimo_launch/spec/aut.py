"""The audio encoder of Qwen3-Omni (AuT): convolutions over time and mel bands, wide windows.

Decides: its keys that differ from those of an `audio` encoder, and their defaults.
Relies on: `encoders` for all others.
Leaves: nothing.
"""

from typing import Literal

from pydantic import Field

from mimo_launch.spec.base import Count
from mimo_launch.spec.encoders import Projector, SubsampledAudio


class AutModel(SubsampledAudio):
    """The audio encoder of Qwen3-Omni (arXiv:2509.17765): a token for eight frames of 10 ms.

    Three convolutions over time and mel bands, each with stride 2, see one chunk of a clip, with
    zeros after the end of the clip; tokens attend within windows of several chunks.
    """

    # Every rule about an `audio` encoder holds for it.
    kind: Literal["aut"]  # type: ignore[assignment]
    mels: Count = Field(128, description="Mel bands of a frame.")
    channels: Count = Field(480, description="Channels of each convolution.", examples=[4])
    chunk: Count = Field(
        100,
        description="Frames of a chunk: convolutions and positions begin anew in each.",
        examples=[100],
    )
    window: Count = Field(8, description="Consecutive chunks that attend only to each other.")
    projector: Projector = Field(
        "merger",
        description="Last layer of the encoder, as in other encoders; by default two linear maps, "
        "as wide between them as the blocks.",
    )

    @property
    def window_rows(self) -> int:
        """Rows that attend only to each other."""
        return self.chunk_tokens * self.window
