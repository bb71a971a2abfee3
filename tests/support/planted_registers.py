"""Known ways to get registers and a cropped table wrong; `planted` lists them with the others."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from tests.support.specs import box, spec

from mimo_launch.layers import pointwise
from mimo_launch.models import positions
from mimo_launch.models.positions import LearnedPositions
from mimo_launch.models.vision_encoder import Registers, VisionStage
from mimo_launch.spec.spec import Spec

# As a RADIO, with a class token besides.
MODEL: dict[str, Any] = {
    "layers": 2, "positions": "learned", "image": [3, 3], "interpolation": "cropped",
    "registers": 3, "class_token": True, "patch_bias": False, "final_norm": False,
    "layer_scale": 1.0, "shuffle": 2,
}  # fmt: skip

# The projector of a Nemotron-H Omni.
SQUARED: dict[str, Any] = MODEL | {
    "class_token": False, "projector_mlp": 12, "projector_activation": "squared_relu",
    "projector_bias": False, "projector_norm_eps": 1e-5, "projector_norm": "rms",
}  # fmt: skip


def registered(vision: dict[str, Any], **model: Any) -> Spec:
    """A tower with registers in front of a decoder on the ranks behind it; images of any size."""
    ranks = 1
    for axis in ("tp", "cp", "pp", "dp"):
        ranks *= vision.get(axis, 1)
    modules = {"vision": box(0, model=MODEL | model, **vision), "language": box(ranks)}
    return spec(modules, microbatches=2, mbs=2, max_images=2, max_patches=24, text_only=0.2)


SPLIT = {"tp": 2, "cp": 2, "sequence_parallel": True}


def registers_of_the_first_shard() -> None:
    """Every shard begins with the first token of an image, wherever its part of the list begins."""
    correct = Registers.forward

    def from_first(self: Any, numbers_n: Any, token_1D: Any) -> Any:
        every = len(token_1D) + len(self.weight)
        return correct(self, (numbers_n - numbers_n[:1]) % every, token_1D)

    Registers.forward = from_first  # type: ignore[method-assign]


def registers_of_the_list() -> None:
    """Tokens are numbered by kind, all first ones, then all second ones."""
    correct = VisionStage._learned_tokens

    def by_kind(self: Any, number: int, x_nD: Any) -> Any:
        found = correct(self, number, x_nD)
        every = self.model.learned_tokens
        return found.view(-1, every, found.shape[1]).transpose(0, 1).reshape(found.shape)

    VisionStage._learned_tokens = by_kind  # type: ignore[method-assign]


def learned_tokens_turned_as_patches() -> None:
    """Learned tokens stand after all patches of a rank, not after those of each shard."""
    correct = VisionStage._places_of_tokens

    def at_end(self: Any, forward: Any) -> Any:
        patches = self.places(forward)
        learned = np.zeros_like(correct(self, forward)[len(patches) :])
        return np.concatenate([patches, learned])

    VisionStage._places_of_tokens = at_end  # type: ignore[method-assign]


def table_cropped_by_no_side() -> None:
    """Height and width of the table are resized to those of the image, each by itself."""
    correct = LearnedPositions.forward

    def stretched(self: Any, places: Any) -> Any:
        self.shape = replace(self.shape, interpolation="stretched")
        return correct(self, places)

    positions._WEIGHTS["stretched"] = positions._WEIGHTS["cropped"]

    LearnedPositions.forward = stretched  # type: ignore[method-assign]


def corners_of_the_table_kept() -> None:
    """The first and the last place of a side are those of the table."""
    positions._WEIGHTS["cropped"] = positions._WEIGHTS["bilinear"]


def relu_not_squared() -> None:
    """Between the maps of a projector is relu(x)."""
    pointwise.ACTIVATIONS["squared_relu"] = torch.relu


REGISTER_BUGS = {
    "relu not squared": (relu_not_squared, registered({"tp": 2}, **SQUARED)),
    "registers of the first shard": (registers_of_the_first_shard, registered(SPLIT)),
    "registers kind by kind": (registers_of_the_list, registered({})),
    "learned tokens turned as patches": (
        learned_tokens_turned_as_patches,
        registered(SPLIT, positions="rope2d", image=None, interpolation="bicubic"),
    ),
    "table cropped by no side": (table_cropped_by_no_side, registered({"cp": 2})),
    "corners of a cropped table": (corners_of_the_table_kept, registered({"tp": 2})),
}
