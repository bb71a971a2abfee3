"""Kinds of vision towers in the oracle: one row of a table for each.

Decides: what the blocks of a kind have, the angles and the vectors of places, the norm of rows.
Relies on: the keys of the spec alone; `oracle_blocks` and `oracle_layers`.
Leaves: the forward of an image, the same for all of them, to `oracle_encoders`.

Legend: N patches of an image, D width, K size of a head, r rows, W width of a row.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mimo_launch.spec.spec import VitModel
from mimo_launch.verify.oracle_blocks import BlockParts, QkNorm
from mimo_launch.verify.oracle_dropout import Weights
from mimo_launch.verify.oracle_layers import frequencies, image_angles, layer_norm, rms_norm

# The names that `oracle_blocks.mlp` has for activations of a vit.
_ACTIVATIONS = {"swiglu": "silu", "gelu_tanh": "gelu_tanh_without_gate"}


def _angles(model: Any, height: int, width: int) -> Tensor:
    """Return the angles of 2-D RoPE of each patch, [N, K/2]."""
    return image_angles(height, width, model.hidden // model.heads, model.rope_frequencies)


def _by_centre(model: Any, height: int, width: int) -> Tensor:
    """Return angles of the centre of a patch, from -1 at one edge of the image to 1 at the other.

    The row comes first. They are times 2 pi (DINOv3).
    """
    centres = [
        ((y + 0.5) / height * 2 - 1, (x + 0.5) / width * 2 - 1)
        for y in range(height)
        for x in range(width)
    ]
    turns = frequencies(model.hidden // model.heads // 2, model.rope_theta)
    return _of_places(centres, [2 * math.pi * turn for turn in turns])


def _by_column(model: Any, height: int, width: int) -> Tensor:
    """Return angles by the number of the column, then of the row (Gemma 4)."""
    places = [(x, y) for y in range(height) for x in range(width)]
    return _of_places(places, frequencies(model.hidden // model.heads // 2, model.rope_theta))


def _by_column_from_1(model: Any, height: int, width: int) -> Tensor:
    """Return the same for columns and rows that count from 1 (Llama 4)."""
    places = [(x + 1, y + 1) for y in range(height) for x in range(width)]
    return _of_places(places, frequencies(model.hidden // model.heads // 2, model.rope_theta))


def _of_places(places: Sequence[tuple[float, float]], turns: list[float]) -> Tensor:
    angles = [[place * turn for place in each for turn in turns] for each in places]
    return torch.tensor(angles, dtype=torch.float64)


def sincos(height: int, width: int, size: int) -> Tensor:
    """Return 2-D sine-cosine embeddings: y sine, y cosine, x sine, x cosine."""
    quarter = size // 4
    rows = []
    for y in range(height):
        for x in range(width):
            angles = [
                [place / 10000.0 ** (i / max(1, quarter - 1)) for i in range(quarter)]
                for place in (y, x)
            ]
            parts = [f(a) for axis in angles for f in (np.sin, np.cos) for a in axis]
            rows.append(parts)
    return torch.tensor(np.array(rows), dtype=torch.float64)


def _sincos_of_columns(height: int, width: int, size: int) -> Tensor:
    """Return the embeddings of MAE: x sine, x cosine, y sine, y cosine."""
    turns = [10000.0 ** (-4 * i / size) for i in range(size // 4)]
    rows = [
        [f(place * turn) for place in (x, y) for f in (np.sin, np.cos) for turn in turns]
        for y in range(height)
        for x in range(width)
    ]
    return torch.tensor(np.array(rows), dtype=torch.float64)


def _placed(
    weights: Weights, encoder: str, model: Any, x_ND: Tensor, size: tuple[int, int]
) -> Tensor:
    """Return patches with the vectors of their places; a table is resized as an image would be."""
    height, width = size
    if model.positions == "sincos":
        return x_ND + sincos(height, width, model.hidden)
    if model.positions == "sincos_mae":
        return x_ND + _sincos_of_columns(height, width, model.hidden)
    if not model.has_table:
        return x_ND
    table = weights[f"{encoder}.positions.weight"][int(model.class_token) :]
    return x_ND + _sized(model, table, height, width)


def _placed_before_class(
    weights: Weights, encoder: str, model: Any, x_ND: Tensor, size: tuple[int, int]
) -> Tensor:
    """Return patches with the vectors of a table that ends with the class token (Llama 4)."""
    table = weights[f"{encoder}.positions.weight"]
    return x_ND + _sized(model, table[: len(table) - int(model.class_token)], *size)


def _sized(model: Any, table: Tensor, height: int, width: int) -> Tensor:
    """Return the rows [N, D] of a table over `image`, resized."""
    as_image = table.T.reshape(1, model.hidden, *model.image)
    if model.interpolation == "cropped":
        square = (max(height, width),) * 2
        sized = F.interpolate(as_image, square, mode="bilinear")[..., :height, :width]
    elif model.interpolation == "nearest":
        down, right = (_begins(*each) for each in zip((height, width), model.image, strict=True))
        sized = as_image[:, :, down][:, :, :, right]
    elif model.interpolation in ("averaged", "bicubic_averaged"):
        mode = "bilinear" if model.interpolation == "averaged" else "bicubic"
        sized = _averaged(as_image, height, width, mode)
    else:
        corners = model.interpolation == "bilinear"
        mode = "bicubic" if model.interpolation == "bicubic" else "bilinear"
        sized = F.interpolate(as_image, (height, width), mode=mode, align_corners=corners)
    found: Tensor = sized[0].flatten(1).T
    return found


def _averaged(image: Tensor, height: int, width: int, mode: str) -> Tensor:
    """Resize with antialias, each axis while it is the last one.

    Of an image with one column, torch 2.13 computes other rows than of one with two.
    """
    for size in (width, height):
        flat = (image.shape[2], size)
        image = F.interpolate(image, flat, mode=mode, antialias=True).mT
    return image


def _begins(number: int, size: int) -> list[int]:
    """Return the place in a table of `size` where each of `number` patches begins, in fp32."""
    step, borders = 1 / torch.tensor(number).float(), torch.arange(1 / size, 1.0, 1 / size)
    begins = [min(float(place * step), 1 - 1e-6) for place in range(number)]
    return [sum(float(border) <= begin for border in borders[: size - 1]) for begin in begins]


def _placed_twice(
    weights: Weights, encoder: str, model: Any, x_ND: Tensor, size: tuple[int, int]
) -> Tensor:
    """Return patches with the vector of their column and that of their row (Gemma 4)."""
    height, width = size
    table = weights[f"{encoder}.positions.weight"]
    of_column, of_row = table[: model.places], table[model.places :]
    of_both = [of_column[x] + of_row[y] for y in range(height) for x in range(width)]
    return x_ND + torch.stack(of_both)


def _normed(weights: Weights, x: Tensor, encoder: str, model: Any) -> Tensor:
    """Return x after the norm before the projector, if there is one."""
    if model.projector_norm_eps is None:
        return x
    name, eps = f"{encoder}.projector.norm", model.projector_norm_eps
    if model.projector_norm == "layer":
        return layer_norm(weights, x, name, eps)
    return rms_norm(weights, x, name, eps, offset=model.projector_norm_offset)


def _standardized(weights: Weights, x: Tensor, encoder: str, model: Any) -> Tensor:
    """Return rows [r, W] over their root mean square, standardized before (Gemma 4)."""
    x = x * x.shape[1] ** 0.5
    if model.standardize:
        name = f"{encoder}.projector.norm"
        x = (x - weights[f"{name}.bias"]) * weights[f"{name}.weight"]
    normed: Tensor = x / (x.square().mean(dim=-1, keepdim=True) + model.norm_eps).sqrt()
    return normed


@dataclass(frozen=True, slots=True, kw_only=True)
class Tower:
    """What a kind of vision tower computes; by default as a `vit`.

    `block`: fields of `BlockParts` that the keys of a `vit` do not decide. `angles` of patches, if
    they rotate; `placed`: patches with their places; `normed`: the input of the projector.
    `class_row`: the row of the class token in a table. `activates_rows`: an activation precedes the
    map after the projector.
    """

    block: Mapping[str, Any] = field(default_factory=dict)
    angles: Callable[[Any, int, int], Tensor] = _angles
    placed: Callable[[Weights, str, Any, Tensor, tuple[int, int]], Tensor] = _placed
    normed: Callable[[Weights, Tensor, str, Any], Tensor] = _normed
    class_row: int = 0
    activates_rows: bool = False

    def parts(self, model: VitModel) -> BlockParts:
        """Return what a block of a model has."""
        of_norm: QkNorm = "each" if model.head_qk_norm else "together"
        found = BlockParts(
            heads=model.heads,
            kv_heads=model.kv_heads or model.heads,
            norm=model.norm,
            eps=model.norm_eps,
            activation=_ACTIVATIONS.get(model.activation, model.activation),
            qk_norm=of_norm if model.qk_norm else None,
            pairs="neighbours" if model.rope_frequencies == "alternating" else "apart",
            layer_scale=model.layer_scale is not None,
        )
        return replace(found, **self.block)


# By kind.
TOWERS: dict[str, Tower] = {
    "vit": Tower(),
    "dinov3": Tower(angles=_by_centre),
    "ovis2_vision": Tower(),
    "gemma4_vision": Tower(
        block={
            "activation": "gelu_tanh", "value_norm": True, "divides": False, "pairs": "in_halves",
            "post_norms": True,
        },
        angles=_by_column,
        placed=_placed_twice,
        normed=_standardized,
    ),
    "llama4_vision": Tower(
        block={"pairs": "neighbours"}, angles=_by_column_from_1, placed=_placed_before_class,
        class_row=-1, activates_rows=True,
    ),
}  # fmt: skip
