"""The parts of a custom encoder, generator or loss, all importable from here.

Decides: the names and signatures that stay from release to release. `Norm`, `ColumnLinear`,
`RowLinear` and `Attention` take plain sizes and have the names of the layers that they build from
shapes: a user's class that writes them gets the same layers as a built-in model.
Relies on: `models` and `layers`, which define the parts, and `kinds.shapes` for their sizes.
Leaves: how they are used to the pages `custom-*.md` of docs.
"""

from collections.abc import Mapping
from typing import Any, Literal

from torch import nn

from mimo_launch.kinds.attention_shapes import AttentionShape
from mimo_launch.kinds.block_shapes import ProjectorShape
from mimo_launch.kinds.shapes import EPSILON, ColumnShape, NormShape, Output, RowShape
from mimo_launch.layers import attention, linear, norms
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.parameter_segments import SegmentedModule, replicated
from mimo_launch.models import projector as projectors
from mimo_launch.models.custom_encoder import EncoderFactory, EncoderInput, EncoderStage
from mimo_launch.models.custom_generator import GeneratorFactory, GeneratorStage
from mimo_launch.models.custom_loss import LabelledTokens
from mimo_launch.models.noise import PatchTargets
from mimo_launch.spec.encoders import Projector

__all__ = [
    "Attention",
    "ColumnLinear",
    "EncoderFactory",
    "EncoderInput",
    "EncoderStage",
    "GeneratorFactory",
    "GeneratorStage",
    "LabelledTokens",
    "Norm",
    "ParallelContext",
    "PatchTargets",
    "RowLinear",
    "SegmentedModule",
    "projector",
    "replicated",
]


class Norm(norms.Norm):
    """RMSNorm or LayerNorm over the width; `inner`: in a region that tp cuts."""

    def __init__(
        self,
        context: ParallelContext,
        width: int,
        kind: Literal["rms", "layer"],
        *,
        eps: float = EPSILON,
        inner: bool = False,
        offset: float = 0.0,
    ) -> None:
        super().__init__(context, NormShape(width, kind, eps, inner, offset))


class ColumnLinear(linear.ColumnLinear):
    """Fused linear layers that share an input, with outputs cut over tp: [N, D] -> [N, f].

    `outputs` maps a name to its full number of features; `unbiased` names have no bias. The input
    must have entered the region (`context.enter`).
    """

    def __init__(
        self,
        context: ParallelContext,
        width: int,
        outputs: Mapping[str, int],
        *,
        bias: bool,
        unbiased: tuple[str, ...] = (),
    ) -> None:
        made = (
            Output(name, features, bias=bias and name not in unbiased)
            for name, features in outputs.items()
        )
        super().__init__(context, ColumnShape(width, tuple(made)))


class RowLinear(linear.RowLinear):
    """A linear layer with input features cut over tp; it ends the region: [N, f] -> [n, D]."""

    def __init__(
        self,
        context: ParallelContext,
        name: str,
        features: int,
        width: int,
        *,
        bias: bool,
        scale: float = 1.0,
    ) -> None:
        super().__init__(context, RowShape(name, features, width, bias, scale))


class Attention(attention.Attention):
    """Multi-head or grouped-query attention, given the fields of `AttentionShape` by name."""

    def __init__(self, context: ParallelContext, **sizes: Any) -> None:
        super().__init__(context, AttentionShape(**sizes))


def projector(
    context: ParallelContext, kind: Projector, width: int, out: int, **options: Any
) -> nn.Module:
    """Return the last layer of an encoder; `options` are further fields of `ProjectorShape`."""
    shape = ProjectorShape(kind=kind, width=width, out=out, **options)
    return projectors.projector(context, shape)
