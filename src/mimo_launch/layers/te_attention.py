"""Attention with Transformer Engine: its norm, projections, kernels and ring over cp.

Decides: the package's attention format for each mask, which tokens go in without padding, and that
packed documents over cp take the attention of torch's layers.
Relies on: `te_layers` for the layers, `sequence_contexts` for lengths that the host knows,
`varlen_attention` for packed documents over cp.
Leaves: the residual stream to `models.te_block`.

Legend: n tokens between regions, N tokens of this rank inside, D width, h heads and g key/value
heads of this rank, K head size.
"""

from torch import Tensor, nn

from mimo_launch.kinds.attention_shapes import AttentionShape
from mimo_launch.kinds.shapes import NormShape
from mimo_launch.layers.attention import gathered_keys
from mimo_launch.layers.image_contexts import AttentionContext, ImageContext
from mimo_launch.layers.pointwise import placed_heads
from mimo_launch.layers.sequence_contexts import SequenceContext, in_order
from mimo_launch.layers.te_layers import TeLayers
from mimo_launch.layers.varlen_attention import (
    CAUSAL,
    WHOLE,
    Packed,
    inside_documents,
    packed,
    packed_images,
)


class TeAttention(nn.Module):
    """Norm, then multi-head or grouped-query attention: [n, D] -> [n, D], without the residual."""

    def __init__(self, layers: TeLayers, shape: AttentionShape, norm: NormShape) -> None:
        super().__init__()
        self.context, self.head_size = layers.context, shape.head_size
        self.heads = len(self.context.part(shape.heads))
        # With fewer key/value heads than tp ranks, several ranks hold the same head.
        self.kv_heads = max(1, shape.kv_heads // self.context.tp.size)
        features = (self.heads + 2 * self.kv_heads) * shape.head_size
        self.inputs = layers.norm_column(norm, features, bias=shape.qkv_bias)
        self.q_norm, self.k_norm = (
            layers.head_norm(shape.head_size, eps=shape.eps) if shape.qk_norm else None
            for _ in range(2)
        )
        sizes = self.heads, self.kv_heads, shape.head_size
        self.core = layers.attention(*sizes, ring=False)
        self.ring = layers.attention(*sizes, ring=True) if self.context.cp.size > 1 else self.core
        self.output = layers.row(shape.output)

    def forward(self, x_nD: Tensor, attention_context: AttentionContext) -> Tensor:
        """Return attention over the tokens."""
        fused = self.inputs(x_nD)
        shape = fused.shape[0], self.heads + 2 * self.kv_heads, self.head_size
        q, k, v = fused.view(shape).split([self.heads, self.kv_heads, self.kv_heads], dim=1)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        if isinstance(attention_context, SequenceContext):
            mixed = self._causal(q, k, v, attention_context)
        else:
            mixed = self._per_image(q, k, v, attention_context)
        out: Tensor = self.output(mixed)
        return out

    def _causal(
        self, q_NhK: Tensor, k_NgK: Tensor, v_NgK: Tensor, sequences: SequenceContext
    ) -> Tensor:
        """Return causal attention inside each document, [N, h * K]."""
        q, k, v = (x.view(sequences.batch, -1, *x.shape[1:]) for x in (q_NhK, k_NgK, v_NgK))
        if sequences.cos is not None:
            q, k = self.context.fused(placed_heads, q, k, sequences.cos, sequences.sin)
        cp = self.context.cp
        if sequences.documents is None:
            out: Tensor = self.ring(
                q, k, v.contiguous(), qkv_format="bshd", attn_mask_type="causal", window_size=CAUSAL
            )
        elif cp.size == 1:
            documents = packed(sequences.documents.lengths, q.device)
            q, k, v = (x.flatten(0, 1) for x in (q, k, v.contiguous()))
            out = self._packed(q, k, v, documents, documents, causal=True)
        else:
            # The package's ring cuts every document into chunks, `cp` whole sequences.
            gathered = gathered_keys(k.flatten(0, 1), v.flatten(0, 1), cp)
            k, v = (in_order(x, sequences.batch, cp.size) for x in gathered)
            out = inside_documents(q, k, v, sequences.documents.lengths, cp)
        return out.reshape(q_NhK.shape[0], -1)

    def _per_image(
        self, q_NhK: Tensor, k_NgK: Tensor, v_NgK: Tensor, images: ImageContext
    ) -> Tensor:
        """Return attention inside each image, [N, h * K]; padding tokens get zeros."""
        num_tokens = q_NhK.shape[0]
        if images.cos is not None:
            placed = self.context.fused(placed_heads, q_NhK, k_NgK, images.cos, images.sin)
            q_NhK, k_NgK = placed
        if images.same is not None:
            shape = (*images.same, *q_NhK.shape[1:])
            q, k, v = (x.contiguous().view(shape) for x in (q_NhK, k_NgK, v_NgK))
            out: Tensor = self.core(
                q, k, v, qkv_format="bshd", attn_mask_type="no_mask", window_size=WHOLE
            )
            return out.reshape(num_tokens, -1)
        k_NgK, v_NgK = gathered_keys(k_NgK, v_NgK, self.context.cp)
        if not images.own_lengths:
            # No image here: stay on the graph, so that backward still reaches every weight and
            # every rank of the cp group joins the collective.
            return q_NhK.flatten(1) * 0 + (k_NgK.sum() + v_NgK.sum()) * 0
        *parts, queries, keys = packed_images(q_NhK, k_NgK, v_NgK, images)
        q, k, v = (x.contiguous() for x in parts)
        out = self._packed(q, k, v, queries, keys, causal=False)
        padding = num_tokens - len(out)
        return nn.functional.pad(out, (0, 0, 0, padding)) if padding else out

    def _packed(
        self, q: Tensor, k: Tensor, v: Tensor, queries: Packed, keys: Packed, *, causal: bool
    ) -> Tensor:
        """Return attention inside each sequence of a list without padding, [tokens, h * K]."""
        out: Tensor = self.core(
            q,
            k,
            v,
            qkv_format="thd",
            attn_mask_type="padding_causal" if causal else "padding",
            window_size=CAUSAL if causal else WHOLE,
            cu_seqlens_q=queries.bounds,
            cu_seqlens_kv=keys.bounds,
            max_seqlen_q=queries.longest,
            max_seqlen_kv=keys.longest,
        )
        return out
