"""Known ways to get norms of all heads together, and factors, wrong; `planted` lists them."""

from dataclasses import replace
from typing import Any

from tests.support.specs import behind_vision

from mimo_launch.kinds.decoder import DecoderKind
from mimo_launch.kinds.mlp_shapes import XieluShape
from mimo_launch.kinds.weights import Weight
from mimo_launch.layers import attention, norms, pointwise, xielu
from mimo_launch.layers.norms import WideNorm
from mimo_launch.models import mlp
from mimo_launch.models.language_model import LanguageStage
from mimo_launch.models.transformer_block import Block
from mimo_launch.spec.spec import Spec

# Norms as in OLMo 2, factors as in HyperCLOVA X SEED Think.
MODEL: dict[str, Any] = {
    "layers": 3, "heads": 4, "kv_heads": 2, "head_dim": 12, "rope_theta": 200.0, "qk_norm": True,
    "wide_qk_norm": True, "pre_norms": False, "post_norms": True, "residual_scale": 0.5,
    "logit_scale": 0.25, "embedding_scale": 3.0, "scaled_rows": True,
}  # fmt: skip

# Layers as in Command R, MLPs as in StarCoder2.
BESIDE: dict[str, Any] = {
    "layers": 3, "heads": 4, "kv_heads": 2, "rotary_interleaved": True, "parallel": True,
    "norm": "layer_without_bias", "logit_scale": 0.25, "mlp_bias": True,
    "activation": "gelu_tanh_without_gate",
}  # fmt: skip

# Their activation as in Apertus.
BENT = {"activation": "xielu"}

# Norms of heads as in Llama 4.
UNIT: dict[str, Any] = {
    "layers": 4, "heads": 4, "kv_heads": 2, "head_dim": 12, "rope_theta": 200.0,
    "rotary_interleaved": True, "l2_qk_norm": True, "nope": {"layers": [1, 3]},
    "moe": {
        "experts": 4, "top_k": 2, "width": 32, "every": 2, "score": "sigmoid", "normalize": False,
        "scale_inputs": True, "shared": 32,
    },
}  # fmt: skip


# Queries, keys and values as in OLMoE.
CLIPPED: dict[str, Any] = {
    "layers": 3, "heads": 4, "kv_heads": 2, "qk_norm": True, "wide_qk_norm": True, "clip_qkv": 0.5,
}  # fmt: skip


def clipped(data: dict[str, Any] | None = None, **language: Any) -> Spec:
    """Language with clipped queries, keys and values after vision."""
    return behind_vision(CLIPPED, data, **language)


def of_unit_heads(data: dict[str, Any] | None = None, **language: Any) -> Spec:
    """Language with such norms, and with experts of scaled inputs, after vision."""
    return behind_vision(UNIT, data, **language)


def normed_after(data: dict[str, Any] | None = None, **language: Any) -> Spec:
    """Language with such norms and factors after vision, on ranks of its own."""
    return behind_vision(MODEL, data, **language)


def beside(data: dict[str, Any] | None = None, **language: Any) -> Spec:
    """Language with attention and MLP beside each other, as in Command R, after vision."""
    return behind_vision(BESIDE, data, **language)


def shared_heads_count_often() -> None:
    """A head that several tp ranks hold counts on each of them."""
    correct, copies = WideNorm.forward, Weight.copies

    def once(self: Any, x: Any) -> Any:
        Weight.copies = lambda self, tp: 1  # type: ignore[method-assign]
        try:
            return correct(self, x)
        finally:
            Weight.copies = copies  # type: ignore[method-assign]

    WideNorm.forward = once  # type: ignore[method-assign]


def squares_of_this_rank() -> None:
    """The sum of squares has a gradient from this rank's heads alone."""
    norms.enter_tp = lambda x, tp: x


def attention_unscaled() -> None:
    """Only what the MLP adds has the factor."""
    correct = Block._attended

    def unscaled(self: Any, *given: Any) -> Any:
        attended, held = correct(self, *given)
        return attended / (self.shape.residual_scale or 1.0), held

    Block._attended = unscaled  # type: ignore[method-assign]


def logits_unscaled() -> None:
    """The loss reads logits without the factor."""
    correct = LanguageStage._logits

    def plain(self: Any, x_ND: Any) -> Any:
        logits, part = correct(self, x_ND)
        return logits / self.kind.logit_scale, part

    LanguageStage._logits = plain  # type: ignore[method-assign]


def rows_unscaled() -> None:
    """Only embeddings of tokens have their factor."""
    DecoderKind.row_scale = None  # type: ignore[method-assign, assignment]


def norms_of_heads_exchanged() -> None:
    """Queries are multiplied by the weight of the norm of keys, and keys by that of queries."""
    correct = attention.placed_heads

    def exchanged(q: Any, k: Any, cos: Any, sin: Any, factor: Any, weights: Any, *rest: Any) -> Any:
        return correct(q, k, cos, sin, factor, weights and weights[::-1], *rest)

    attention.placed_heads = exchanged


def mlp_after_attention() -> None:
    """In layers in parallel the MLP reads the stream after attention."""
    correct = Block._of_stream

    def later(self: Any, x_nD: Any, context: Any) -> Any:
        attended, _ = self._attended(x_nD, context)
        return correct(self, x_nD + attended, context)

    Block._of_stream = later  # type: ignore[method-assign]


def means_kept() -> None:
    """LayerNorms leave the mean of the stream in it."""
    norms.layer_norm = lambda x, weight, bias, eps: norms.rms_norm(x, weight, eps)


def still_heads_normed() -> None:
    """Layers without rotary positions have such norms as well."""
    DecoderKind._normed_by_l2 = lambda self, number: self.model.l2_qk_norm  # type: ignore


def answers_scaled() -> None:
    """Scores multiply the answers of experts, as elsewhere."""
    correct = mlp.MoeMlp._answers

    def plain(self: Any, *given: Any) -> Any:
        shape = self.shape
        self.shape = replace(shape, moe=shape.moe.model_copy(update={"scale_inputs": False}))
        found = correct(self, *given)
        self.shape = shape
        return found

    mlp.MoeMlp._answers = plain  # type: ignore[method-assign]


def normed_before_rotation() -> None:
    """Heads are normed before they rotate, as elsewhere."""
    correct = attention.placed_heads
    attention.placed_heads = lambda *given: correct(*given[:-1])


def gelu_exact() -> None:
    """MLPs without a gate compute GELU itself, not its approximation."""
    pointwise.ACTIVATIONS["gelu_tanh"] = pointwise.gelu


def numbers_from_one_part() -> None:
    """The numbers of an xIELU have gradients from this tp rank's part of the inner width alone."""
    correct = XieluShape.own

    def complete(self: Any, tp: int) -> Any:
        held = correct(self, tp).items()
        return {name: (replace(each[0], terms="complete"),) for name, each in held}

    XieluShape.own = complete  # type: ignore[method-assign]


def bent_of_both_sides() -> None:
    """The gradient of one number of an xIELU is summed over both of its sides."""
    correct = xielu.gradients

    def mixed(x: Any, grad: Any, *numbers: Any) -> Any:
        found, of_above, of_below = correct(x, grad, *numbers)
        return found, of_above + of_below, of_below

    xielu.gradients = mixed


def values_unclipped() -> None:
    """Only queries and keys are clipped."""
    correct = attention.Attention._projected

    def unclipped(self: Any, *given: Any) -> Any:
        q, k, _, *gates = correct(self, *given)
        shape, self.shape = self.shape, replace(self.shape, clip=None)
        _, _, v, *_ = correct(self, *given)
        self.shape = shape
        return (q, k, v, *gates)

    attention.Attention._projected = unclipped  # type: ignore[method-assign]


NORM_BUGS = {
    "numbers from one part": (numbers_from_one_part, beside(tp=2, model=BENT)),
    "bent of both sides": (bent_of_both_sides, beside(dp=2, model=BENT)),
    "values unclipped": (values_unclipped, clipped(tp=2)),
    "normed before rotation": (
        normed_before_rotation,
        behind_vision({"layers": 2, "heads": 4, "qk_norm": True, "rotated_qk_norm": True}, cp=2),
    ),
    "exact GELU": (gelu_exact, beside(dp=2)),
    "still heads normed": (still_heads_normed, of_unit_heads(tp=2)),
    "answers scaled": (answers_scaled, of_unit_heads(dp=2, experts={"ep": 2})),
    "rows unscaled": (rows_unscaled, normed_after(cp=2)),
    "MLP after attention": (mlp_after_attention, beside(tp=2)),
    "means kept": (means_kept, beside(pp=2)),
    "norms of heads exchanged": (
        norms_of_heads_exchanged,
        behind_vision({"layers": 2, "heads": 4, "head_dim": 8, "qk_norm": True}, tp=2),
    ),
    "shared heads count often": (shared_heads_count_often, normed_after(tp=4)),
    "squares of this rank": (squares_of_this_rank, normed_after(tp=2)),
    "attention unscaled": (attention_unscaled, normed_after(cp=2)),
    "logits unscaled": (logits_unscaled, normed_after(pp=2)),
}
