"""Generators as users write them: one of plain torch, one of layers that are cut over tp."""

import torch
from tests.support.custom_encoders import WideLayer
from torch import Tensor, nn

from mimo_launch.custom import (
    EncoderInput,
    GeneratorStage,
    PatchTargets,
    SegmentedModule,
    replicated,
)


class PlainLayer(nn.Module):
    """Self-attention of torch over the patches and the rows of each image."""

    def __init__(self, stage: "Denoiser") -> None:
        super().__init__()
        width = stage.model.hidden
        self.over_images = stage.over_images
        self.block = nn.TransformerEncoderLayer(
            width, 2, 2 * width, dropout=0.0, batch_first=True, norm_first=True
        )

    def forward(self, x: Tensor, packed: EncoderInput) -> Tensor:
        return self.over_images(self.block, x, packed)


class Denoiser(GeneratorStage):
    """Predicts the image itself from a noised one (arXiv:2006.11239 calls this x0)."""

    def make_embedding(self) -> nn.Module:
        return nn.Linear(self.patch_width + 1, self.model.hidden)

    def noised(self, target: PatchTargets) -> Tensor:
        time = target.times[:, None]
        return torch.cat([(1 - time) * target.noise + time * target.patches, time], dim=1)

    def make_layer(self, number: int) -> nn.Module:
        return PlainLayer(self)

    def make_head(self) -> nn.Module:
        return nn.Linear(self.model.hidden, self.patch_width)

    def loss(self, made: Tensor, target: PatchTargets) -> Tensor:
        return (made - target.patches).abs().sqrt().sum(dim=1)


class Map(SegmentedModule):
    """A linear map that every tp rank holds whole."""

    def __init__(self, stage: GeneratorStage, out: int, inputs: int) -> None:
        super().__init__()
        context = stage.context
        segment = replicated(
            "weight", (out, inputs), context.token_grad, counted=context.counts, std=0.2
        )
        self.declare("weight", segment, dtype=context.dtype)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight)


class Wide(GeneratorStage):
    cuts = frozenset({"tp", "cp", "pp"})

    def make_embedding(self) -> nn.Module:
        return Map(self, self.model.hidden, self.patch_width)

    def make_layer(self, number: int) -> nn.Module:
        return WideLayer(self)

    def make_head(self) -> nn.Module:
        return Map(self, self.patch_width, self.model.hidden)

    def loss(self, made: Tensor, target: PatchTargets) -> Tensor:
        wanted = target.patches - target.noise
        loss = (made - wanted).square().mean(dim=1)
        # What every token of padding adds would not be seen by one rank.
        return loss + self.options.get("per_patch", 0.0)


class Greedy(Denoiser):
    """Forgets that its layers must keep images apart."""

    def over_images(self, function: object, x_ND: Tensor, packed: EncoderInput) -> Tensor:
        return function(x_ND[None])[0]
