"""DINOv3: what it does not share with other vision transformers.

Decides: that keys have no biases, and patches rotate by their centres.
Relies on: `vision` for the rest.
Leaves: nothing.
Source: arXiv:2508.10104, section 3.2, and `transformers` 5.23, models/dinov3_vit.
"""

from dataclasses import replace

from mimo_launch.diag.frozen import frozen
from mimo_launch.kinds.attention_shapes import AttentionShape
from mimo_launch.kinds.vision import PatchTurns, VisionKind
from mimo_launch.spec.dinov3 import Dinov3Model


@frozen
class Dinov3Kind(VisionKind):
    """A DINOv3 over images of any size."""

    model: Dinov3Model

    @property
    def turns(self) -> PatchTurns:
        """How queries and keys rotate by the place of a patch."""
        return PatchTurns(theta=self.model.rope_theta, by_centre=True)

    def attention(self) -> AttentionShape:
        """Return the attention of a block; keys have no bias."""
        return replace(VisionKind.attention(self), key_bias=False)
