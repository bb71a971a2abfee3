"""Per-layer embeddings: in front of the layers, and in each block.

Decides: what they compute.
Relies on: `layers` for tables, maps and norms; every map is whole on a tp rank and multiplies the
tokens that the rank holds between regions, so that no collective is needed but that of the table.
Leaves: the order of a block to `transformer_block`, what tokens read to `language_input`.
Source: `transformers` 5.24, models/gemma4.

Legend: N tokens of a replica's cp rank, n tokens of this tp rank, D width, L layers, P width of a
token's vector of one layer.
"""

from math import sqrt

import torch
import torch.nn.functional as F
from torch import Tensor

from mimo_launch.kinds.per_layer_shapes import PerLayerInputsShape, PerLayerShape
from mimo_launch.layers.dropout import Draws
from mimo_launch.layers.linear import WholeLinear
from mimo_launch.layers.norms import Norm
from mimo_launch.layers.pointwise import gelu_tanh, quick_gelu, squared_relu
from mimo_launch.layers.shaped_layer import ShapedLayer
from mimo_launch.layers.vocab_parallel import VocabEmbedding


class PerLayerInputs(ShapedLayer[PerLayerInputsShape]):
    """The vectors of all layers: of each token, and of what enters the first layer."""

    table: VocabEmbedding
    project: WholeLinear
    norm: Norm

    def forward(self, tokens_N: Tensor, x_nD: Tensor) -> tuple[Tensor, ...]:
        """Return the vectors of each layer, L times [n, P]; x is the stream before the first."""
        shape = self.shape
        rows = self.table.own_rows(tokens_N, still=shape.padding)
        # The factor is rounded to the dtype first, as that of embeddings.
        root = torch.full((), shape.width**0.5, dtype=rows.dtype, device=rows.device)
        looked_up = self.context.leave(rows * root)
        mapped = self.project(x_nD) * shape.norm.width**-0.5
        normed = self.norm(mapped.unflatten(1, (shape.layers, shape.width)))
        both = self.context.fused(_averaged, normed, looked_up.view(normed.shape))
        vectors: tuple[Tensor, ...] = both.unbind(1)
        return vectors


class PerLayerGate(ShapedLayer[PerLayerShape]):
    """What a block adds for the vectors of its layer: [n, D] and [n, P] -> [n, D]."""

    narrow: WholeLinear
    widen: WholeLinear
    norm: Norm

    def forward(self, x_nD: Tensor, vector_nP: Tensor, draws: Draws | None) -> Tensor:
        """Return what is added to the stream x."""
        gate = GATES[self.shape.activation]
        gated = self.context.fused(gate, self.narrow(x_nD, draws), vector_nP)
        out: Tensor = self.norm(self.widen(gated, draws))
        return out


def _averaged(x: Tensor, y: Tensor) -> Tensor:
    """Return the sum of two independent numbers, with the variance of one."""
    return (x + y) * sqrt(0.5)


def _by_silu(gate: Tensor, x: Tensor) -> Tensor:
    return F.silu(gate) * x


def _by_gelu_tanh(gate: Tensor, x: Tensor) -> Tensor:
    return gelu_tanh(gate) * x


def _by_clamped_silu(gate: Tensor, x: Tensor) -> Tensor:
    return quick_gelu(gate.clamp(max=7.0)) * x


def _by_squared_relu(gate: Tensor, x: Tensor) -> Tensor:
    return squared_relu(gate) * x


# By the activation of a model's MLPs.
GATES = {
    "silu": _by_silu,
    "gelu_tanh": _by_gelu_tanh,
    "gelu_tanh_without_gate": _by_gelu_tanh,
    "clamped_silu": _by_clamped_silu,
    "squared_relu": _by_squared_relu,
}
