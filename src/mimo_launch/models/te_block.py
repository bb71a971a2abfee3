"""The transformer block with Transformer Engine's layers, under the names of the torch block.

Decides: which fused parameter holds which canonical tensors.
Relies on: the shape of a block, which says everything else about these tensors: parts, initial
values, kinds of gradient. A checkpoint of one backend also loads in the other.
Leaves: attention to `layers.te_attention`.
"""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from mimo_launch.kinds.block_shapes import BlockShape
from mimo_launch.kinds.mlp_shapes import MlpShape
from mimo_launch.kinds.shapes import NormShape
from mimo_launch.kinds.weights import LayerShape
from mimo_launch.layers.image_contexts import AttentionContext
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.parameter_segments import Segment, SegmentedModule
from mimo_launch.layers.pointwise import ACTIVATIONS
from mimo_launch.layers.recompute import recomputed
from mimo_launch.layers.te_attention import TeAttention
from mimo_launch.layers.te_layers import TeLayers, te_layers
from mimo_launch.spec.module import Recompute

# Parameters of the layers below and the canonical tensors fused in each, in order. SwiGLU is
# silu(first half) * second half.
PARTS = {
    "attention.inputs.layer_norm_weight": ("attention_norm.weight",),
    "attention.inputs.layer_norm_bias": ("attention_norm.bias",),
    "attention.inputs.weight": tuple(f"attention.{x}.weight" for x in "qkv"),
    "attention.inputs.bias": tuple(f"attention.{x}.bias" for x in "qkv"),
    "attention.q_norm.weight": ("attention.q_norm.weight",),
    "attention.k_norm.weight": ("attention.k_norm.weight",),
    "attention.output.weight": ("attention.o.weight",),
    "attention.output.bias": ("attention.o.bias",),
    "mlp.layer_norm_weight": ("mlp_norm.weight",),
    "mlp.fc1_weight": ("mlp.gate.weight", "mlp.up.weight"),
    "mlp.fc2_weight": ("mlp.down.weight",),
    "mlp.inputs.layer_norm_weight": ("mlp_norm.weight",),
    "mlp.inputs.layer_norm_bias": ("mlp_norm.bias",),
    "mlp.inputs.weight": ("mlp.up.weight",),
    "mlp.inputs.bias": ("mlp.up.bias",),
    "mlp.output.weight": ("mlp.down.weight",),
    "mlp.output.bias": ("mlp.down.bias",),
}


class TeGeluMlp(nn.Module):
    """Norm, then an MLP with one activation and its inner width cut over tp: [n, D] -> [n, D].

    Not `LayerNormMLP`: its GELU is always the tanh approximation.
    """

    def __init__(self, layers: TeLayers, norm: NormShape, shape: MlpShape) -> None:
        super().__init__()
        inner = len(layers.context.part(shape.inner))
        self.inputs = layers.norm_column(norm, inner, bias=shape.bias)
        self.output = layers.row(shape.output)
        self.activation = ACTIVATIONS[shape.activation]

    def forward(self, x_nD: Tensor) -> Tensor:
        """Return the MLP of every token."""
        out: Tensor = self.output(self.activation(self.inputs(x_nD)))
        return out


class TeBlock(SegmentedModule):
    """Pre-norm transformer block; it keeps only the inputs of what it recomputes."""

    def __init__(
        self, layers: TeLayers, shape: BlockShape, *, name: str, recompute: Recompute
    ) -> None:
        super().__init__()
        self.fp8, self.recompute = layers.context.fp8, recompute
        self.attention = TeAttention(layers, shape.attention, shape.norm)
        self.mlp: nn.Module
        mlp = shape.mlp
        if not isinstance(mlp, MlpShape) or (mlp.gate and mlp.bias):
            raise ValueError(f"no layer for experts, or for a gated MLP with biases: {shape}")
        if mlp.gate:
            self.mlp = layers.norm_swiglu(shape.norm, mlp.inner)
        else:
            self.mlp = TeGeluMlp(layers, shape.norm, mlp)
        self.segments = adopted_segments(self, layers.context, shape)
        for path, layer in self.named_modules():
            is_product = any(weight.dim() == 2 for weight in layer.parameters(recurse=False))
            if self.fp8 is not None and is_product:
                self.fp8.add(f"{name}.{path}", layer)

    def forward(self, x_nD: Tensor, attention_context: AttentionContext) -> Tensor:
        """Return the block's output for every token."""
        if x_nD.shape[0] == 0:
            # The kernels take no empty list: zero tokens without positions go through and are cut
            # off. The weights then get zero gradients, which other ranks wait for in a reduction.
            tokens = 1 if self.fp8 is None else self.fp8.step
            unturned = replace(attention_context, cos=None, sin=None)
            return self._run(F.pad(x_nD, (0, 0, 0, tokens)), unturned)[:0].clone()
        return self._run(x_nD, attention_context)

    def _run(self, x_nD: Tensor, attention_context: AttentionContext) -> Tensor:
        if self.recompute != "full":
            return self._compute(x_nD, attention_context)
        out: Tensor = recomputed(self._compute, x_nD, attention_context)
        return out

    def _compute(self, x_nD: Tensor, attention_context: AttentionContext) -> Tensor:
        x_nD = x_nD + self._part("attention", self.attention, x_nD, attention_context)
        return x_nD + self._part("mlp", self.mlp, x_nD)

    def _part(self, part: str, layer: nn.Module, *args: Any) -> Tensor:
        """Return what a part adds to the stream."""
        compute = partial(self._within, layer)
        out: Tensor = recomputed(compute, *args) if part in self.recompute else compute(*args)
        return out

    def _within(self, layer: nn.Module, *args: Any) -> Tensor:
        """Return the result of a layer; what runs again does so in the same context."""
        with nullcontext() if self.fp8 is None else self.fp8.running():
            out: Tensor = layer(*args)
        return out


def adopted_segments(
    block: nn.Module, context: ParallelContext, shape: BlockShape
) -> dict[str, tuple[Segment, ...]]:
    """Return the segments in each parameter of a block of this shape.

    Raises: ValueError unless every parameter and every weight has exactly one place and fits it.
    """
    fused = (context.segments(weights) for weights in shape.weights())
    left = {segment.name: segment for segments in fused for segment in segments}
    adopted = {}
    for path, parameter in block.named_parameters():
        names = PARTS.get(path, ())
        held = tuple(left.pop(name) for name in names if name in left)
        rows = sum(segment.local_shape[0] for segment in held)
        if len(held) < len(names) or not held:
            raise ValueError(f"no segments for the parameter {path}")
        if tuple(parameter.shape) != (rows, *held[0].local_shape[1:]):
            raise ValueError(f"{path} has shape {tuple(parameter.shape)}, its segments {held}")
        adopted[path] = held
    if left:
        raise ValueError(f"no parameter for the segments {sorted(left)}")
    return adopted


def te_blocks(
    context: ParallelContext, shapes: Mapping[int, LayerShape], *, recompute: Recompute
) -> nn.ModuleDict:
    """Return the blocks of a stage, by their number in the whole model.

    Raises: BackendError if the package cannot be used.
    """
    layers = te_layers(context)
    return nn.ModuleDict(
        {
            str(i): TeBlock(layers, shape, name=f"layers.{i}", recompute=recompute)
            for i, shape in shapes.items()
            if isinstance(shape, BlockShape)
        }
    )
