"""Hybrid models: layers by letter, and the sizes of their recurrent layers.

Decides: the letters, keys, defaults and derived sizes.
Relies on: `language_models` for attention, the vocabulary and experts.
Leaves: which letters a pattern may have, and what fits together, to `checks`.
"""

from typing import Annotated, Any, Literal

from pydantic import Field

from mimo_launch.spec.base import MAX_LAYERS, Count, Strict
from mimo_launch.spec.language_models import LanguageModel

# The letters of a pattern: as in Megatron-LM's `--hybrid-override-pattern` and in Nemotron-H.
MAMBA, DELTANET, CONVOLUTION, ATTENTION, MLP, EXPERTS = "M", "G", "C", "*", "-", "E"
# The keys with the sizes of recurrent layers, by letter.
RECURRENT = {MAMBA: "mamba", DELTANET: "deltanet"}


class MambaSizes(Strict):
    """Sizes of the Mamba-2 layers (arXiv:2405.21060); groups share B and C as GQA shares keys."""

    heads: Count = Field(description="Heads of the state space model.", examples=[8])
    head_dim: Count = Field(64, description="Channels of a head.")
    state: Count = Field(128, description="Size of the state of a head, per channel.")
    groups: Count = Field(
        8, description="Groups of heads with their own B and C; the norm is over a group."
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
        """Size of the state per number of a value."""
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
    """A language model of Nemotron-H (arXiv:2504.03624), Qwen3.5 or Qwen3-Next shape.

    Each layer is a norm, one mixer and a residual connection.
    """

    kind: Literal["hybrid"]
    pattern: Annotated[str, Field(pattern=r"^[MGC*E-]+$", max_length=MAX_LAYERS)] = Field(
        description="The layers, one letter each: `M` Mamba-2, `G` Gated DeltaNet, `C` a short "
        "convolution, `*` attention, `-` MLP, `E` experts.",
        examples=['"M-M*-M-"'],
        json_schema_extra={
            "expected": "layers by letter: `M`, `G`, `C`, `*`, `-` and `E`, as in `M-M*-ME`"
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
    short_conv: Count = Field(
        3, description="Tokens that the short convolution of a `C` layer sees (arXiv:2511.23404)."
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
        """Return the sizes of a letter's layers; None unless they are recurrent and have sizes."""
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
        """Whether the pattern, or a block for further tokens, has attention."""
        return ATTENTION in self.pattern or self.mtp is not None

    @property
    def has_mlps(self) -> bool:
        """Whether the pattern, or a block for further tokens, has MLPs."""
        return MLP in self.pattern or (self.mtp is not None and EXPERTS not in self.pattern)

    def has_experts(self, layer: int) -> bool:
        """Return whether the pattern has experts at a layer."""
        return self.pattern[layer] == EXPERTS
