"""Shapes of single blocks, for tests of layers without a model around them."""

from dataclasses import replace
from typing import Any

from mimo_launch.kinds.attention_shapes import AttentionShape
from mimo_launch.kinds.block_shapes import BlockShape
from mimo_launch.kinds.mlp_shapes import MlpShape
from mimo_launch.kinds.shapes import NormShape
from mimo_launch.kinds.weights import LayerShape


def block_shape(
    *,
    width: int,
    heads: int,
    mlp: int,
    head_size: int,
    kv_heads: int | None = None,
    norm: Any = "rms",
    bias: bool = False,
    pre_norms: bool = True,
    post_norms: bool = False,
    parallel: bool = False,
    layer_scale: float | None = None,
    residual_scale: float | None = None,
    scalar: float | None = None,
    of_mlp: dict[str, Any] | None = None,
    **attention: Any,
) -> BlockShape:
    """Return a block of a model of four layers; by default like a decoder's, with SwiGLU."""
    added = 8**-0.5
    return BlockShape(
        norm=NormShape(width, norm, offset=attention.get("norm_offset", 0.0)),
        attention=AttentionShape(
            width=width,
            heads=heads,
            kv_heads=kv_heads or heads,
            head_size=head_size,
            bias=bias,
            out_scale=added,
            **{"qkv_bias": bias, **attention},
        ),
        mlp=MlpShape(
            width=width,
            inner=mlp,
            out=width,
            bias=bias,
            out_scale=added,
            **({"gate": None if bias else "silu"} | (of_mlp or {})),
        ),
        pre_norms=pre_norms,
        post_norms=post_norms,
        parallel=parallel,
        layer_scale=layer_scale,
        residual_scale=residual_scale,
        scalar=scalar,
    )


def plant(shape: type[LayerShape], layer: str = "", **changes: Any) -> None:
    """Make layers of a shape, or only those of one class, say something else of their weights."""
    correct = shape.own

    def own(self: Any, tp: int) -> Any:
        if not self.layer.endswith(layer):
            return correct(self, tp)
        return {
            attribute: tuple(replace(each, **changes) for each in weights)
            for attribute, weights in correct(self, tp).items()
        }

    shape.own = own  # type: ignore[method-assign]
