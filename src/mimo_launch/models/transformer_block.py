"""The transformer block of encoders and decoders: attention, then an MLP or experts.

Decides: the order of a block's layers.
Relies on: `layers` for layers that know their tp group, `mlp`.
Leaves: the rest of a model to `vision_encoder` and `language_model`, and sharding the experts over
their replicas to `fsdp`.

Legend: n tokens of this tp rank, D width.
"""

from torch import Tensor, nn

from mimo_launch.kinds.shapes import BlockShape
from mimo_launch.layers.attention import Attention
from mimo_launch.layers.image_contexts import AttentionContext
from mimo_launch.layers.norms import LayerScale, Norm
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.recompute import recomputed
from mimo_launch.models.mlp import MoeMlp, mlp


class Layer(nn.Module):
    """One of a stage's layers; with `recompute` it keeps only its input for the backward."""

    def __init__(self, *, recompute: bool) -> None:
        super().__init__()
        self.recompute = recompute

    def forward(self, x_nD: Tensor, attention_context: AttentionContext) -> Tensor:
        """Return the layer's output for every token."""
        if not self.recompute:
            return self._compute(x_nD, attention_context)
        out: Tensor = recomputed(self._compute, x_nD, attention_context)
        return out

    def _compute(self, x_nD: Tensor, attention_context: AttentionContext) -> Tensor:
        raise NotImplementedError


class Block(Layer):
    """Pre-norm transformer block."""

    def __init__(self, context: ParallelContext, shape: BlockShape, *, recompute: bool) -> None:
        super().__init__(recompute=recompute)
        self.attention_norm = Norm(context, shape.norm)
        self.attention = Attention(context, shape.attention)
        self.mlp_norm = Norm(context, shape.norm)
        # Norms of the outputs that are added to the stream.
        self.post_attention_norm = context.made(Norm, shape.post_norm)
        self.post_mlp_norm = context.made(Norm, shape.post_norm)
        self.attention_scale = context.made(LayerScale, shape.scale)
        self.mlp_scale = context.made(LayerScale, shape.scale)
        self.mlp = mlp(context, shape.mlp)

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
