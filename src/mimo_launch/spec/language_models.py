"""Language models: the keys that causal models share, and decoders.

Decides: keys, defaults and derived sizes; which layers have experts.
Relies on: `layers` for sections of their keys.
Leaves: hybrids to `hybrid`, what fits together to `checks`.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Literal, get_args

from pydantic import Field

from mimo_launch.spec.base import Count, Effective, Excluded, Layers, Strict, Tokens
from mimo_launch.spec.layers import (
    Mla,
    Moe,
    Mtp,
    Nope,
    PerLayerEmbeddings,
    QueryScaling,
    RopeScaling,
    SharedKeys,
    SlidingWindow,
)

# Latent attention has no projections of heads; its norms stand on the narrow widths, and it says
# itself what rotates.
_OF_HEADS = Excluded("mla")
_OF_ROTATION = Effective(needs="rope_theta", why="without `rope_theta` attention has no positions")
_OF_NORMS = Effective(needs="qk_norm", why="without `qk_norm` queries and keys have no norm")


class CausalModel(Strict):
    """Keys that models with causal attention share: the stream, attention heads and RMSNorms."""

    kind: str
    hidden: Count = Field(description="Width of the residual stream.", examples=[128])
    heads: Count = Field(description="Number of query heads.", examples=[4])
    kv_heads: Count | None = Field(None, description="Key/value heads; default `heads`.")
    head_dim: Count | None = Field(None, description="Size of a head; default hidden/heads.")
    mlp: Count | None
    rope_theta: float | None
    norm_eps: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        1e-5, description="Added to the mean square in every RMSNorm of the module."
    )
    moe: Moe | None = Field(
        None,
        description="Experts in place of the MLP: in the layers of a decoder that `every` and "
        "`first_dense` select, by default all, or in the layers `E` of a hybrid.",
        examples=["{experts: 8, top_k: 2, width: 256}"],
    )

    @property
    def deep_rows(self) -> int:
        """Number of layers that send rows besides the last one: none."""
        return 0

    @property
    def num_kv_heads(self) -> int:
        """Number of key/value heads, default applied."""
        return self.kv_heads or self.heads

    @property
    def head_size(self) -> int:
        """Size of one head, default applied."""
        return self.head_dim or self.hidden // self.heads

    @property
    def rotary_size(self) -> int:
        """Dimensions of a head that rotate with positions."""
        return self.head_size

    @property
    def query_parts(self) -> int:
        """Number of vectors of a query head: the query, and perhaps a gate."""
        return 1

    @property
    def mlp_width(self) -> int:
        """Width inside an MLP, default applied."""
        raise NotImplementedError

    @property
    def attends(self) -> bool:
        """Whether any layer has attention heads."""
        raise NotImplementedError

    @property
    def has_mlps(self) -> bool:
        """Whether any layer has a dense MLP."""
        raise NotImplementedError

    @property
    def gated_mlp(self) -> bool:
        """Whether MLPs, including experts, have a gate."""
        raise NotImplementedError

    def has_experts(self, layer: int) -> bool:
        """Return whether a layer, counted from 0, is a mixture of experts."""
        raise NotImplementedError


class LanguageModel(CausalModel):
    """Keys that language models add: words, axes of positions and further tokens."""

    speaks = True
    vocab: Tokens | Literal["digits"] = Field(
        description="Number of tokens, or `digits` for the vocabulary of that data set.",
        examples=["digits"],
    )
    vocab_multiple: Count = Field(
        128, description="The vocabulary is padded to a multiple of this, whatever tp is."
    )
    tied: bool = Field(False, description="Use the token embedding as the output layer.")
    mrope: Annotated[tuple[Count, Count, Count] | None, _OF_ROTATION, _OF_HEADS] = Field(
        None,
        description="Pairs of each head that rotate with time, height and width (M-RoPE, as in "
        "Qwen2-VL), head size x `rotary_factor` / 2 together; without it all rotate with the place "
        "in the sequence.",
        examples=["[16, 24, 24]"],
        strict=False,
    )
    mrope_interleaved: Annotated[
        bool,
        Effective(
            needs="mrope",
            why="without `mrope` all pairs of a head rotate with the place in the sequence",
        ),
    ] = Field(
        False,
        description="The axes of `mrope` take turns over the pairs of a head, as in Qwen3-VL, "
        "instead of following each other.",
    )
    rotary_factor: Annotated[float, Field(gt=0, le=1), _OF_ROTATION, _OF_HEADS] = Field(
        1.0,
        description="Part of each head that rotates with positions, its first dimensions; the "
        "others keep their values. 0.25 in Qwen3.5.",
    )
    rotary_interleaved: Annotated[bool, _OF_ROTATION, _OF_HEADS] = Field(
        False,
        description="Numbers of a head that rotate together are neighbours, as in GLM-4.1V; "
        "otherwise one is of the first half of those that rotate, the other of the second half.",
    )
    gated_attention: Annotated[bool, _OF_HEADS] = Field(
        False,
        description="Multiply the output of each attention head by the sigmoid of a gate, which "
        "is projected with its query, as in Qwen3.5.",
    )
    norm_offset: bool = Field(
        False,
        description="Norms multiply by 1 + weight instead of weight, as in Gemma and Qwen3.5.",
    )
    mtp: Mtp | None = Field(
        None,
        description="Multi-token prediction, as in DeepSeek-V3: while it trains, the model also "
        "learns to predict further tokens. A block is like the last one of a decoder; in a hybrid "
        "it is attention, then experts if the pattern has any, else an MLP.",
        examples=["{depth: 1, loss_weight: 0.3}"],
    )

    @property
    def rotary_size(self) -> int:
        """Dimensions of a head that rotate with positions."""
        return self.rotary_part(self.head_size)

    def rotary_part(self, head_size: int) -> int:
        """Return how many dimensions of a head of some size rotate with positions."""
        return int(head_size * self.rotary_factor)

    @property
    def query_parts(self) -> int:
        """Number of vectors of a query head: the query, and perhaps a gate."""
        return 1 + self.gated_attention


class DecoderBlocks(CausalModel):
    """Transformer blocks of Llama, Qwen2 or Qwen3 shape: RMSNorm, rotary positions, SwiGLU."""

    layers: Layers = Field(description="Number of transformer layers.", examples=[4])
    mlp: Count | None = Field(
        None, description="Width inside the MLP; default 8/3 x hidden, rounded up to 64."
    )
    qk_norm: Annotated[bool, _OF_HEADS] = Field(
        False, description="RMSNorm on each query and key head."
    )
    qkv_bias: Annotated[bool, _OF_HEADS] = Field(
        False, description="Biases of queries, keys and values, as in Qwen2."
    )
    rope_theta: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        10000.0, description="Base of the rotary position embedding."
    )
    rope_scaling: RopeScaling | None = Field(
        None,
        description="Rotary embedding as in Llama 3.1 and later, as in Gemma 3, or by YaRN.",
        examples=["{factor: 8.0, original_max_position_embeddings: 8192}"],
    )

    @property
    def mlp_width(self) -> int:
        """Width inside the MLP, default applied."""
        return self.mlp or -(-8 * self.hidden // (3 * 64)) * 64

    @property
    def attends(self) -> bool:
        """True: every layer attends."""
        return True

    @property
    def has_mlps(self) -> bool:
        """Whether any layer has a dense MLP."""
        return not all(self.has_experts(layer) for layer in range(self.layers))

    def has_experts(self, layer: int) -> bool:
        """Return whether experts replace the MLP of a layer."""
        return self.moe is not None and self.moe.is_in(layer)

    @property
    def gated_mlp(self) -> bool:
        """True: every MLP is SwiGLU."""
        return True


GateActivation = Literal["silu", "gelu_tanh", "clamped_silu"]
# Activations of MLPs without a gate.
UngatedActivation = Literal["squared_relu", "gelu_tanh_without_gate", "xielu"]
ActivationName = Literal[GateActivation, UngatedActivation]
NormKind = Literal["rms", "layer", "layer_without_bias"]


@lru_cache
def _key_layers(layers: int, own: int, full: frozenset[int] | None) -> Mapping[int, int | None]:
    """Return a source for each layer after the first `own`; layers in `full` have no window."""
    in_window = [full is not None and layer not in full for layer in range(layers)]
    last = {in_window[layer]: layer for layer in range(own)}
    return {layer: last.get(in_window[layer]) for layer in range(own, layers)}


class DecoderModel(DecoderBlocks, LanguageModel):
    """A decoder-only language model of Llama, Qwen or Gemma 3 shape (RMSNorm, RoPE, gated MLP)."""

    kind: Literal["decoder"]
    sliding_window: SlidingWindow | None = Field(
        None,
        description="Attention to the last tokens only in some layers, as in Gemma 3: cheaper on "
        "long sequences.",
        examples=["{size: 1024, full: [5, 11, 17, 23], rope_theta: 10000.0}"],
    )
    nope: Nope | None = Field(
        None,
        description="Layers without rotary positions, as every fourth one in SmolLM3, Llama 4 and "
        "Command A.",
        examples=["{layers: [3, 7, 11, 15]}"],
    )
    bidirectional_images: bool | Literal["in_windows"] = Field(
        False,
        description="The tokens of an image attend to each other in both directions, as in "
        "Gemma 3; in layers with windows as far as these reach back. `in_windows`: only in these "
        "layers, as in Gemma 4.",
    )
    bidirectional_prompts: bool = Field(
        False,
        description="The tokens before the first learnt one, rows included, attend to each other "
        "in both directions, also beyond the windows of layers, as in PaliGemma.",
    )
    mla: Mla | None = Field(
        None,
        description="Multi-head latent attention, as in DeepSeek-V3: queries, keys and values from "
        "narrow widths, sizes of values apart from those of keys.",
        examples=["{kv_rank: 512, q_rank: 1536, rope_head_dim: 64, v_head_dim: 128}"],
    )
    activation: ActivationName = Field(
        "silu",
        description="Activation of the gate in MLPs and experts: SiLU (SwiGLU), GELU approximated "
        "by tanh (Gemma), or x sigmoid(1.702 x) of numbers clamped at 7, times 1 more than what "
        "it gates (GPT-OSS). Or that of MLPs without a gate: `relu(x)^2` (Arcee), the same GELU "
        "(StarCoder2), or xIELU, with two learned numbers for each MLP (Apertus).",
    )
    mlp_bias: bool = Field(
        False,
        description="Biases of all maps in MLPs, as in StarCoder2; for those of experts see "
        "`moe.bias`.",
    )
    norm: NormKind = Field(
        "rms",
        description="Every norm but those of heads: RMSNorm, LayerNorm, or LayerNorm without bias, "
        "as in Command R.",
    )
    parallel: bool = Field(
        False,
        description="Attention and MLP of a layer read the same stream, by one norm, as in "
        "Command R.",
    )
    post_norms: bool = Field(
        False,
        description="Norms also on what attention and MLPs add to the stream, as in Gemma 3.",
    )
    pre_norms: bool = Field(
        True,
        description="Norms before attention and MLPs; without them only `post_norms` normalise, "
        "as in OLMo 2.",
    )
    wide_qk_norm: Annotated[bool, _OF_NORMS, _OF_HEADS] = Field(
        False,
        description="`qk_norm` normalises all query heads of a token together, and all key heads, "
        "as in OLMo 2, instead of each head.",
    )
    rotated_qk_norm: Annotated[
        bool,
        Effective(
            needs="qk_norm",
            unless="wide_qk_norm",
            why="without `qk_norm`, or with `wide_qk_norm`, no head has a norm",
        ),
        _OF_HEADS,
    ] = Field(
        False,
        description="`qk_norm` normalises heads after their rotation, as in Hunyuan, not before.",
    )
    l2_qk_norm: Annotated[
        bool, Effective(unless="qk_norm", why="`qk_norm` normalises queries and keys"), _OF_HEADS
    ] = Field(
        False,
        description="Queries and keys of layers with rotary positions are divided by their root "
        "mean square, as in Llama 4: a norm without weights.",
    )
    clip_qkv: Annotated[float | None, Field(gt=0, allow_inf_nan=False), _OF_HEADS] = Field(
        None,
        description="Queries, keys and values below minus this number or above it take that value, "
        "as in DBRX and OLMoE: after `wide_qk_norm`, before norms of single heads and rotation.",
        examples=[8.0],
    )
    value_norm: Annotated[bool, _OF_HEADS] = Field(
        False,
        description="Each value head is divided by its root mean square, a norm without weights, "
        "as in Gemma 4.",
    )
    values_from_keys: Annotated[bool, _OF_HEADS] = Field(
        False,
        description="In layers without windows the projection of keys, before norm and rotation, "
        "is also that of values, as in larger Gemma 4.",
    )
    shared_keys: Annotated[SharedKeys | None, _OF_HEADS] = Field(
        None,
        description="The last layers attend to keys and values of an earlier layer, as in Gemma 4 "
        "E2B.",
        examples=["{layers: 20, mlp: 12288}"],
    )
    per_layer_embeddings: PerLayerEmbeddings | None = Field(
        None,
        description="Further vectors of each token, one for each layer, as in Gemma 4 E2B.",
        examples=["{width: 256}"],
    )
    layer_scalar: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        None,
        description="After each layer the stream is multiplied by a number of the layer, at first "
        "this one, which does not train, as in Gemma 4.",
        examples=[1.0],
    )
    residual_scale: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        None,
        description="Factor on what attention and MLPs add to the stream, as in Granite.",
        examples=[0.22],
    )
    embedding_scale: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        None,
        description="Factor on the embeddings of tokens, not on rows of encoders; in Gemma the "
        "square root of `hidden`.",
        examples=[16.0],
    )
    scaled_rows: bool = Field(
        False,
        description="`embedding_scale` is a factor on rows of encoders as well, as in HyperCLOVA X "
        "SEED Think.",
    )
    output_bias: bool = Field(
        False, description="A bias of the projection after attention, as in GPT-OSS."
    )
    attention_sinks: bool = Field(
        False,
        description="A learned logit per head that joins the softmax of every token's scores and "
        "has no value, as in GPT-OSS: a token may attend to little.",
    )
    query_pre_attn_scalar: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        None,
        description="Attention scores are divided by the square root of this number; default "
        "the size of a head.",
        examples=[168.0],
    )
    query_scaling: QueryScaling | None = Field(
        None,
        description="The query of a token at position p of its document is multiplied by "
        "1 + beta ln(1 + floor(p / length)), as in Ministral 3.",
        examples=["{beta: 0.1, length: 16384}"],
    )
    attention_softcap: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        None,
        description="Attention scores s become c tanh(s / c), c this number, as in Gemma 2: none "
        "is larger than c.",
        examples=[50.0],
    )
    logit_softcap: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        None,
        description="The same of the logits of words, as in Gemma 2.",
        examples=[30.0],
    )

    logit_scale: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        None,
        description="Factor on the logits of words, as in Granite and Command R.",
        examples=[0.0625],
    )

    @property
    def key_layers(self) -> Mapping[int, int | None]:
        """The layers without keys of their own, each with the earlier layer that has them, if any.

        It is the last one that sees the same tokens.
        """
        shared, window = self.shared_keys, self.sliding_window
        if shared is None:
            return {}
        own = max(0, self.layers - shared.layers)
        return _key_layers(self.layers, own, None if window is None else frozenset(window.full))

    @property
    def rotary_size(self) -> int:
        """Dimensions of a head that rotate with positions."""
        return self.mla.rope_head_dim if self.mla else self.rotary_part(self.head_size)

    @property
    def gated_mlp(self) -> bool:
        """Whether MLPs have a gate."""
        return self.activation not in get_args(UngatedActivation)
