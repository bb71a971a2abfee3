"""DINOv3: what it does not share with other vision transformers.

Decides: that keys have no biases; the class that builds a stage.
Relies on: `vision` for the rest.
Leaves: angles to `models.dinov3`.
"""

from dataclasses import dataclass, replace

from mimo_launch.kinds.attention_shapes import AttentionShape
from mimo_launch.kinds.vision import VisionKind
from mimo_launch.spec.dinov3 import Dinov3Model


@dataclass(frozen=True, slots=True)
class Dinov3Kind(VisionKind):
    """A DINOv3 over images of any size."""

    model: Dinov3Model

    @property
    def stage(self) -> str:
        """The class that builds a stage."""
        return "mimo_launch.models.dinov3:Dinov3Stage"

    def attention(self) -> AttentionShape:
        """Return the attention of a block; keys have no bias."""
        return replace(VisionKind.attention(self), key_bias=False)
