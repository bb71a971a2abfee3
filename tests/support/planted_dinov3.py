"""A DINOv3, and known ways to get it wrong; `planted` lists them with the others."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from tests.support.planted_registers import SPLIT, registers_of_the_first_shard
from tests.support.planted_scales import scale_taken_for_complete
from tests.support.specs import box, spec

from mimo_launch.kinds.dinov3 import Dinov3Kind
from mimo_launch.kinds.vision import VisionKind
from mimo_launch.layers import pointwise
from mimo_launch.models import vision_encoder
from mimo_launch.models.vision_encoder import VisionStage
from mimo_launch.spec.spec import Spec

MODEL: dict[str, Any] = {
    "kind": "dinov3", "layers": 2, "registers": 3, "activation": "swiglu", "layer_scale": 0.5,
    "rope_theta": 50.0, "shuffle": 2,
}  # fmt: skip


def centred(
    vision: dict[str, Any], language: dict[str, Any] | None = None, /, **sections: Any
) -> Spec:
    """A DINOv3 in front of a decoder on the ranks behind it, or on others; images of any size."""
    ranks = 1
    for axis in ("tp", "cp", "pp", "dp"):
        ranks *= vision.get(axis, 1)
    modules = {
        "vision": box(0, **{"model": MODEL, **vision}),
        "language": box(**{"first": ranks, **(language or {})}),
    }
    usual = {"microbatches": 2, "mbs": 2, "max_images": 2, "max_patches": 24, "text_only": 0.2}
    return spec(modules, **{**usual, **sections})


def axes_swapped() -> None:
    """Patches are turned by their column where their row is meant, and the reverse."""
    correct = vision_encoder.image_places
    vision_encoder.image_places = lambda *args, **how: correct(*args, **how)[:, [1, 0, 3, 2]]


def corners_for_centres() -> None:
    """A patch turns by its first corner, not by its centre."""
    correct = vision_encoder.image_places
    vision_encoder.image_places = lambda *args, **how: correct(*args, **how) - [0.5, 0.5, 0, 0]


def sizes_by_the_other_axis() -> None:
    """Both axes of an image are as long as its height."""
    correct = vision_encoder.image_places
    vision_encoder.image_places = lambda *args, **how: correct(*args, **how)[:, [0, 1, 2, 2]]


def learned_tokens_turned() -> None:
    """Learned tokens turn as if they stood in the upper left corner."""
    correct = VisionStage._places_of_tokens

    def turned(self: Any, forward: Any) -> Any:
        found = correct(self, forward)
        return np.where((found == 0).all(axis=1, keepdims=True), -6.0, found)

    VisionStage._places_of_tokens = turned  # type: ignore[method-assign]


def gates_swapped() -> None:
    """SiLU acts on what the gate multiplies."""
    correct = pointwise.GATED["silu"]
    pointwise.GATED["silu"] = lambda x: correct(torch.cat(x.chunk(2, dim=-1)[::-1], dim=-1))


def usual_base() -> None:
    """Frequencies have the base of other towers."""
    correct = Dinov3Kind.turns
    Dinov3Kind.turns = property(  # type: ignore[assignment]
        lambda self: replace(correct.fget(self), theta=VisionKind.turns.fget(self).theta)
    )


DINOV3_BUGS = {
    "centred axes swapped": (axes_swapped, centred({})),
    "corners for centres": (corners_for_centres, centred({})),
    "sizes by the other axis": (sizes_by_the_other_axis, centred({"cp": 2})),
    "DINOv3 learned tokens turned": (learned_tokens_turned, centred(SPLIT)),
    "DINOv3 registers of the first shard": (registers_of_the_first_shard, centred(SPLIT)),
    "DINOv3 gates swapped": (gates_swapped, centred({"tp": 2})),
    "DINOv3 base of other towers": (usual_base, centred({})),
    "DINOv3 scale of own tokens": (
        scale_taken_for_complete,
        centred({"tp": 2, "sequence_parallel": True}),
    ),
}
