"""The transformer block of encoders and decoders: attention, then an MLP or experts.

Decides: the sizes of a block for each kind of model, and the order of its norms.
Relies on: `layers` for layers that know their tp group, `mlp`.
Leaves: the rest of a model to `vision_encoder` and `language_model`, and sharding the experts over
their replicas to `fsdp`.

Legend: n tokens of this tp rank, D width.
"""

from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor, nn

from mimo_launch.layers.attention import Attention
from mimo_launch.layers.image_contexts import AttentionContext
from mimo_launch.layers.norms import LayerScale, Norm
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.pointwise import EPSILON
from mimo_launch.layers.recompute import recomputed
from mimo_launch.models.mlp import Mlp, MoeMlp, MoeShape
from mimo_launch.spec.encoder_blocks import Activation, EncoderBlocks
from mimo_launch.spec.hybrid import HybridModel
from mimo_launch.spec.language_models import DecoderBlocks, DecoderModel, GateActivation
from mimo_launch.spec.layers import Mla


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockShape:
    """Sizes of a block; `layers` is the depth of the whole model, which scales residual weights.

    `qkv_bias` gives queries, keys and values biases, `output_bias` the output of attention; None
    means `bias`, as in all linear layers. `key_bias` false leaves out the keys' bias (Whisper).
    With `wide_norm`, `qk_norm` normalises all heads together. `layer_scale` is the initial value of
    the weights that scale each addition to the stream. Experts, `moe`, replace the MLP. `gate` is
    the activation of `gated` MLPs, `activation` of others. `norm_offset` is added to the weights of
    RMSNorms; `post_norms` follow attention and the MLP. Scores are divided by the square root of
    `score_size` (None: of the head size), and stay below `score_cap`. `sinks` join the softmax of
    each head. With `gated_attention` a gate multiplies the output of each head. With `interleaved`,
    features of a head that rotate together are adjacent. `latent` makes queries, keys and values
    from narrow widths.
    """

    width: int
    heads: int
    kv_heads: int
    head_size: int
    mlp: int
    layers: int
    norm: Literal["rms", "layer"]
    gated: bool
    bias: bool
    qkv_bias: bool | None = None
    key_bias: bool = True
    qk_norm: bool = False
    wide_norm: bool = False
    layer_scale: float | None = None
    eps: float = EPSILON
    activation: Activation | Literal["squared_relu"] = "gelu"
    gate: GateActivation = "silu"
    post_norms: bool = False
    norm_offset: float = 0.0
    score_size: float | None = None
    score_cap: float | None = None
    sinks: bool = False
    output_bias: bool | None = None
    gated_attention: bool = False
    interleaved: bool = False
    latent: Mla | None = None
    moe: MoeShape | None = None

    @property
    def biased_qkv(self) -> bool:
        """Whether queries, keys and values have biases, by `qkv_bias` or `bias`."""
        return self.bias if self.qkv_bias is None else self.qkv_bias


def encoder_shape(model: EncoderBlocks) -> BlockShape:
    """Return the shape of an encoder's blocks: LayerNorm, plain MLP, biases, as many KV heads."""
    return BlockShape(
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


def _causal_shape(model: DecoderBlocks | HybridModel) -> BlockShape:
    """Return the common shape of decoder blocks and hybrid layers: RMSNorm, no biases."""
    return BlockShape(
        width=model.hidden,
        heads=model.heads,
        kv_heads=model.num_kv_heads,
        head_size=model.head_size,
        mlp=model.mlp_width,
        layers=model.layers,
        norm="rms",
        gated=model.gated_mlp,
        bias=False,
        qk_norm=model.qk_norm,
        eps=model.norm_eps,
    )


def decoder_shape(model: DecoderBlocks) -> BlockShape:
    """Return the shape of a decoder's blocks: RMSNorm, SwiGLU, no biases except `qkv_bias`."""
    return replace(_causal_shape(model), qkv_bias=model.qkv_bias)


def language_shape(model: DecoderModel, moe: MoeShape | None) -> BlockShape:
    """Return the shape of a language decoder's blocks, which have more options."""
    return replace(
        decoder_shape(model),
        gate=model.activation,
        post_norms=model.post_norms,
        norm_offset=float(model.norm_offset),
        score_size=model.query_pre_attn_scalar,
        score_cap=model.attention_softcap,
        sinks=model.attention_sinks,
        output_bias=model.output_bias,
        gated_attention=model.gated_attention,
        interleaved=model.rotary_interleaved,
        latent=model.mla,
        moe=moe,
    )


def hybrid_shape(model: HybridModel, moe: MoeShape | None) -> BlockShape:
    """Return the shape of a hybrid's layers: attention, MLP and experts."""
    return replace(
        _causal_shape(model),
        activation="squared_relu",
        gate="gelu_tanh" if model.activation == "gelu_tanh" else "silu",
        norm_offset=float(model.norm_offset),
        gated_attention=model.gated_attention,
        interleaved=model.rotary_interleaved,
        moe=moe,
    )


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


def norm_of(context: ParallelContext, shape: BlockShape) -> Norm:
    """Return a norm for the stream."""
    return Norm(context, shape.width, shape.norm, eps=shape.eps, offset=shape.norm_offset)


def attention_of(context: ParallelContext, shape: BlockShape, out_scale: float) -> Attention:
    """Return the attention of a block."""
    return Attention(
        context,
        width=shape.width,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_size=shape.head_size,
        bias=shape.bias if shape.output_bias is None else shape.output_bias,
        qkv_bias=shape.biased_qkv,
        key_bias=shape.key_bias,
        qk_norm=shape.qk_norm,
        wide_norm=shape.wide_norm,
        eps=shape.eps,
        norm_offset=shape.norm_offset,
        score_size=shape.score_size,
        score_cap=shape.score_cap,
        sinks=shape.sinks,
        gated=shape.gated_attention,
        interleaved=shape.interleaved,
        latent=shape.latent,
        out_scale=out_scale,
    )


def mlp_of(context: ParallelContext, shape: BlockShape, inner: int, out_scale: float) -> Mlp:
    """Return an MLP of a block, or its shared expert."""
    return Mlp(
        context,
        shape.width,
        inner,
        shape.width,
        gated=shape.gated,
        bias=shape.bias,
        activation=shape.activation,
        gate=shape.gate,
        out_scale=out_scale,
    )


def experts_of(
    context: ParallelContext, shape: BlockShape, moe: MoeShape, out_scale: float
) -> MoeMlp:
    """Return the experts of a block."""
    shared = mlp_of(context, shape, moe.model.shared, out_scale) if moe.model.shared else None
    return MoeMlp(
        context,
        moe,
        shape.width,
        gate=shape.gate if shape.gated else None,
        out_scale=out_scale,
        shared=shared,
    )


class Block(Layer):
    """Pre-norm transformer block."""

    def __init__(self, context: ParallelContext, shape: BlockShape, *, recompute: bool) -> None:
        super().__init__(recompute=recompute)
        out_scale = (2 * shape.layers) ** -0.5
        self.attention_norm = norm_of(context, shape)
        self.attention = attention_of(context, shape, out_scale)
        self.mlp_norm = norm_of(context, shape)
        # Norms of the outputs that are added to the stream.
        self.post_attention_norm = norm_of(context, shape) if shape.post_norms else None
        self.post_mlp_norm = norm_of(context, shape) if shape.post_norms else None
        self.attention_scale, self.mlp_scale = (
            None
            if shape.layer_scale is None
            else LayerScale(context, shape.width, shape.layer_scale)
            for _ in range(2)
        )
        self.mlp: Mlp | MoeMlp
        if shape.moe is None:
            self.mlp = mlp_of(context, shape, shape.mlp, out_scale)
        else:
            self.mlp = experts_of(context, shape, shape.moe, out_scale)

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
