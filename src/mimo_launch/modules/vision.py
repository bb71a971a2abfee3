"""The vision transformer as a stage: packed patches of images of any size in, rows out.

Decides: positions and pixel shuffle.
Relies on: `patches` for their order, `rows` for the projector and the rows of this rank.
Leaves: moving rows to the bridge.

Legend: P pixels of a patch, N patches of a replica's group (padded to a multiple of tp under
sequence parallelism), s side of the square of patches that becomes one row, R = N / s^2 rows, D
width, L width of the language model.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mimo_launch.layout.layout import Stage
from mimo_launch.modules.block import BlockShape, blocks
from mimo_launch.modules.patches import Patches
from mimo_launch.modules.rows import owned, projector
from mimo_launch.parallel.context import ParallelContext
from mimo_launch.parallel.layers import Norm
from mimo_launch.parallel.masks import ImageMask
from mimo_launch.parallel.segments import SegmentedModule, replicated
from mimo_launch.spec.model import VitModel


@dataclass(frozen=True, slots=True)
class EncoderInput:
    """The patches of one group that this rank holds: which attend to which, how many rows each tp
    rank owns in the end and, on the first stage, the patches themselves.
    """  # noqa: D205

    mask: ImageMask
    sizes: tuple[int, ...]
    patches: Patches | None


def sincos_positions(positions_N2: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """Return fixed 2-D sine-cosine embeddings [N, width], for images of any size.

    Source: "Better plain ViT baselines" (arXiv:2205.01580), section 3.
    """
    wide = torch.promote_types(dtype, torch.float32)
    quarter = width // 4
    steps = torch.arange(quarter, device=positions_N2.device, dtype=wide) / max(1, quarter - 1)
    angles = positions_N2.to(wide)[:, :, None] * 10000.0**-steps
    parts = [f(angles[:, axis]) for axis in (0, 1) for f in (torch.sin, torch.cos)]
    return torch.cat(parts, dim=1).to(dtype)


class PatchEmbedding(SegmentedModule):
    """One linear map per patch, held whole on every tp rank: [n, P] -> [n, D]."""

    def __init__(self, context: ParallelContext, size: int, width: int) -> None:
        super().__init__()
        for name, shape in (("weight", (width, size)), ("bias", (width,))):
            self.declare(
                name,
                replicated(
                    name,
                    shape,
                    context.token_grad,
                    counted=context.counts,
                    std=size**-0.5,
                    init="normal" if name == "weight" else "zeros",
                    decay=name == "weight",
                ),
                dtype=context.dtype,
            )

    def forward(self, patches: Tensor) -> Tensor:
        """Return the embedding of each patch."""
        return nn.functional.linear(patches, self.weight, self.bias)


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
        self.context, self.width, self.stage = context, model.hidden, stage
        if stage.is_first:
            self.patch = PatchEmbedding(context, model.channels * model.patch**2, model.hidden)
        shape = BlockShape(
            width=model.hidden,
            heads=model.heads,
            kv_heads=model.heads,
            head_size=model.hidden // model.heads,
            mlp=model.mlp_width,
            layers=model.layers,
            norm="layer",
            gated=False,
            bias=True,
        )
        self.layers = blocks(context, shape, stage, recompute=recompute)
        if stage.is_last:
            self.norm = Norm(context, model.hidden, "layer")
            self.row_width = model.hidden * model.patches_per_row
            self.projector = projector(context, model.projector, self.row_width, language_width)

    def forward(self, hidden: Tensor | None, packed: EncoderInput) -> Tensor:
        """Return the hidden state [n, D], on the last stage the rows [r, L] that this rank owns.

        Shapes: hidden [n, D] from the stage before, None on the first.
        """
        x_nD = self._embed(packed.patches) if hidden is None else hidden
        for layer in self.layers.values():
            x_nD = layer(x_nD, packed.mask)
        if not self.stage.is_last:
            return x_nD
        # Pixel shuffle (arXiv:2404.16821): the patches of a row stand together, so it is a view.
        rows: Tensor = self.projector(self.norm(x_nD).view(-1, self.row_width))
        return owned(rows, packed.sizes, self.context)

    def _embed(self, given: Patches | None) -> Tensor:
        if given is None:
            raise ValueError("the first stage of an encoder needs pixels")
        patches, positions = given.values, given.positions
        if self.context.sequence_parallel:
            # Each tp rank embeds its own tokens only; attention and MLP regions gather them.
            share = patches.shape[0] // self.context.tp.size
            mine = slice(self.context.tp.index * share, (self.context.tp.index + 1) * share)
            patches, positions = patches[mine], positions[mine]
        x_nD: Tensor = self.patch(patches)
        return x_nD + sincos_positions(positions, self.width, x_nD.dtype)
