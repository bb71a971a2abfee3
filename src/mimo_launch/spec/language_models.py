"""Language models: what they have in common, decoders, hybrids, and their experts.

Decides: keys, defaults and derived sizes; which layers have experts.
Relies on: `base`.
Leaves: which letters a pattern may have, and what fits together, to `checks`.
"""

import math
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from mimo_launch.spec.base import (
    MAX_COUNT,
    MAX_LAYERS,
    Count,
    CountFrom0,
    Layers,
    Places,
    Strict,
    Tokens,
)


class ExpertGrid(Strict):
    """A second factorisation of the ranks of each pipeline stage, for the experts alone.

    What is left of those ranks holds replicas: ep * tp * replicas = tp * cp * dp of the module.
    """

    ep: Places = Field(1, description="Expert-parallel size: the experts of a layer are split.")
    tp: Places = Field(
        1, description="Tensor-parallel size of the experts: the width of each is split."
    )


class Moe(Strict):
    """A mixture of experts in place of the MLP of a layer: each token goes to `top_k` of them.

    An expert is an MLP as the dense layers of the model have it. No token is dropped, however many
    choose the same expert.
    """

    # Keys that change how weights are trained, but not what is computed from them.
    TRAINING: ClassVar[frozenset[str]] = frozenset({"aux_loss"})

    experts: Places = Field(description="Number of experts of a layer.", examples=[8])
    top_k: Count = Field(description="Experts that each token goes to.", examples=[2])
    width: Count = Field(description="Width inside an expert.", examples=[256])
    score: Literal["softmax", "sigmoid"] = Field(
        "softmax",
        description="How the router turns its logits into scores, over all experts: `softmax` as "
        "in Mixtral and Qwen3, `sigmoid` as in DeepSeek-V3.",
    )
    normalize: bool = Field(
        True, description="Divide the scores of the chosen experts by their sum."
    )
    scale: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        1.0, description="Factor on the scores of the chosen experts."
    )
    groups: Count = Field(
        1,
        description="Equal groups of experts, of which each token goes to `top_groups`: those with "
        "the largest sums of their two best scores, as in DeepSeek-V3.",
        examples=[8],
    )
    top_groups: Count = Field(1, description="Groups that each token goes to.", examples=[4])
    shared: CountFrom0 = Field(
        0, description="Width of a shared expert, which every token goes through too; 0: none."
    )
    shared_gate: bool = Field(
        False,
        description="Multiply the output of the shared expert by the sigmoid of a number that a "
        "linear map makes of each token, as in Qwen3.5.",
    )
    bias: bool = Field(
        False, description="Biases of the router and of every expert, as in GPT-OSS."
    )
    aux_loss: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        0.01, description="Coefficient of the loss that balances the load of the experts."
    )
    bias_update_rate: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = Field(
        None,
        description="Each expert has a bias that is added to its score while experts are chosen, "
        "and moves by this towards an even load after each step, as in DeepSeek-V3; 0: it stays "
        "as loaded; `null`: there is no bias.",
        examples=[0.001],
    )
    every: Count = Field(
        1, description="Every n-th layer of a decoder has experts; the others have the MLP."
    )
    first_dense: CountFrom0 = Field(
        0, description="Number of layers at the start of a decoder that always have the MLP."
    )

    def architecture(self) -> dict[str, Any]:
        """Return the keys that decide what is computed; a rate of training becomes 0."""
        kept = self.model_dump(exclude=set(self.TRAINING))
        if self.bias_update_rate is not None:
            kept["bias_update_rate"] = 0.0
        return kept

    @property
    def gates_shared(self) -> bool:
        """Whether there is a shared expert with a gate."""
        return self.shared_gate and self.shared > 0

    def is_in(self, layer: int) -> bool:
        """Return whether a layer of a decoder, counted from 0, has experts."""
        return layer >= self.first_dense and (layer + 1) % self.every == 0


class RopeScaling(Strict):
    """Slower turns for long wavelengths, so that a model sees further than it was first trained to.

    The names are those of the settings of transformers. `linear` uses the factor only.
    """

    # The keys that each type uses besides `factor`.
    USED: ClassVar[dict[str, frozenset[str]]] = {
        "linear": frozenset(),
        "llama3": frozenset(
            {"low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}
        ),
        "yarn": frozenset(
            {"beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate"}
            | {"original_max_position_embeddings"}
        ),
    }

    rope_type: Literal["llama3", "linear", "yarn"] = Field(
        "llama3",
        description="`llama3`: long wavelengths rotate slower, as in Llama 3.1; `linear`: all do, "
        "as in Gemma 3; `yarn`: long ones do, and scores grow, as in GPT-OSS and DeepSeek-V3.",
    )
    factor: Annotated[float, Field(ge=1, allow_inf_nan=False)] = Field(
        description="How many times slower the longest wavelengths rotate.", examples=[8.0]
    )
    low_freq_factor: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        1.0, description="Wavelengths above original length / this rotate `factor` times slower."
    )
    high_freq_factor: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        4.0,
        description="Wavelengths below original length / this do not change; those in between are "
        "interpolated.",
    )
    original_max_position_embeddings: Count = Field(
        8192, description="Original length: that of sequences before the scaling, in tokens."
    )
    beta_fast: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        32.0,
        description="`yarn`: pairs of a head that turn more often than this within the original "
        "length do not change.",
    )
    beta_slow: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        1.0,
        description="`yarn`: pairs that turn less often than this rotate `factor` times slower; "
        "those in between are interpolated.",
    )
    truncate: bool = Field(
        True, description="`yarn`: these two bounds are rounded outwards to whole pairs."
    )
    attention_factor: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        None,
        description="`yarn`: rotated queries and keys are multiplied by this; default "
        "0.1 ln(factor) + 1, or what `mscale` and `mscale_all_dim` say.",
    )
    mscale: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = Field(
        None,
        description="`yarn`: with `mscale_all_dim`, the attention factor is "
        "(0.1 mscale ln(factor) + 1) / (0.1 mscale_all_dim ln(factor) + 1).",
    )
    mscale_all_dim: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = Field(
        None, description="`yarn`: see `mscale`."
    )

    @property
    def stretch(self) -> float:
        """The factor on rotated queries and keys, default applied (arXiv:2309.00071, section 3.4).

        That of other types is 1.
        """
        if self.rope_type != "yarn":
            return 1.0
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return self.stretch_by(self.mscale) / self.stretch_by(self.mscale_all_dim)
        return self.stretch_by(1.0)

    def stretch_by(self, scale: float) -> float:
        """Return 0.1 scale ln(factor) + 1."""
        return 0.1 * scale * math.log(self.factor) + 1.0


class CausalModel(Strict):
    """What models of causal attention have in common: a stream, attention heads and RMSNorms."""

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
    def gated_mlp(self) -> bool:
        """Whether MLPs, including experts, are SwiGLU; otherwise they are squared ReLU."""
        raise NotImplementedError


class LanguageModel(CausalModel):
    """What language models have besides: words, and perhaps experts."""

    vocab: Tokens | Literal["digits"] = Field(
        description="Number of tokens, or `digits` for the vocabulary of that data set.",
        examples=["digits"],
    )
    vocab_multiple: Count = Field(
        128, description="The vocabulary is padded to a multiple of this, whatever tp is."
    )
    tied: bool = Field(False, description="Use the token embedding as the output layer.")
    moe: Moe | None = Field(
        None,
        description="Experts in place of the MLP: in the layers of a decoder that `every` and "
        "`first_dense` select, by default all, or in the layers `E` of a hybrid.",
        examples=["{experts: 8, top_k: 2, width: 256}"],
    )
    mrope: tuple[Count, Count, Count] | None = Field(
        None,
        description="Pairs of each head that rotate with time, height and width (M-RoPE, as in "
        "Qwen2-VL), head size x `rotary_factor` / 2 together; without it all rotate with the place "
        "in the sequence.",
        examples=["[16, 24, 24]"],
        strict=False,
    )
    mrope_interleaved: bool = Field(
        False,
        description="The axes of `mrope` take turns over the pairs of a head, as in Qwen3-VL, "
        "instead of following each other.",
    )
    rotary_factor: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0,
        description="Part of each head that rotates with positions, its first dimensions; the "
        "others keep their values. 0.25 in Qwen3.5.",
    )
    gated_attention: bool = Field(
        False,
        description="Multiply the output of each attention head by the sigmoid of a gate, which "
        "is projected with its query, as in Qwen3.5.",
    )
    norm_offset: bool = Field(
        False,
        description="Norms multiply by 1 + weight instead of weight, as in Gemma and Qwen3.5.",
    )

    @property
    def rotary_size(self) -> int:
        """Dimensions of a head that rotate with positions."""
        return int(self.head_size * self.rotary_factor)

    @property
    def query_parts(self) -> int:
        """Number of vectors of a query head: the query, and perhaps a gate."""
        return 1 + self.gated_attention

    @property
    def has_mlps(self) -> bool:
        """Whether any layer has a dense MLP."""
        raise NotImplementedError

    def has_experts(self, layer: int) -> bool:
        """Return whether a layer, counted from 0, is a mixture of experts."""
        raise NotImplementedError


class DecoderBlocks(CausalModel):
    """Transformer blocks of Llama, Qwen2 or Qwen3 shape: RMSNorm, rotary positions, SwiGLU."""

    layers: Layers = Field(description="Number of transformer layers.", examples=[4])
    mlp: Count | None = Field(
        None, description="Width inside the MLP; default 8/3 x hidden, rounded up to 64."
    )
    qk_norm: bool = Field(False, description="RMSNorm on each query and key head.")
    qkv_bias: bool = Field(False, description="Biases of queries, keys and values, as in Qwen2.")
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
    def gated_mlp(self) -> bool:
        """True: every MLP is SwiGLU."""
        return True


class SlidingWindow(Strict):
    """Attention to the last tokens only, in all layers but some."""

    # With one token, queries and keys would have no gradients.
    size: Annotated[int, Field(ge=2, le=MAX_COUNT)] = Field(
        description="Tokens that a token attends to: itself and those before it.", examples=[1024]
    )
    full: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        (),
        description="The layers, counted from 0, that attend to whole sequences all the same.",
        examples=["[5, 11, 17, 23]"],
        strict=False,
    )
    rope_theta: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        None,
        description="Base of the rotary position embedding in layers with windows, which is not "
        "scaled then; default that of the other layers, with its scaling.",
        examples=[10000.0],
    )


class Mla(Strict):
    """Multi-head latent attention: keys and values, and perhaps queries, from a narrow width.

    A query or key has `head_dim` numbers, of which `rope_head_dim` rotate; keys share those.
    """

    kv_rank: Count = Field(
        description="Narrow width that keys and values are made of.", examples=[512]
    )
    q_rank: Count | None = Field(
        None,
        description="Narrow width that queries are made of; without it it is the stream.",
        examples=[1536],
    )
    rope_head_dim: Count = Field(64, description="Numbers of a query or key that rotate.")
    v_head_dim: Count = Field(128, description="Size of a value.")
    interleaved: bool = Field(
        True,
        description="Neighbours are the pairs that rotate in the weights, as in DeepSeek-V3, "
        "instead of number i and number i + half.",
    )
    norm_eps: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        1e-6, description="Added to the mean square in the RMSNorms of the narrow widths."
    )


GateActivation = Literal["silu", "gelu_tanh", "clamped_silu"]


class DecoderModel(DecoderBlocks, LanguageModel):
    """A decoder-only language model of Llama, Qwen or Gemma 3 shape (RMSNorm, RoPE, gated MLP)."""

    kind: Literal["decoder"]
    sliding_window: SlidingWindow | None = Field(
        None,
        description="Attention to the last tokens only in some layers, as in Gemma 3: cheaper on "
        "long sequences.",
        examples=["{size: 1024, full: [5, 11, 17, 23], rope_theta: 10000.0}"],
    )
    bidirectional_images: bool = Field(
        False,
        description="The tokens of an image attend to each other in both directions, as in "
        "Gemma 3; in layers with windows as far as these reach back.",
    )
    mla: Mla | None = Field(
        None,
        description="Multi-head latent attention, as in DeepSeek-V3: queries, keys and values from "
        "narrow widths, sizes of values apart from those of keys.",
        examples=["{kv_rank: 512, q_rank: 1536, rope_head_dim: 64, v_head_dim: 128}"],
    )
    activation: GateActivation = Field(
        "silu",
        description="Activation of the gate in MLPs and experts: SiLU (SwiGLU), GELU approximated "
        "by tanh (Gemma), or x sigmoid(1.702 x) of numbers clamped at 7, times 1 more than what "
        "it gates (GPT-OSS).",
    )
    post_norms: bool = Field(
        False,
        description="RMSNorms also on what attention and MLPs add to the stream, as in Gemma 3.",
    )
    embedding_scale: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        None,
        description="Factor on the embeddings of tokens, not on rows of encoders; in Gemma the "
        "square root of `hidden`.",
        examples=[16.0],
    )
    output_bias: bool = Field(
        False, description="A bias of the projection behind attention, as in GPT-OSS."
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

    @property
    def rotary_size(self) -> int:
        """Dimensions of a head that rotate with positions."""
        return self.mla.rope_head_dim if self.mla else int(self.head_size * self.rotary_factor)

    @property
    def has_mlps(self) -> bool:
        """Whether any layer has a dense MLP."""
        return not all(self.has_experts(layer) for layer in range(self.layers))

    def has_experts(self, layer: int) -> bool:
        """Return whether experts replace the MLP of a layer."""
        return self.moe is not None and self.moe.is_in(layer)


# The letters of a pattern: as in Megatron-LM's `--hybrid-override-pattern` and in Nemotron-H.
MAMBA, DELTANET, ATTENTION, MLP, EXPERTS = "M", "G", "*", "-", "E"
# The keys with the sizes of recurrent layers, by letter.
RECURRENT = {MAMBA: "mamba", DELTANET: "deltanet"}


class MambaSizes(Strict):
    """Sizes of the Mamba-2 layers (arXiv:2405.21060); groups share B and C as GQA shares keys."""

    heads: Count = Field(description="Heads of the state space model.", examples=[8])
    head_dim: Count = Field(64, description="Channels of a head.")
    state: Count = Field(128, description="Size of the state of a head, per channel.")
    groups: Count = Field(
        8, description="Groups of heads with a B and a C of their own; the norm is over a group."
    )
    conv: Count = Field(4, description="Tokens that the causal convolution sees.")
    chunk: Count = Field(
        128,
        description="Tokens computed at once, as in attention; results do not depend on it.",
    )
    min_step: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        0.0,
        description="Lower limit of the time steps: the first value of `dt_limit` in mamba-ssm; "
        "0.001 in Nemotron-H as transformers computes it.",
    )

    @property
    def inner(self) -> int:
        """Number of channels of all heads."""
        return self.heads * self.head_dim

    @property
    def shared(self) -> int:
        """Width of B, and of C, over all groups."""
        return self.groups * self.state

    def with_groups(self, groups: int) -> "MambaSizes":
        """Return the same sizes with another number of groups."""
        return self.model_copy(update={"groups": groups})


class DeltaNetSizes(Strict):
    """Sizes of the Gated DeltaNet layers (arXiv:2412.06464)."""

    heads: Count = Field(description="Value heads, each with a state.", examples=[8])
    key_heads: Count | None = Field(
        None,
        description="Heads of queries and keys, each for a group of value heads; default `heads`.",
    )
    head_dim: Count = Field(128, description="Size of a value.")
    key_dim: Count = Field(128, description="Size of a query, and of a key.")
    conv: Count = Field(4, description="Tokens that the causal convolution sees.")
    chunk: Count = Field(64, description="Tokens computed at once; results do not depend on it.")

    @property
    def groups(self) -> int:
        """Number of groups of heads that share queries and keys."""
        return self.key_heads or self.heads

    @property
    def state(self) -> int:
        """Numbers of state per number of a value."""
        return self.key_dim

    @property
    def inner(self) -> int:
        """Width of all values."""
        return self.heads * self.head_dim

    @property
    def shared(self) -> int:
        """Width of all queries, and of all keys."""
        return self.groups * self.state

    def architecture(self) -> dict[str, Any]:
        """Return the keys that decide what is computed, defaults applied."""
        return self.model_dump(exclude={"chunk"}) | {"key_heads": self.groups}

    def with_groups(self, groups: int) -> "DeltaNetSizes":
        """Return the same sizes with another number of groups."""
        return self.model_copy(update={"key_heads": groups})


# Both have heads in groups, a convolution, chunks, and the widths that follow.
RecurrentSizes = MambaSizes | DeltaNetSizes


class HybridModel(LanguageModel):
    """A language model of Nemotron-H shape (arXiv:2504.03624), or of Qwen3.5 shape.

    Each layer is a norm, one mixer and a residual connection.
    """

    kind: Literal["hybrid"]
    pattern: Annotated[str, Field(pattern=r"^[MG*E-]+$", max_length=MAX_LAYERS)] = Field(
        description="The layers, one letter each: `M` Mamba-2, `G` Gated DeltaNet, `*` attention, "
        "`-` MLP, `E` experts.",
        examples=['"M-M*-M-"'],
        json_schema_extra={
            "expected": "layers by letter: `M`, `G`, `*`, `-` and `E`, as in `M-M*-ME`"
        },
    )
    mamba: MambaSizes | None = Field(
        None,
        description="Sizes of the Mamba-2 layers.",
        examples=["{heads: 8, head_dim: 32, state: 16, groups: 2}"],
    )
    deltanet: DeltaNetSizes | None = Field(
        None,
        description="Sizes of the Gated DeltaNet layers.",
        examples=["{heads: 8, key_heads: 4, head_dim: 32, key_dim: 32}"],
    )
    mlp: Count | None = Field(None, description="Width inside an MLP; default 4 x hidden.")
    activation: Literal["squared_relu", "silu", "gelu_tanh"] = Field(
        "squared_relu",
        description="Activation of MLPs and experts: `relu(x)^2` as in Nemotron-H; or that of a "
        "gate, SiLU (SwiGLU) or GELU approximated by tanh.",
    )
    qk_norm: bool = Field(False, description="RMSNorm on each query and key head.")
    rope_theta: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        None,
        description="Base of the rotary position embedding of attention; without it attention has "
        "no positions, as in Nemotron-H.",
    )

    def sizes_of(self, letter: str) -> RecurrentSizes | None:
        """Return the sizes of the layers of a letter, if they are recurrent and have any."""
        key = RECURRENT.get(letter)
        found: RecurrentSizes | None = None if key is None else getattr(self, key)
        return found

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(self.pattern)

    @property
    def mlp_width(self) -> int:
        """Width inside an MLP, default applied."""
        return self.mlp or 4 * self.hidden

    @property
    def gated_mlp(self) -> bool:
        """Whether MLPs have a gate."""
        return self.activation != "squared_relu"

    @property
    def attends(self) -> bool:
        """Whether the pattern has attention."""
        return ATTENTION in self.pattern

    @property
    def has_mlps(self) -> bool:
        """Whether the pattern has MLPs."""
        return MLP in self.pattern

    def has_experts(self, layer: int) -> bool:
        """Return whether the pattern has experts at a layer."""
        return self.pattern[layer] == EXPERTS
