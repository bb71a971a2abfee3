"""Experts in place of the MLP of a layer: their keys.

Decides: keys and defaults; which layers of a decoder have experts.
Relies on: `base`.
Leaves: the grid that cuts them to `base`, what fits together to `checks`.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from mimo_launch.spec.base import Count, CountFrom0, Places, Strict


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
