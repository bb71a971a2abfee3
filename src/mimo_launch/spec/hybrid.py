"""Hybrid language models: Mamba-2, attention and MLP layers in any order.

Decides: sizes, defaults and derived sizes of the kind `hybrid`.
Relies on: `language` for what it has in common with other language models.
Leaves: which letters a pattern may have, and what fits together, to `checks`.
"""

from typing import Annotated, Literal

from pydantic import Field

from mimo_launch.spec.base import MAX_LAYERS, Count, Strict
from mimo_launch.spec.language import LanguageModel

# The letters of a pattern: as in Megatron-LM's `--hybrid-override-pattern` and in Nemotron-H.
MAMBA, ATTENTION, MLP, EXPERTS = "M", "*", "-", "E"


class MambaSizes(Strict):
    """Sizes of the Mamba-2 layers (arXiv:2405.21060); groups share B and C as GQA shares keys."""

    heads: Count = Field(description="Heads of the state space model.", examples=[8])
    head_dim: Count = Field(64, description="Channels of a head.")
    state: Count = Field(128, description="Numbers that a head remembers per channel.")
    groups: Count = Field(
        8, description="Groups of heads with a B and a C of their own; the norm is over a group."
    )
    conv: Count = Field(4, description="Tokens that the causal convolution sees.")
    chunk: Count = Field(
        128, description="Tokens that are computed at once, as in attention; changes no result."
    )
    min_step: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        0.0,
        description="Shorter time steps are made as long as this: the lower end of `dt_limit` in "
        "mamba-ssm; 0.001 in Nemotron-H as transformers computes it.",
    )

    @property
    def inner(self) -> int:
        """Channels of all heads."""
        return self.heads * self.head_dim

    @property
    def shared(self) -> int:
        """Numbers in B, and as many in C, of all groups."""
        return self.groups * self.state


class HybridModel(LanguageModel):
    """A language model of Nemotron-H shape (arXiv:2504.03624).

    Each layer is a norm, one mixer and a residual connection; MLPs are `relu(x)^2`, not gated.
    """

    kind: Literal["hybrid"]
    pattern: Annotated[str, Field(pattern=r"^[M*E-]+$", max_length=MAX_LAYERS)] = Field(
        description="The layers, one letter each: `M` Mamba-2, `*` attention, `-` MLP, `E` "
        "experts.",
        examples=['"M-M*-M-"'],
        json_schema_extra={"expected": "layers by letter: `M`, `*`, `-` and `E`, as in `M-M*-ME`"},
    )
    mamba: MambaSizes | None = Field(
        None,
        description="Sizes of the Mamba-2 layers.",
        examples=["{heads: 8, head_dim: 32, state: 16, groups: 2}"],
    )
    mlp: Count | None = Field(None, description="Width inside an MLP; default 4 x hidden.")
    rope_theta: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        None,
        description="Base of the rotary position embedding of attention; without it attention "
        "knows no positions, as in Nemotron-H.",
    )

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
        """MLPs are squared ReLU."""
        return False

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
