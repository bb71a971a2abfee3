"""How images enter a vision transformer: patches, their positions, and the class token.

Decides: positions, fixed and learned; that a class token has row 0 of the learned ones.
Relies on: `image_patches` for the place of a patch and the size of its image.
Leaves: the layers behind to `vision_encoder`.

Legend: P numbers of a patch, N patches, D width, [H, W] the grid of learned positions.
"""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.parameter_segments import Segment, SegmentedModule, replicated

# Of the cubic convolution: its common value (Keys 1981 has -0.5), which torch and OpenCV take.
CUBIC = -0.75


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


def _table(context: ParallelContext, *shape: int) -> Segment:
    """Return an embedding added to tokens between regions, so every tp rank holds it whole."""
    table = replicated(
        "weight",
        shape,
        context.token_grad,
        counted=context.counts,
        std=shape[-1] ** -0.5,
        decay=False,
    )
    return replace(table, embedding=True)


class PatchEmbedding(SegmentedModule):
    """One linear map per patch, held whole on every tp rank: [n, P] -> [n, D]."""

    def __init__(self, context: ParallelContext, size: int, width: int, *, bias: bool) -> None:
        super().__init__()
        weight = replicated(
            "weight", (width, size), context.token_grad, counted=context.counts, std=size**-0.5
        )
        self.declare("weight", weight, dtype=context.dtype)
        if bias:
            segment = replicated(
                "bias",
                (width,),
                context.token_grad,
                counted=context.counts,
                init="zeros",
                decay=False,
            )
            self.declare("bias", segment, dtype=context.dtype)
        else:
            self.bias = None

    def forward(self, patches: Tensor) -> Tensor:
        """Return the embedding of each patch."""
        return F.linear(patches, self.weight, self.bias)


class LearnedPositions(SegmentedModule):
    """A table over a grid of places, interpolated for images of another size: [n, 4] -> [n, D].

    An image of the size of the grid reads its places as they are. With a class token the table
    begins with the row of that.
    """

    def __init__(
        self, context: ParallelContext, grid: tuple[int, int], width: int, *, class_token: bool
    ) -> None:
        super().__init__()
        self.grid, self.first = grid, int(class_token)
        rows = self.first + grid[0] * grid[1]
        self.declare("weight", _table(context, rows, width), dtype=context.dtype)

    def forward(self, places_n4: Tensor) -> Tensor:
        """Return the position of patches, given (y, x, height, width) in their images.

        Bicubic between the centres of places, as `interpolate_pos_encoding` of transformers does:
        a sum of 4 x 4 rows of the table for each patch.
        """
        wide = torch.promote_types(self.weight.dtype, torch.float32)
        axes = [
            _cubic(places_n4[:, axis], places_n4[:, axis + 2], size)
            for axis, size in enumerate(self.grid)
        ]
        (y_n4, across_n4), (x_n4, along_n4) = axes
        rows = self.first + y_n4[:, :, None] * self.grid[1] + x_n4[:, None, :]
        shares = across_n4[:, :, None] * along_n4[:, None, :]
        found: Tensor = F.embedding_bag(
            rows.flatten(1),
            self.weight.to(wide),
            mode="sum",
            per_sample_weights=shares.flatten(1).to(wide),
        )
        return found.to(self.weight.dtype)


def _cubic(places_n: Tensor, sizes_n: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return the four places of a table [n, 4] that a place of an image lies between, and shares.

    Places beyond an end of the table are that end. Source: R. G. Keys, Cubic Convolution
    Interpolation for Digital Image Processing, 1981.
    """
    # Padding has size 0.
    scale = size / sizes_n.clamp(min=1).double()
    source = (places_n.double() + 0.5) * scale - 0.5
    first = source.floor()
    step = (source - first)[:, None]
    offsets = torch.arange(-1, 3, device=places_n.device)
    far = (step - offsets).abs()
    near = ((CUBIC + 2) * far - (CUBIC + 3)) * far**2 + 1
    outer = ((far - 5) * far + 8) * far * CUBIC - 4 * CUBIC
    found = (first.long()[:, None] + offsets).clamp(0, size - 1)
    return found, torch.where(far <= 1, near, outer)


class ClassToken(SegmentedModule):
    """A learned token that stands beside the patches of every image."""

    def __init__(self, context: ParallelContext, width: int) -> None:
        super().__init__()
        self.declare("weight", _table(context, width), dtype=context.dtype)

    def forward(self, number: int, position_D: Tensor | None) -> Tensor:
        """Return the class tokens of so many images, [number, D], on the graph even if none."""
        token = self.weight if position_D is None else self.weight + position_D
        return token.expand(number, -1)
