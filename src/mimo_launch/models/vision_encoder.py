"""The vision transformer as a stage: packed patches of images of any size in, rows out.

Decides: what surrounds the layers, and pixel shuffle; that class tokens stand behind the patches.
Relies on: `patch_embedding` for the first layers, `projector` for the projector and the rows of
this rank.
Leaves: moving rows to the bridge.

Legend: P pixels of a patch, N patches of a replica's group (padded to a multiple of tp under
sequence parallelism), s side of the square of patches that becomes one row, R = N / s^2 rows, D
width, L width of the language model.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from mimo_launch.kinds.registry import kind_of
from mimo_launch.layers.attention_contexts import ImageContext, turned_by_place
from mimo_launch.layers.linear import Norm
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layout.stages import Stage
from mimo_launch.models.block_stack import blocks
from mimo_launch.models.encoder_inputs import EncoderInput
from mimo_launch.models.image_patches import own_share
from mimo_launch.models.patch_embedding import (
    ClassToken,
    LearnedPositions,
    PatchEmbedding,
    sincos_positions,
)
from mimo_launch.models.projector import owned, projector
from mimo_launch.models.transformer_block import encoder_shape
from mimo_launch.spec.model import Model, VitModel


def turns_by_place(model: Model) -> bool:
    """Return whether blocks turn queries and keys by the places of patches."""
    return kind_of(model).turns_patches


class VisionStage(nn.Module):
    """Consecutive layers of a ViT; the first stage embeds patches, the last one projects rows."""

    def __init__(
        self,
        context: ParallelContext,
        model: VitModel,
        stage: Stage,
        *,
        language_width: int,
        recompute: bool,
    ) -> None:
        super().__init__()
        self.context, self.model, self.stage = context, model, stage
        if stage.is_first:
            self.patch = PatchEmbedding(
                context, model.patch_numbers, model.hidden, bias=model.patch_bias
            )
            self.positions: LearnedPositions | None = None
            if model.positions == "learned" and model.image is not None:
                self.positions = LearnedPositions(
                    context, model.image, model.hidden, class_token=model.class_token
                )
            self.class_token = ClassToken(context, model.hidden) if model.class_token else None
            self.pre_norm = self._norm() if model.pre_norm else None
        shape = replace(encoder_shape(model), eps=model.norm_eps, activation=model.activation)
        self.layers = blocks(context, shape, stage, recompute=recompute)
        if stage.is_last:
            self.norm = self._norm() if model.final_norm else None
            self.projector = projector(
                context,
                model.projector,
                model.row_width,
                language_width,
                activation=model.projector_activation,
            )

    def forward(self, hidden: Tensor | None, packed: EncoderInput) -> Tensor:
        """Return the hidden state [n, D], on the last stage the rows [r, L] that this rank owns.

        Shapes: hidden [n, D] from the stage before, None on the first.
        """
        x_nD = self._embed(packed) if hidden is None else hidden
        mask = self._turned(packed, x_nD.dtype)
        for layer in self.layers.values():
            x_nD = layer(x_nD, mask)
        if not self.stage.is_last:
            return x_nD
        x_nD = x_nD[: len(x_nD) - packed.class_tokens]
        if self.norm is not None:
            x_nD = self.norm(x_nD)
        # Pixel shuffle (arXiv:2404.16821): the patches of a row stand together, so it is a view.
        rows: Tensor = self.projector(x_nD.view(-1, self.model.row_width))
        return owned(rows, packed.sizes, self.context)

    def _norm(self) -> Norm:
        return Norm(self.context, self.model.hidden, "layer", eps=self.model.norm_eps)

    def _turned(self, packed: EncoderInput, dtype: torch.dtype) -> ImageContext:
        """Return the mask of the blocks, which turns queries and keys where that tells places."""
        if not turns_by_place(self.model):
            return packed.mask
        if packed.places is None:
            raise ValueError("every stage of an encoder with 2-D RoPE needs the places of patches")
        head_size = self.model.hidden // self.model.heads
        return turned_by_place(packed.mask, packed.places, head_size, dtype)

    def _embed(self, packed: EncoderInput) -> Tensor:
        if packed.patches is None:
            raise ValueError("the first stage of an encoder needs pixels")
        mine = own_share(packed.patches, self.context)
        model, values = self.model, mine.values
        if model.temporal_patch > 1:
            # An image as a film that stands still.
            frames = values.view(len(values), model.channels, 1, model.patch**2)
            values = frames.expand(-1, -1, model.temporal_patch, -1).flatten(1)
        x_nD: Tensor = self.patch(values)
        if model.positions == "sincos":
            x_nD = x_nD + sincos_positions(mine.positions, model.hidden, x_nD.dtype)
        elif self.positions is not None:
            x_nD = x_nD + self.positions(mine.positions)
        if self.class_token is not None:
            position = None if self.positions is None else self.positions.weight[0]
            x_nD = torch.cat([x_nD, self.class_token(packed.class_tokens, position)])
        return x_nD if self.pre_norm is None else self.pre_norm(x_nD)
