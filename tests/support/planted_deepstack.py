"""Known ways to get rows of several layers wrong; `planted` lists them with the others."""

from typing import Any

import torch
from tests.support.specs import box, spec
from torch import nn

from mimo_launch.models.language_model import LanguageStage
from mimo_launch.models.vision_encoder import VisionStage
from mimo_launch.spec.spec import Spec

MODEL: dict[str, Any] = {
    "layers": 4, "deepstack": [0, 2, 3], "shuffle": 2, "positions": "learned+rope2d",
    "image": [3, 2], "interpolation": "bilinear", "projector": "merger",
}  # fmt: skip


def stacked(vision: dict[str, Any], language: dict[str, Any]) -> Spec:
    """Rows of three layers of vision, added behind the first three of four layers of language."""
    ranks = 1
    for axis in ("tp", "cp", "pp", "dp"):
        ranks *= vision.get(axis, 1)
    return spec(
        {
            "vision": box(0, model=MODEL, **vision),
            "language": box(ranks, model={"layers": 4}, **language),
        },
        microbatches=2,
        mbs=2,
        max_images=2,
        max_patches=24,
    )


def layers_swapped() -> None:
    """The rows of the first two layers change places."""
    correct = VisionStage.forward

    def swapped(self: Any, *args: Any) -> Any:
        made = correct(self, *args)
        if not self.stage.is_last:
            return made
        parts = list(torch.split(made, made.shape[1] // 4, dim=1))
        return torch.cat([parts[0], parts[2], parts[1], parts[3]], dim=1)

    VisionStage.forward = swapped


def added_in_front() -> None:
    """Rows are added in front of a layer, not behind it."""
    correct = LanguageStage._embed

    def early(self: Any, batch: Any) -> Any:
        x_nD, (first, *others) = correct(self, batch)
        return x_nD + first, [*others, torch.zeros_like(first)]

    LanguageStage._embed = early


def lost_behind_a_stage() -> None:
    """Stages of language after the first add zeros."""
    correct = LanguageStage.forward

    def forgetting(self: Any, hidden: Any, batch: Any) -> Any:
        if hidden is not None:
            width = self.model.hidden
            hidden = nn.functional.pad(hidden[:, :width], (0, hidden.shape[1] - width))
        return correct(self, hidden, batch)

    LanguageStage.forward = forgetting


STACK_BUGS = {
    "rows of layers swapped": (layers_swapped, stacked({"tp": 2}, {})),
    "rows added in front of a layer": (added_in_front, stacked({}, {})),
    "rows lost behind a stage": (lost_behind_a_stage, stacked({"pp": 2}, {"pp": 2})),
}
