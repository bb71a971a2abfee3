"""Language models: what they have in common, and decoders.

Decides: sizes, defaults and derived sizes.
Relies on: `base`, `experts`.
Leaves: hybrids to `hybrid`, what fits together to `checks`.
"""

from typing import Annotated, Literal

from pydantic import Field

from mimo_launch.spec.base import Count, Layers, Strict, Tokens
from mimo_launch.spec.experts import Moe


class RopeScaling(Strict):
    """Slower turns for long wavelengths, so that a model sees further than it was first trained to.

    As in Llama 3.1 (`rope_type: llama3` in transformers); the names are those of its settings.
    """

    factor: Annotated[float, Field(ge=1, allow_inf_nan=False)] = Field(
        description="How much slower the longest wavelengths turn.", examples=[8.0]
    )
    low_freq_factor: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        1.0, description="Wavelengths above original length / this turn `factor` times slower."
    )
    high_freq_factor: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        4.0, description="Wavelengths below original length / this stay; in between a mixture."
    )
    original_max_position_embeddings: Count = Field(
        8192, description="Length of sequences in the first training, in tokens."
    )


class LanguageModel(Strict):
    """What language models have in common: words, a stream, attention heads and RMSNorms."""

    kind: str
    hidden: Count = Field(description="Width of the residual stream.", examples=[128])
    heads: Count = Field(description="Number of query heads.", examples=[4])
    kv_heads: Count | None = Field(None, description="Key/value heads; default `heads`.")
    head_dim: Count | None = Field(None, description="Size of a head; default hidden/heads.")
    mlp: Count | None
    rope_theta: float | None
    vocab: Tokens | Literal["digits"] = Field(
        description="Number of tokens, or `digits` for the vocabulary of that data set.",
        examples=["digits"],
    )
    vocab_multiple: Count = Field(
        128, description="The vocabulary is padded to a multiple of this, whatever tp is."
    )
    tied: bool = Field(False, description="Use the token embedding as the output layer.")
    norm_eps: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        1e-5, description="Added to the mean square in every RMSNorm of the module."
    )
    moe: Moe | None = Field(
        None,
        description="Experts in place of the MLP, in all layers of a decoder or in those that "
        "`every` and `first_dense` leave, in the layers `E` of a hybrid.",
        examples=["{experts: 8, top_k: 2, width: 256}"],
    )

    @property
    def num_kv_heads(self) -> int:
        """Key/value heads, default applied."""
        return self.kv_heads or self.heads

    @property
    def head_size(self) -> int:
        """Size of one head, default applied."""
        return self.head_dim or self.hidden // self.heads

    @property
    def mlp_width(self) -> int:
        """Width inside an MLP, default applied."""
        raise NotImplementedError

    @property
    def gated_mlp(self) -> bool:
        """Whether MLPs, those of experts among them, are SwiGLU; otherwise squared ReLU."""
        raise NotImplementedError

    @property
    def attends(self) -> bool:
        """Whether any layer has attention heads."""
        raise NotImplementedError

    @property
    def has_mlps(self) -> bool:
        """Whether any layer has an MLP that is no expert."""
        raise NotImplementedError

    def has_experts(self, layer: int) -> bool:
        """Return whether a layer, counted from 0, is a mixture of experts."""
        raise NotImplementedError


class DecoderModel(LanguageModel):
    """A decoder-only language model of Llama, Qwen2 or Qwen3 shape (RMSNorm, RoPE, SwiGLU)."""

    kind: Literal["decoder"]
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
        description="Rotary embedding as in Llama 3.1 and later.",
        examples=["{factor: 8.0, original_max_position_embeddings: 8192}"],
    )
    mrope: tuple[Count, Count, Count] | None = Field(
        None,
        description="Pairs of each head that turn with time, height and width (M-RoPE, as in "
        "Qwen2-VL), head size / 2 together; without it all turn with the place in the sequence.",
        examples=["[16, 24, 24]"],
        strict=False,
    )

    @property
    def mlp_width(self) -> int:
        """Width inside the MLP, default applied."""
        return self.mlp or -(-8 * self.hidden // (3 * 64)) * 64

    @property
    def gated_mlp(self) -> bool:
        """MLPs are SwiGLU."""
        return True

    @property
    def attends(self) -> bool:
        """Every layer attends."""
        return True

    @property
    def has_mlps(self) -> bool:
        """Whether experts leave any layer its MLP."""
        return not all(self.has_experts(layer) for layer in range(self.layers))

    def has_experts(self, layer: int) -> bool:
        """Return whether experts take the place of the MLP of a layer."""
        return self.moe is not None and self.moe.is_in(layer)
