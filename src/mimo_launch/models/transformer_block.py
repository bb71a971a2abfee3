"""The transformer block of encoders and decoders: attention, then an MLP or experts.

Decides: the order of a block's layers.
Relies on: `layers` for layers that know their tp group, `mlp`.
Leaves: the rest of a model to `vision_encoder` and `language_model`, and sharding the experts over
their replicas to `fsdp`.

Legend: n tokens of this tp rank, D width.
"""

from torch import Tensor

from mimo_launch.kinds.block_shapes import BlockShape
from mimo_launch.layers.attention import Attention
from mimo_launch.layers.image_contexts import AttentionContext
from mimo_launch.layers.norms import LayerScale, Norm
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.recompute import recomputed
from mimo_launch.layers.shaped_layer import S, ShapedLayer
from mimo_launch.models.mlp import Mlp, MoeMlp


class Layer(ShapedLayer[S]):
    """One of a stage's layers; with `recompute` it keeps only its input for the backward."""

    def __init__(self, context: ParallelContext, shape: S, *, recompute: bool = False) -> None:
        super().__init__(context, shape)
        self.recompute = recompute

    def forward(self, x_nD: Tensor, attention_context: AttentionContext) -> Tensor:
        """Return the layer's output for every token."""
        if not self.recompute:
            return self._compute(x_nD, attention_context)
        out: Tensor = recomputed(self._compute, x_nD, attention_context)
        return out

    def _compute(self, x_nD: Tensor, attention_context: AttentionContext) -> Tensor:
        raise NotImplementedError


class Block(Layer[BlockShape]):
    """Pre-norm transformer block; further norms and scales are of what is added to the stream."""

    attention_norm: Norm
    attention: Attention
    mlp_norm: Norm
    post_attention_norm: Norm | None
    post_mlp_norm: Norm | None
    attention_scale: LayerScale | None
    mlp_scale: LayerScale | None
    mlp: Mlp | MoeMlp

    def _compute(self, x_nD: Tensor, attention_context: AttentionContext) -> Tensor:
        attended = self.attention(self.attention_norm(x_nD), attention_context)
        if self.post_attention_norm is not None:
            attended = self.post_attention_norm(attended)
        if self.attention_scale is not None:
            attended = self.attention_scale(attended)
        x_nD, normed = self.mlp_norm.after(x_nD, attended)
        change = (
            self.mlp(normed, attention_context)
            if isinstance(self.mlp, MoeMlp)
            else self.mlp(normed)
        )
        if self.post_mlp_norm is not None:
            change = self.post_mlp_norm(change)
        if self.mlp_scale is not None:
            change = self.mlp_scale(change)
        out: Tensor = x_nD + change
        return out
