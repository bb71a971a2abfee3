"""DINOv3 as a stage: a vision transformer that rotates by places in the image, not by patches.

Decides: the place of a patch: its centre, from -1 to 1 across the image, times 2 pi.
Relies on: `vision_encoder` for all else.
Leaves: nothing.
Source: arXiv:2508.10104, section 3.2, and `transformers` 5.23, models/dinov3_vit.
"""

import math

import numpy as np

from mimo_launch.models.patches import image_places
from mimo_launch.models.stage_interface import ListForward
from mimo_launch.models.vision_encoder import VisionStage
from mimo_launch.spec.dinov3 import Dinov3Model


class Dinov3Stage(VisionStage):
    """Consecutive layers of a DINOv3."""

    model: Dinov3Model

    @property
    def rope_theta(self) -> float:
        """The base of 2-D RoPE."""
        return self.model.rope_theta

    def places(self, forward: ListForward) -> np.ndarray:
        """Return the (y, x) by which each patch of this cp rank rotates, float64 [N, 2]."""
        measured = image_places(forward.view, forward.held, measured=True)
        # Padding has size 0.
        places, sizes = measured[:, :2], np.maximum(measured[:, 2:], 1)
        found: np.ndarray = 2 * math.pi * ((2 * places + 1) / sizes - 1)
        return found
