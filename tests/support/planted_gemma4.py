"""Known ways to get attention and experts of Gemma 4 wrong; `planted` lists them."""

from dataclasses import replace
from typing import Any

from tests.support.specs import behind_vision

from mimo_launch.kinds.decoder import DecoderAttending, DecoderKind
from mimo_launch.kinds.mlp_shapes import MoeShape
from mimo_launch.layers import attention, rotary_angles
from mimo_launch.layers import router as router_module
from mimo_launch.layers.norms import LayerScalar
from mimo_launch.layers.router import Router
from mimo_launch.models.mlp import MoeMlp
from mimo_launch.spec.spec import Spec

# Heads of two sizes, values from keys, and numbers of layers.
MODEL: dict[str, Any] = {
    "layers": 3, "heads": 4, "kv_heads": 1, "head_dim": 12, "qk_norm": True, "value_norm": True,
    "values_from_keys": True, "query_pre_attn_scalar": 1.0, "post_norms": True, "rope_theta": 50.0,
    "rope_scaling": {"rope_type": "proportional", "factor": 1.0, "partial_rotary_factor": 0.34},
    "layer_scalar": 0.5, "bidirectional_images": "in_windows",
    "sliding_window": {
        "size": 5, "full": [1], "rope_theta": 20.0, "head_dim": 8, "kv_heads": 4,
    },
}  # fmt: skip


def of_two_heads(data: dict[str, Any] | None = None, **language: Any) -> Spec:
    """Language with such attention after vision, on ranks of its own."""
    return behind_vision(MODEL, data, **language)


# Experts and an MLP beside each other, with norms of their own.
EXPERTS: dict[str, Any] = {
    "layers": 3, "heads": 4, "kv_heads": 2, "qk_norm": True, "post_norms": True,
    "activation": "gelu_tanh",
    "moe": {
        "experts": 4, "top_k": 2, "width": 32, "shared": 32, "separate_norms": True,
        "learned_scale": True,
    },
}  # fmt: skip


def of_experts(data: dict[str, Any] | None = None, **language: Any) -> Spec:
    """Language with such experts after vision, on ranks of its own."""
    return behind_vision(EXPERTS, data, **language)


def values_of_normed_keys() -> None:
    """Values are keys after the norm of these."""
    correct = attention.Attention._projected

    def normed(self: Any, *given: Any) -> Any:
        q, k, v, *gates = correct(self, *given)
        return (q, k, v if self.shape.own_values else self.k_norm(k), *gates)

    attention.Attention._projected = normed  # type: ignore[method-assign]


def values_not_normed() -> None:
    """Only queries and keys have norms."""
    correct = DecoderKind.attention

    def plain(self: Any, number: int, **given: Any) -> Any:
        return replace(correct(self, number, **given), value_norm=False)

    DecoderKind.attention = plain  # type: ignore[method-assign]


def short_heads_rotate_longer() -> None:
    """Heads that rotate in part have the frequencies of that part alone."""
    correct = rotary_angles.scaled

    def of_part(frequency: Any, scaling: Any, theta: float) -> Any:
        if scaling.rope_type == "proportional":
            return correct(frequency ** (1 / scaling.partial_rotary_factor), scaling, theta)
        return correct(frequency, scaling, theta)

    rotary_angles.scaled = of_part


def numbers_ignored() -> None:
    """The stream after a layer keeps its size."""
    LayerScalar.forward = lambda self, x_nD: x_nD  # type: ignore[method-assign]


def images_seen_everywhere() -> None:
    """Tokens of images see each other in layers without windows as well."""
    DecoderAttending.sees_later = lambda self, number: True  # type: ignore[method-assign]


def reading_the_normed_stream() -> None:
    """Router and experts read what the shared expert reads."""
    correct = MoeMlp.forward

    def forward(self: Any, x_nD: Any, context: Any, again: Any, stream_nD: Any) -> Any:
        return correct(self, x_nD, context, again, x_nD)

    MoeMlp.forward = forward  # type: ignore[method-assign]


def scales_ignored() -> None:
    """Experts have no factors, as elsewhere; gradients of these are zero."""
    router_module._rescaled = lambda weights, experts, scale: weights + 0 * scale.sum()


def router_of_the_whole_width() -> None:
    """What the router reads is not over the root of the width."""
    correct = Router.forward

    def forward(self: Any, *given: Any) -> Any:
        shape, self.shape = self.shape, replace(self.shape, width=1)
        found = correct(self, *given)
        self.shape = shape
        return found

    Router.forward = forward  # type: ignore[method-assign]


def norms_of_all_tokens() -> None:
    """Gradients of the norms of experts are taken for those of all tokens on each tp rank."""
    correct = MoeShape.parts

    def parts(self: Any) -> Any:
        norms = {"routed_norm", "routed_post_norm"}
        found = correct(self)
        return {**found, **{name: replace(found[name], inside=False) for name in norms}}

    MoeShape.parts = parts  # type: ignore[method-assign]


def answers_without_norms() -> None:
    """Answers of experts are added as they are."""
    correct = MoeMlp.forward

    def forward(self: Any, *given: Any) -> Any:
        norm, self.routed_post_norm = self.routed_post_norm, None
        found = correct(self, *given)
        self.routed_post_norm = norm
        return found

    MoeMlp.forward = forward  # type: ignore[method-assign]


GEMMA4_BUGS = {
    "experts read the normed stream": (reading_the_normed_stream, of_experts(dp=2)),
    "factors of experts ignored": (scales_ignored, of_experts(tp=2)),
    "router of the whole width": (router_of_the_whole_width, of_experts(cp=2)),
    "norms of all tokens": (norms_of_all_tokens, of_experts(tp=2)),
    "answers without norms": (answers_without_norms, of_experts(pp=2)),
    "values of normed keys": (values_of_normed_keys, of_two_heads(tp=2)),
    "values not normed": (values_not_normed, of_two_heads(cp=2)),
    "frequencies of a part": (short_heads_rotate_longer, of_two_heads(cp=2)),
    "numbers of layers ignored": (numbers_ignored, of_two_heads(pp=2)),
    "images seen without windows": (
        images_seen_everywhere, of_two_heads(tp=2, model={"sliding_window": {
            "size": 5, "full": [0, 1], "rope_theta": 20.0, "head_dim": 8, "kv_heads": 4,
        }}),
    ),
}  # fmt: skip
