"""Position embeddings of patches: fixed ones, and a learned table for images of any size.

Decides: how a table is interpolated to the grid of an image.
Relies on: the place of each patch, and the size of its image.
Leaves: rotary positions to `layers.image_contexts`, and the rest of a stage to `vision_encoder`.

Legend: N patches of a replica's group, n patches of this rank, [H, W] the grid of learned
positions.
"""

from collections.abc import Callable, Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from mimo_launch.kinds.vision import PositionsShape
from mimo_launch.layers.shaped_layer import ShapedLayer

# The parameter of the cubic convolution, as in torch and OpenCV; torch has that of Keys 1981 where
# it averages.
CUBIC, CUBIC_OF_KEYS = -0.75, -0.5


def sincos_positions(
    positions_N2: Tensor, width: int, dtype: torch.dtype, *, as_mae: bool = False
) -> Tensor:
    """Return fixed 2-D sine-cosine embeddings [N, width] of rows and columns, for any image.

    `as_mae`: of columns first, and the longest wavelength stays below 2 pi 10000.
    Sources: "Better plain ViT baselines" (arXiv:2205.01580), section 3; the code of MAE
    (arXiv:2111.06377).
    """
    wide = torch.promote_types(dtype, torch.float32)
    quarter = width // 4
    last = quarter if as_mae else max(1, quarter - 1)
    steps = torch.arange(quarter, device=positions_N2.device, dtype=wide) / last
    angles = positions_N2.to(wide)[:, :, None] * 10000.0**-steps
    axes = (1, 0) if as_mae else (0, 1)
    parts = [f(angles[:, axis]) for axis in axes for f in (torch.sin, torch.cos)]
    return torch.cat(parts, dim=1).to(dtype)


class LearnedPositions(ShapedLayer[PositionsShape]):
    """A table over a grid of places, interpolated for images of other sizes: [n, 4] -> [n, D].

    An image of the size of the grid reads the table unchanged. If the table has one row more than
    the grid has places, the first one belongs to the class token.
    """

    def forward(self, places_n4: Tensor) -> Tensor:
        """Return the position embeddings of patches, given (y, x, height, width) in their images.

        Each is a weighted sum of 4 x 4 rows of the table (bicubic), of 2 x 2 (linear), of all
        (averaged), or one row. A cropped table is resized to the longer side of the image in both
        directions.
        """
        wide = torch.promote_types(self.weight.dtype, torch.float32)
        grid, weights_along = self.shape.grid, _WEIGHTS[self.shape.interpolation]
        y_n, x_n, *sides = places_n4.unbind(dim=1)
        if self.shape.interpolation == "cropped":
            sides = [torch.maximum(*sides)] * 2
        axes = [weights_along(*given) for given in zip((y_n, x_n), sides, grid, strict=True)]
        (y_nk, across_nk), (x_nk, along_nk) = axes
        rows = self.shape.first_row + y_nk[:, :, None] * grid[1] + x_nk[:, None, :]
        shares = across_nk[:, :, None] * along_nk[:, None, :]
        found: Tensor = F.embedding_bag(
            rows.flatten(1),
            self.weight.to(wide),
            mode="sum",
            per_sample_weights=shares.flatten(1).to(wide),
        )
        return found.to(self.weight.dtype)


def _cubic(places_n: Tensor, sizes_n: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return the four places of a table [n, 4] around each place of an image, and their weights.

    Distances are between centres of places, as in `interpolate_pos_encoding` of transformers.
    Places beyond an end of the table read that end. Source: R. G. Keys, Cubic Convolution
    Interpolation for Digital Image Processing, 1981.
    """
    # Padding has size 0.
    scale = size / sizes_n.clamp(min=1).double()
    source = (places_n.double() + 0.5) * scale - 0.5
    first = source.floor()
    step = (source - first)[:, None]
    offsets = torch.arange(-1, 3, device=places_n.device)
    found = (first.long()[:, None] + offsets).clamp(0, size - 1)
    return found, _cubic_weights((step - offsets).abs(), CUBIC)


def _cubic_weights(far: Tensor, parameter: float) -> Tensor:
    """Return the weights of places at a distance; beyond 2 they are 0."""
    near = ((parameter + 2) * far - (parameter + 3)) * far**2 + 1
    outer = ((far - 5) * far + 8) * far * parameter - 4 * parameter
    return torch.where(far <= 1, near, torch.where(far < 2, outer, 0.0))


def _linear(places_n: Tensor, sizes_n: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return the two places of a table [n, 2] around each place of an image, and their weights.

    The first and the last place of an image read the first and the last place of the table.
    """
    source = places_n.double() * (size - 1) / (sizes_n - 1).clamp(min=1)
    first = source.floor()
    step = source - first
    found = (first.long()[:, None] + torch.arange(2, device=places_n.device)).clamp(0, size - 1)
    return found, torch.stack([1 - step, step], dim=1)


def _centred(places_n: Tensor, sizes_n: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return the two places of a table [n, 2] around the centre of each place, and their weights.

    Centres beyond the first or last centre of the table read that end.
    """
    scale = size / sizes_n.clamp(min=1).double()
    source = ((places_n.double() + 0.5) * scale - 0.5).clamp(0, size - 1)
    first = source.floor()
    step = source - first
    found = (first.long()[:, None] + torch.arange(2, device=places_n.device)).clamp(0, size - 1)
    return found, torch.stack([1 - step, step], dim=1)


def _falling(far: Tensor) -> Tensor:
    """Return weights that fall linearly to 0 at a distance of 1."""
    return (1 - far).clamp(min=0)


def _averaged(
    places_n: Tensor, sizes_n: Tensor, size: int, weigh: Callable[[Tensor], Tensor] = _falling
) -> tuple[Tensor, Tensor]:
    """Return all places of a table [n, size], and weights of their distances, as with `antialias`.

    Distances count places of the table or of the image, if these are longer.
    """
    scale = size / sizes_n.clamp(min=1).double()
    found = torch.arange(size, device=places_n.device).expand(len(places_n), size)
    far = (found - ((places_n.double() + 0.5) * scale - 0.5)[:, None]).abs()
    weights = weigh(far / scale.clamp(min=1)[:, None])
    # Places of padding may be outside.
    return found, weights / weights.sum(dim=1, keepdim=True).clamp(min=1e-9)


def _nearest(places_n: Tensor, sizes_n: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return the place of a table [n, 1] in which each place of an image begins, and ones.

    Computed in fp32, as models were trained: its rounding decides ties where both begin at the same
    point.
    """
    step = torch.ones_like(sizes_n, dtype=torch.float32) / sizes_n.clamp(min=1)
    begin = (places_n.float() * step).clamp(max=1 - 1e-6)
    step_of_table, device = 1 / size, places_n.device
    borders = torch.arange(step_of_table, 1.0, step_of_table, dtype=torch.float32, device=device)
    found = torch.bucketize(begin, borders, right=True).clamp(max=size - 1)[:, None]
    return found, torch.ones_like(found, dtype=torch.float64)


def sines(places_n: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """Return sines, then cosines, of places in time, [n, width], as in the encoder of Whisper.

    Wavelengths are a geometric progression from 2 pi to 10000 * 2 pi.
    """
    wide, half = torch.promote_types(dtype, torch.float32), width // 2
    steps = torch.arange(half, device=places_n.device, dtype=wide) / max(1, half - 1)
    angles = places_n.to(wide)[:, None] * 10000.0**-steps
    return torch.cat([angles.sin(), angles.cos()], dim=1).to(dtype)


_WEIGHTS: Mapping[str, Callable[..., tuple[Tensor, Tensor]]] = {
    "bicubic": _cubic, "bilinear": _linear, "linear": _centred, "nearest": _nearest,
    "cropped": _centred, "averaged": _averaged,
    "bicubic_averaged": partial(
        _averaged, weigh=partial(_cubic_weights, parameter=CUBIC_OF_KEYS)
    ),
}  # fmt: skip
