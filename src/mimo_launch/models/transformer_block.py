"""The transformer block of encoders and decoders: attention, then an MLP or experts.

Decides: the order of norms and the two MLP shapes (plain, gated); which tokens of a replica each tp
rank sends to the experts, and how their answers are combined.
Relies on: `layers` for layers that know their tp group, `layers.router` and `layers.experts`.
Leaves: the rest of a model to `vision_encoder` and `language_model`, sharding the experts over
their replicas to `build`.

Legend: N tokens of a replica's cp rank, n those of this tp rank, D width, k choices of a token.

tp ranks that hold the same tokens (without sequence parallelism) each route a part of them;
otherwise every token would travel once per tp rank.
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from mimo_launch.comm.autograd_collectives import gather_rows, split_rows
from mimo_launch.kinds.layer import even_cut
from mimo_launch.layers.attention import Attention
from mimo_launch.layers.attention_contexts import AttentionContext, SequenceContext
from mimo_launch.layers.experts import Dispatch, Experts, PlannedDispatch, from_experts, to_experts
from mimo_launch.layers.linear import ColumnLinear, Norm, RowLinear
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.pointwise import ACTIVATIONS, EPSILON, GATED
from mimo_launch.layers.recompute import recomputed
from mimo_launch.layers.router import Choice, Router, TokenShares
from mimo_launch.layers.scales import LayerScale, TokenGate
from mimo_launch.spec.encoders import Activation, EncoderBlocks
from mimo_launch.spec.language_models import (
    DecoderBlocks,
    DecoderModel,
    GateActivation,
    HybridModel,
    Mla,
    Moe,
)


@dataclass(frozen=True, slots=True)
class MoeShape:
    """A mixture of experts; `coefficient` is that of its balance loss over a step's samples."""

    model: Moe
    coefficient: float


class MoeMlp(nn.Module):
    """Experts for each token, and an MLP for all of them if the model shares one: [n, D]."""

    def __init__(
        self,
        context: ParallelContext,
        shape: MoeShape,
        width: int,
        *,
        gate: GateActivation | None,
        out_scale: float,
        shared: nn.Module | None,
    ) -> None:
        super().__init__()
        self.context, self.num_experts = context, shape.model.experts
        self.router = Router(context, shape.model, width, shape.coefficient)
        self.experts = Experts(context, shape.model, width, gate=gate, out_scale=out_scale)
        self.shared = shared
        self.shared_gate = TokenGate(context, width) if shape.model.gates_shared else None

    def forward(self, x_nD: Tensor, attention_context: AttentionContext) -> Tensor:
        """Return the weighted answers of every token's experts.

        Without a routing context the load is not balanced.
        """
        routing = None
        if isinstance(attention_context, SequenceContext):
            routing = attention_context.routing
        tokens = None if routing is None else self._tokens(routing.shares)
        own_nD, sizes = self._own(x_nD)
        choice = self.router(own_nD, tokens, None if routing is None else routing.loss)
        planned = PlannedDispatch(self.context, choice.experts, self.num_experts)
        # While the host waits for the sizes of the dispatch, the device computes this.
        shared = None if self.shared is None else self.shared(x_nD)
        if shared is not None and self.shared_gate is not None:
            shared = self.shared_gate(x_nD, shared)
        routed = self._answers(own_nD, choice, planned.dispatch())
        if sizes is not None:
            routed = gather_rows(routed, sizes, self.context.tp)
        return routed if shared is None else routed + shared

    def _own(self, x_nD: Tensor) -> tuple[Tensor, tuple[int, ...] | None]:
        """Return the tokens that this tp rank routes; if they are a part, also the sizes of all."""
        tp = self.context.tp
        if tp.size == 1 or self.context.sequence_parallel:
            return x_nD, None
        sizes = tuple(len(even_cut(x_nD.shape[0], tp.size, index)) for index in range(tp.size))
        return split_rows(x_nD, sizes, tp), sizes

    def _tokens(self, shares_BS: Tensor) -> TokenShares:
        """Return the samples of this tp rank's tokens and their shares of them."""
        tp, (samples, positions) = self.context.tp, shares_BS.shape
        part = even_cut(samples * positions, tp.size, tp.index)
        places = torch.arange(part.start, part.stop, device=shares_BS.device)
        own = shares_BS.flatten()[part.start : part.stop]
        return TokenShares(samples, places // positions, own)

    def _answers(self, x_nD: Tensor, choice: Choice, dispatch: Dispatch) -> Tensor:
        arrived = to_experts(x_nD, dispatch, self.context)
        answers = self.experts(arrived, dispatch.counts)
        answers = from_experts(answers, dispatch, self.context)
        weights_n1k = choice.weights.to(answers.dtype).unsqueeze(1)
        per_token = answers.view(*choice.weights.shape, x_nD.shape[1])
        return torch.bmm(weights_n1k, per_token).squeeze(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockShape:
    """Sizes of a block; `layers` is the depth of the whole model, which scales residual weights.

    Queries, keys and values have biases by `qkv_bias`, the output of attention by `output_bias`;
    where one is None, as all linear layers do. `key_bias` false leaves out that of keys (Whisper).
    With `wide_norm`, `qk_norm` is that of all heads together. `layer_scale` is what the weights
    begin as that scale each addition. Experts, `moe`, replace the MLP. `gate` is the activation
    where MLPs are `gated`, `activation` where they are not. `norm_offset` is added to the weights
    of RMSNorms; `post_norms` stand behind attention and the MLP. Scores are divided by the square
    root of `score_size` (None: of the head size). `sinks` join the softmax of each head. With
    `gated_attention` a gate multiplies the output of each head. Queries, keys and values may be
    made of narrow widths, `latent`.
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
    sinks: bool = False
    output_bias: bool | None = None
    gated_attention: bool = False
    latent: Mla | None = None
    moe: MoeShape | None = None

    @property
    def biased_qkv(self) -> bool:
        """Whether queries, keys and values have biases: only they, or all linear layers."""
        return self.bias if self.qkv_bias is None else self.qkv_bias


def encoder_shape(model: EncoderBlocks) -> BlockShape:
    """Return the shape of our encoders' blocks: LayerNorm, plain MLP, biases, whole heads."""
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


def decoder_shape(model: DecoderBlocks) -> BlockShape:
    """Return the shape of a decoder's blocks: RMSNorm, SwiGLU, no biases but those of its keys."""
    return BlockShape(
        width=model.hidden,
        heads=model.heads,
        kv_heads=model.num_kv_heads,
        head_size=model.head_size,
        mlp=model.mlp_width,
        layers=model.layers,
        norm="rms",
        gated=True,
        bias=False,
        qkv_bias=model.qkv_bias,
        qk_norm=model.qk_norm,
        eps=model.norm_eps,
    )


def language_shape(model: DecoderModel, moe: MoeShape | None) -> BlockShape:
    """Return the shape of the blocks of a decoder of language, which has more keys."""
    return replace(
        decoder_shape(model),
        gate=model.activation,
        post_norms=model.post_norms,
        norm_offset=float(model.norm_offset),
        score_size=model.query_pre_attn_scalar,
        sinks=model.attention_sinks,
        output_bias=model.output_bias,
        gated_attention=model.gated_attention,
        latent=model.mla,
        moe=moe,
    )


def hybrid_shape(model: HybridModel, moe: MoeShape | None) -> BlockShape:
    """Return the shape of the layers of a hybrid: attention, MLP and experts."""
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
        activation="squared_relu",
        gate="gelu_tanh" if model.activation == "gelu_tanh" else "silu",
        norm_offset=float(model.norm_offset),
        gated_attention=model.gated_attention,
        moe=moe,
    )


class Mlp(nn.Module):
    """Gated MLP, or one with an activation, its inner width cut over tp: [n, D] -> [n, D]."""

    def __init__(
        self,
        context: ParallelContext,
        width: int,
        inner: int,
        out: int,
        *,
        gated: bool,
        bias: bool,
        activation: Activation | Literal["squared_relu"] = "gelu",
        gate: GateActivation = "silu",
        out_scale: float = 1.0,
    ) -> None:
        super().__init__()
        self.context = context
        self.between = GATED[gate] if gated else ACTIVATIONS[activation]
        outputs = {"gate": inner, "up": inner} if gated else {"up": inner}
        self.inputs = ColumnLinear(context, width, outputs, bias=bias)
        self.output = RowLinear(context, "down", inner, out, bias=bias, scale=out_scale)

    def forward(self, x_nD: Tensor) -> Tensor:
        """Return the MLP of every token."""
        hidden = self.inputs(self.context.enter(x_nD))
        # The same name: without a backward, the input is freed before the next product.
        hidden = self.context.fused(self.between, hidden)
        out: Tensor = self.output(hidden)
        return out


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
    """Return a norm of the stream."""
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
        sinks=shape.sinks,
        gated=shape.gated_attention,
        latent=shape.latent,
        out_scale=out_scale,
    )


def mlp_of(context: ParallelContext, shape: BlockShape, inner: int, out_scale: float) -> Mlp:
    """Return an MLP of a block, or the expert that its tokens share."""
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
        # On what each adds to the stream.
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
