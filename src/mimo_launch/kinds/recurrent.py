"""Recurrent layers of hybrids, Mamba-2 and Gated DeltaNet: weights, work and saved activations.

Decides: the names of their weights and how these are cut, the work of a recurrence, and what a
layer saves.
Relies on: the sizes of the spec; `shapes` for maps at both ends.
Leaves: what they compute to `layers.recurrent`.
"""

from collections.abc import Mapping
from typing import ClassVar, Literal

from mimo_launch.diag.frozen import frozen
from mimo_launch.kinds.layer import LayerKind, Widths
from mimo_launch.kinds.saved_activations import AttentionPattern, Passes, Saved
from mimo_launch.kinds.shapes import ColumnShape, NormShape, Output, RowShape, WideNormShape
from mimo_launch.kinds.weights import Init, LayerShape, Parameters, Weight
from mimo_launch.spec.hybrid import DELTANET, MAMBA, DeltaNetSizes, MambaSizes, RecurrentSizes

# In a recurrent layer `query` is the number of channels of its heads, and `key` the number of
# channels of B or C, or of the keys or queries of a DeltaNet. These are the tensors that the
# kernels of Mamba keep; they recompute products inside a chunk. A DeltaNet recomputes convolution
# and recurrence.
_FUSED = (
    # The gate is a view of this tensor.
    Saved(name="z, x, B and C, fused", query=2, key=2),
    Saved(name="x, B and C before the convolution", query=1, key=2),
)
_OUT = (
    Saved(name="output of the recurrence", query=1),
    Saved(name="gated and normed", query=1, for_weights=True),
)
_MAMBA = (
    *_FUSED,
    Saved(name="x, B and C behind it", query=1, key=2),
    Saved(name="time steps: given, with their bias, positive, limited; sums of decays", heads=5),
    *_OUT,
)
_DELTANET = (
    *_FUSED,
    Saved(name="decays and strengths as projected; root mean squares", heads=2),
    *_OUT,
)


@frozen
class ConvolutionShape(LayerShape):
    """A depthwise convolution over the channels of heads, and of two vectors for each group."""

    layer = "mimo_launch.layers.shaped_layer:ShapedLayer"

    sizes: RecurrentSizes
    channels: tuple[str, str, str]
    bias: bool

    def own(self, tp: int) -> Parameters:
        """Return its weights, and its biases if it has them."""
        return {
            "weight": self._fused("weight"),
            "bias": self._fused("bias") if self.bias else (),
        }

    def _fused(self, kind: Literal["weight", "bias"]) -> tuple[Weight, ...]:
        sizes, is_weight = self.sizes, kind == "weight"
        widths = (sizes.inner, None), (sizes.shared, sizes.state), (sizes.shared, sizes.state)
        return tuple(
            Weight(
                name=f"{name}.{kind}",
                shape=(width, sizes.conv) if is_weight else (width,),
                axis=0,
                unit=unit,
                # The standard deviation of torch's uniform init for a depthwise convolution.
                std=(3 * sizes.conv) ** -0.5,
                init="normal" if is_weight else "zeros",
                decay=is_weight,
            )
            for name, (width, unit) in zip(self.channels, widths, strict=True)
        )


@frozen
class HeadWeightsShape(LayerShape):
    """Weights with one number per head, such as the logarithm of its decay."""

    layer = "mimo_launch.layers.shaped_layer:ShapedLayer"
    names_itself: ClassVar[bool] = False

    heads: int
    start: tuple[tuple[str, Init], ...]

    def own(self, tp: int) -> Parameters:
        """Return the weights, each a parameter."""
        shape = (self.heads,)
        return {
            name: (Weight(name=name, shape=shape, axis=0, init=init, decay=False),)
            for name, init in self.start
        }


@frozen(kw_only=True)
class RecurrentLayer:
    """The facts of a kind of recurrent layer.

    `channels` names the inputs of the convolution: one for heads, then two for groups; `steps`
    names the inputs with one number per head and token; `of_heads` the weights with one number per
    head, and how they start. `eager` and `eager_bf16` are also saved if passes are not compiled;
    `recomputed` exists while a layer runs backward.
    """

    name: str
    kind: LayerKind
    layer: str
    channels: tuple[str, str, str]
    steps: tuple[str, ...]
    of_heads: tuple[tuple[str, Init], ...]
    conv_bias: bool
    norms_groups: bool
    saved: tuple[Saved, ...]
    eager: Saved
    eager_bf16: Saved
    recomputed: tuple[Saved, ...] = ()


@frozen
class GroupNormShape(WideNormShape):
    """RMSNorm over each group of heads, times a gate."""

    layer = "mimo_launch.layers.mamba:GroupNorm"

    groups: int = 1


@frozen
class HeadNormShape(NormShape):
    """RMSNorm of each head, times a gate."""

    layer = "mimo_launch.layers.deltanet:HeadNorm"


@frozen(kw_only=True)
class RecurrentShape(LayerShape):
    """A recurrent mixer: projections, a short convolution, a recurrence, a gated norm."""

    facts: RecurrentLayer
    width: int
    sizes: RecurrentSizes
    eps: float
    out_scale: float

    @property
    def layer(self) -> str:
        """The class that computes it."""
        return self.facts.layer

    def parts(self) -> Mapping[str, LayerShape]:
        """Return its layers in order."""
        facts, sizes, (heads, *groups) = self.facts, self.sizes, self.facts.channels
        outputs = [Output("z", sizes.inner), Output(heads, sizes.inner)]
        outputs += [Output(name, sizes.heads) for name in facts.steps]
        outputs += [Output(name, sizes.shared, sizes.state) for name in groups]
        norm: LayerShape = HeadNormShape(sizes.head_dim, "rms", self.eps, inside=True)
        if facts.norms_groups:
            norm = GroupNormShape(sizes.inner, self.eps, groups=sizes.groups)
        return {
            "inputs": ColumnShape(self.width, tuple(outputs)),
            "conv": ConvolutionShape(sizes, facts.channels, facts.conv_bias),
            "head": HeadWeightsShape(sizes.heads, facts.of_heads),
            "output": RowShape("out", sizes.inner, self.width, scale=self.out_scale),
            "norm": norm,
        }

    def widths(self) -> Widths:
        """Return the channels of heads and groups, and the work between tokens."""
        sizes, steps = self.sizes, len(self.facts.steps)
        between = _delta_rule(sizes) if isinstance(sizes, DeltaNetSizes) else _state_space(sizes)
        return LayerShape.widths(self) + Widths(
            query=sizes.inner,
            key=sizes.shared,
            unit=sizes.state,
            heads=sizes.heads,
            exchanges=2 * sizes.inner + 2 * sizes.shared + steps * sizes.heads,
            between=between,
            regions=1,
        )

    def saved(self, passes: Passes, pattern: AttentionPattern) -> tuple[Saved, ...]:
        """Return what its recurrence keeps; with cp also what comes back from other cp ranks."""
        facts, found = self.facts, self.facts.saved
        if passes.cp > 1:
            found += (Saved(name="output of the recurrence, by own tokens", query=1),)
        beside = facts.eager_bf16 if passes.wide > 1 else facts.eager
        return found if passes.are_compiled else (*found, beside)


def _state_space(sizes: MambaSizes) -> float:
    """Return the operations of Mamba-2 between tokens, for one token.

    Inside a chunk, half of C B^T and half of its product with x are counted. Then x and B make the
    states of all chunks, and C reads them (arXiv:2405.21060, section 6).
    """
    within = sizes.chunk * (sizes.shared + sizes.inner)
    return within + 4.0 * sizes.inner * sizes.state


def _delta_rule(sizes: DeltaNetSizes) -> float:
    """Return the operations of a Gated DeltaNet between tokens, for one token.

    Inside a chunk, half of each is counted: products of keys with keys and with queries, a
    triangular system for values and keys, and the product with the written values. Then keys and
    queries read the state, and keys write it.
    """
    keys = sizes.heads * sizes.state
    within = sizes.chunk * (2 * sizes.shared + keys + 2 * sizes.inner)
    return within + 6.0 * sizes.inner * sizes.state


RECURRENT_LAYERS = {
    MAMBA: RecurrentLayer(
        name="Mamba-2",
        kind=LayerKind.MAMBA,
        layer="mimo_launch.layers.mamba:Mamba",
        channels=("x", "B", "C"),
        steps=("dt",),
        of_heads=(("A_log", "log_decay"), ("dt_bias", "time_step"), ("D", "ones")),
        conv_bias=True,
        norms_groups=True,
        saved=_MAMBA,
        eager=Saved(name="SiLU of the gate and gated, twice, and scaled", query=5),
        # In fp32, like the gate and the gated output; so z is freed, with the tensor of which it
        # is a view.
        eager_bf16=Saved(
            name="the same and their inputs, less z, x, B and C", query=18 - 2, key=-2
        ),
    ),
    DELTANET: RecurrentLayer(
        name="Gated DeltaNet",
        kind=LayerKind.DELTANET,
        layer="mimo_launch.layers.deltanet:DeltaNet",
        channels=("v", "k", "q"),
        steps=("a", "b"),
        of_heads=(("A_log", "log_decay"), ("dt_bias", "time_step")),
        conv_bias=False,
        norms_groups=False,
        saved=_DELTANET,
        eager=Saved(name="normed, with its weight, and SiLU of the gate", query=3),
        # In fp32, like the gate and the normed output.
        eager_bf16=Saved(name="the same and their inputs, less the output", query=10 - 1),
        # In fp32: five tensors with a number for each pair of tokens in a chunk, values and keys
        # before and after the triangular system, states, and the gradients of some of these.
        recomputed=(Saved(name="products inside chunks, and states", query=36, key=12),),
    ),
}
