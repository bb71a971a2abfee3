"""Keys of layers: attention (scaled positions, windows, a narrow width), experts, further tokens.

Decides: keys, defaults, and the factor on what is rotated; which layers of a decoder have experts.
Relies on: `base`.
Leaves: which models have which to `language_models`, frequencies to `layers.rotary_angles`, the
grid that cuts experts to `base`, what fits together to `checks`.
"""

import math
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from mimo_launch.spec.base import (
    MAX_COUNT,
    Count,
    CountFrom0,
    Effective,
    LayerChoice,
    LayerNumbers,
    Layers,
    Places,
    Strict,
)


class RopeScaling(Strict):
    """Slower turns for long wavelengths, so that a model sees further than it was first trained to.

    The names are the ones in the settings of transformers. `linear` uses only the factor.
    `proportional` leaves all but the shortest wavelengths out. `longrope` has a number for each
    pair of a head, and uses the factor only for the size of scores.
    """

    # The keys that each type uses besides `factor`.
    USED: ClassVar[dict[str, frozenset[str]]] = {
        "linear": frozenset(),
        "proportional": frozenset({"partial_rotary_factor"}),
        "llama3": frozenset(
            {"low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}
        ),
        "yarn": frozenset(
            {"beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate"}
            | {"original_max_position_embeddings"}
        ),
        "longrope": frozenset(
            {"short_factor", "attention_factor", "original_max_position_embeddings"}
        ),
    }

    rope_type: Literal["llama3", "linear", "yarn", "proportional", "longrope"] = Field(
        "llama3",
        description="`llama3`: long wavelengths rotate slower, as in Llama 3.1; `linear`: all do, "
        "as in Gemma 3; `yarn`: long ones do, and scores grow, as in GPT-OSS and DeepSeek-V3; "
        "`proportional`: all do, and long ones do not rotate at all, as in Gemma 4; `longrope`: "
        "each pair by its own factor, and scores grow, as in Phi-4-mini up to its original length.",
    )
    factor: Annotated[float, Field(ge=1, allow_inf_nan=False)] = Field(
        description="How many times slower the longest wavelengths rotate; `longrope`: how many "
        "times longer sequences may be than the original length.",
        examples=[8.0],
    )
    partial_rotary_factor: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0,
        description="`proportional`: part of the pairs of a head that rotate, those of the "
        "shortest wavelengths; 0.25 in Gemma 4.",
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
        8192,
        description="Original length: that of sequences before the scaling, in tokens. `longrope` "
        "needs it: no sequence may be longer.",
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
    short_factor: tuple[Annotated[float, Field(gt=0, allow_inf_nan=False)], ...] = Field(
        (),
        description="`longrope`: how many times slower each rotated pair of a head rotates in "
        "sequences of up to the original length.",
        examples=["[1.0, 1.02, 1.05, 1.1]"],
        strict=False,
    )
    attention_factor: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        None,
        description="`yarn`, `longrope`: rotated queries and keys are multiplied by this; default "
        "0.1 ln(factor) + 1, or what `mscale` and `mscale_all_dim` say; with `longrope` the root "
        "of 1 + ln(factor) / ln(original length).",
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
        """The factor on rotated queries and keys, default applied.

        It is 1 for all types but `yarn` (arXiv:2309.00071, section 3.4) and `longrope`
        (arXiv:2404.14219, by its published code).
        """
        if self.rope_type not in ("yarn", "longrope"):
            return 1.0
        if self.attention_factor is not None:
            return self.attention_factor
        if self.rope_type == "longrope":
            length = max(2, self.original_max_position_embeddings)
            return math.sqrt(1 + math.log(self.factor) / math.log(length))
        if self.mscale and self.mscale_all_dim:
            return self.stretch_by(self.mscale) / self.stretch_by(self.mscale_all_dim)
        return self.stretch_by(1.0)

    def stretch_by(self, scale: float) -> float:
        """Return 0.1 scale ln(factor) + 1."""
        return 0.1 * scale * math.log(self.factor) + 1.0


class QueryScaling(Strict):
    """Larger queries at later positions, so that attention stays sharp over more tokens."""

    beta: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        description="How fast queries grow with the logarithm of their position.", examples=[0.1]
    )
    length: Count = Field(
        description="Tokens over which the factor is the same; over the first ones it is 1.",
        examples=[16384],
    )
    first_position: Literal[0, 1] = Field(
        0, description="Position of the first token of a document: 1 in Llama 4."
    )


class Nope(LayerChoice):
    """Layers without rotary positions (NoPE), among others that have them."""

    chosen = "layers"
    meaning = "is to have no rotary positions"
    layers: Annotated[LayerNumbers, Field(min_length=1)] = Field(
        description="The layers, counted from 0, in which no query or key rotates.",
        examples=["[3, 7, 11, 15]"],
        strict=False,
    )
    query_scaling: QueryScaling | None = Field(
        None,
        description="In these layers in place of the model's `query_scaling`, as in Llama 4, which "
        "has `attn_scale` for `beta` and `floor_scale` for `length`.",
        examples=["{beta: 0.1, length: 8192, first_position: 1}"],
    )


class SlidingWindow(LayerChoice):
    """Attention to the last tokens only, in all but some layers."""

    chosen = "full"
    meaning = "is to attend to whole sequences"

    # With one token, queries and keys would have no gradients.
    size: Annotated[int, Field(ge=2, le=MAX_COUNT)] = Field(
        description="Tokens that a token attends to: itself and those before it.", examples=[1024]
    )
    chunked: bool = Field(
        False,
        description="The window does not slide: each document is cut into chunks of `size` tokens, "
        "and a token attends to itself and those before it in its chunk, as in Llama 4.",
    )
    full: LayerNumbers = Field(
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

    head_dim: Count | None = Field(
        None,
        description="Size of a head in layers with windows, as in Gemma 4; default that of the "
        "other layers.",
        examples=[256],
    )
    kv_heads: Count | None = Field(
        None,
        description="Key/value heads in layers with windows, as in Gemma 4; default those of the "
        "other layers.",
        examples=[16],
    )

    def pairs(self, tokens: int) -> float:
        """Return how many pairs of tokens attend in a sequence; half of each diagonal counts."""
        if self.chunked:
            chunks, rest = divmod(tokens, self.size)
            return (chunks * self.size**2 + rest**2) / 2
        seen = min(tokens, self.size)
        return seen * (tokens - seen / 2)


class SharedKeys(Strict):
    """Last layers of a decoder without keys and values of their own.

    Each attends to those of the last earlier layer that has its own and sees the same tokens: in
    windows if it does.
    """

    layers: Count = Field(description="How many of the last layers.", examples=[20])
    mlp: Count | None = Field(
        None,
        description="Width inside the MLPs of these layers, twice the others' in Gemma 4 E2B; "
        "default `mlp`.",
        examples=[12288],
    )


class PerLayerEmbeddings(Strict):
    """Further vectors of each token, one for each layer, which the layer gates and adds.

    A vector is the mean of the token's own, from a table, and a map of what enters the first layer.
    """

    width: Count = Field(description="Numbers of a token for a layer.", examples=[256])
    padding: CountFrom0 = Field(
        0,
        description="Tokens that stand for rows of encoders have the vectors of this one, which do "
        "not train; `pad_token_id` of Gemma 4.",
    )


class Mla(Strict):
    """Multi-head latent attention: keys and values, and perhaps queries, from a narrow width.

    A query or key has `head_dim` numbers, and `rope_head_dim` of them rotate; all heads share the
    rotated numbers of the key.
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


class Mtp(Strict):
    """Multi-token prediction: blocks after the last layer that predict further tokens.

    Depth k reads the head's input from the depth before it, and the embedding of the token k
    ahead; it predicts the token after that one (arXiv:2412.19437, section 2.2).
    """

    depth: Layers = Field(
        1, description="Number of further tokens that are predicted, each by its own block."
    )
    loss_weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        0.3,
        description="Weight of their losses together beside the main loss; 0.3 in DeepSeek-V3, 0.1 "
        "towards its end.",
    )

    def architecture(self) -> dict[str, Any]:
        """Return the keys that decide what is computed."""
        return {"depth": self.depth}


_OF_SHARED = Effective(needs="shared", why="there is no shared expert: `shared` is 0")


class Moe(Strict):
    """A mixture of experts in place of the MLP of a layer: each token goes to `top_k` of them.

    An expert is an MLP like the ones in the dense layers of the model. No token is dropped,
    however many choose the same expert.
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
    scale_inputs: bool = Field(
        False,
        description="Scores multiply what experts read instead of their answers, as in Llama 4.",
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
    shared_gate: Annotated[bool, _OF_SHARED] = Field(
        False,
        description="Multiply the output of the shared expert by the sigmoid of a number that a "
        "linear map makes of each token, as in Qwen3.5.",
    )
    separate_norms: Annotated[bool, _OF_SHARED] = Field(
        False,
        description="The layer's norm is for the shared expert alone, as in Gemma 4. The router "
        "and the other experts each have a norm of their own, which reads the stream; the router "
        "divides its normed input by the square root of `hidden`. A norm also follows the shared "
        "expert, and another the sum of the others.",
    )
    learned_scale: bool = Field(
        False,
        description="Each expert has a factor on its scores, at first 1, which is learned, as in "
        "Gemma 4; `normalize` comes before it.",
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
        """Return the keys that decide what is computed; a `bias_update_rate` becomes 0."""
        kept = self.model_dump(exclude=set(self.TRAINING))
        if self.bias_update_rate is not None:
            kept["bias_update_rate"] = 0.0
        return kept

    @property
    def gates_shared(self) -> bool:
        """Whether there is a shared expert with a gate."""
        return self.shared_gate and self.shared > 0

    @property
    def norms_apart(self) -> bool:
        """Whether a shared expert and the others have norms of their own."""
        return self.separate_norms and self.shared > 0

    def is_in(self, layer: int) -> bool:
        """Return whether a layer of a decoder, counted from 0, has experts."""
        return layer >= self.first_dense and (layer + 1) % self.every == 0


class UnbalancedMoe(Moe):
    """A mixture of experts in a module that makes clips; nothing balances its load."""

    aux_loss: Annotated[float, Field(ge=0, le=0)] = Field(
        0.0,
        description="0: no loss balances the load of these experts.",
        json_schema_extra={"expected": "0"},
    )
    bias_update_rate: Annotated[float, Field(ge=0, le=0)] | None = Field(
        None,
        description="0: each expert has a bias that is added to its score while experts are "
        "chosen, and stays as loaded; `null`: there is no bias.",
        json_schema_extra={"expected": "0 or `null`"},
    )
