"""The layers of a conformer's blocks, of Parakeet and of Phi-4.

Decides: their weights, work and saved activations; that scores and convolutions are computed again.
Leaves: what they compute to `layers.conformer` and `models.conformer`.
"""

from collections.abc import Mapping
from dataclasses import replace

from mimo_launch.diag.frozen import frozen
from mimo_launch.kinds.layer import Widths
from mimo_launch.kinds.mlp_shapes import MlpShape
from mimo_launch.kinds.saved_activations import (
    AttentionPattern,
    Part,
    Passes,
    Saved,
    Temporary,
)
from mimo_launch.kinds.shapes import ColumnShape, NormShape, Output, RowShape, WholeShape
from mimo_launch.kinds.weights import LayerShape, Parameters, Weight, buffer

_LAYERS, _MODELS = "mimo_launch.layers.conformer", "mimo_launch.models.conformer"


@frozen
class RelativeAttentionShape(LayerShape):
    """Attention with scores of contents and of distances: `bias_u` and `bias_v` of each head.

    Or the scores of distances come from a table that all layers share (`shared`).
    """

    layer = f"{_LAYERS}:RelativeAttention"

    width: int
    heads: int
    bias: bool
    out_scale: float
    shared: bool = False

    @property
    def head_size(self) -> int:
        """Size of a head."""
        return self.width // self.heads

    def own(self, tp: int) -> Parameters:
        """Return both vectors of each head."""
        if self.shared:
            return {"bias_u": (), "bias_v": ()}
        shape = (self.heads, self.head_size)
        return {
            name: (Weight(name=name, shape=shape, axis=0, decay=False),)
            for name in ("bias_u", "bias_v")
        }

    def parts(self) -> Mapping[str, LayerShape | None]:
        """Return its maps."""
        maps = (Output(name, self.width, self.head_size, self.bias) for name in "qkv")
        distances = Output("distances", self.width, self.head_size)
        return {
            "inputs": ColumnShape(self.width, tuple(maps)),
            "distances": None if self.shared else ColumnShape(self.width, (distances,)),
            "output": RowShape("o", self.width, self.width, self.bias, self.out_scale),
        }

    def widths(self) -> Widths:
        """Return its heads; a pair has two scores, one of them for twice as many distances."""
        own = Widths(
            query=self.width,
            key=self.width,
            value=self.width,
            unit=self.head_size,
            heads=self.heads,
            scored=(2 if self.shared else 4) * self.width,
            regions=1,
        )
        return LayerShape.widths(self) + own

    def saved(self, passes: Passes, pattern: AttentionPattern) -> tuple[Saved, ...]:
        """Return what it keeps."""
        return (
            Saved(name="queries, keys and values, fused", query=3),
            Saved(name="attention output", query=1, for_weights=True),
        )


@frozen
class DepthwiseShape(LayerShape):
    """A convolution of each channel over `tokens`."""

    layer = "mimo_launch.layers.shaped_layer:ShapedLayer"

    channels: int
    tokens: int
    bias: bool

    def own(self, tp: int) -> Parameters:
        """Return its weight, and its bias if it has one."""
        shape, std = (self.channels, self.tokens), self.tokens**-0.5
        weight = Weight(name="weight", shape=shape, axis=0, std=std)
        bias = Weight(name="bias", shape=shape[:1], axis=0, init="zeros", decay=False)
        return {"weight": (weight,), "bias": (bias,) if self.bias else ()}


@frozen
class StatisticsShape(LayerShape):
    """A batch norm with stored statistics, which do not train: its weight and bias do."""

    layer = f"{_LAYERS}:StoredNorm"

    channels: int

    def own(self, tp: int) -> Parameters:
        """Return weight, bias, and the mean and the variance of each channel."""
        weight = Weight(name="weight", shape=(self.channels,), axis=0, init="ones", decay=False)
        return {
            "weight": (weight,),
            "bias": (replace(weight, name="bias", init="zeros"),),
            "mean": (buffer("mean", self.channels, "zeros"),),
            "variance": (buffer("variance", self.channels, "ones"),),
        }


@frozen
class ConvolutionShape(LayerShape):
    """The convolution of a block: channels with a gate, a depthwise convolution, a norm, a map."""

    layer = f"{_LAYERS}:GatedConvolution"

    width: int
    tokens: int
    bias: bool
    out_scale: float

    def parts(self) -> Mapping[str, LayerShape]:
        """Return its layers in order."""
        width, bias = self.width, self.bias
        maps = (Output(name, width, bias=bias) for name in ("value", "gate"))
        return {
            "inputs": ColumnShape(width, tuple(maps)),
            "depthwise": DepthwiseShape(width, self.tokens, bias),
            "norm": StatisticsShape(width),
            "output": RowShape("out", width, width, bias, self.out_scale),
        }

    def widths(self) -> Widths:
        """Return the work of its maps."""
        return LayerShape.widths(self) + Widths(regions=1)

    def saved(self, passes: Passes, pattern: AttentionPattern) -> tuple[Saved, ...]:
        """Return what it keeps."""
        return (
            Saved(name="channels and gates, fused", query=2),
            Saved(name="convolved", query=1, for_weights=True),
        )


@frozen
class ShiftedGateShape(LayerShape):
    """The biases of channels and of gates that come after those of their maps, as columns."""

    layer = f"{_LAYERS}:ShiftedGate"

    width: int

    def own(self, tp: int) -> Parameters:
        """Return both."""
        zeros = Weight(name="", shape=(self.width, 1), axis=0, init="zeros", decay=False)
        return {name: (replace(zeros, name=name),) for name in ("value", "gate")}


@frozen
class CausalConvolutionShape(ConvolutionShape):
    """The convolution of a block of Phi-4: it sees no later token, and two maps follow."""

    layer = f"{_LAYERS}:CausalConvolution"

    def parts(self) -> Mapping[str, LayerShape]:
        """Return its layers in order; each tp rank holds the last one whole."""
        width, bias = self.width, self.bias
        maps = (Output(name, width, bias=bias) for name in ("value", "gate"))
        return {
            "inputs": ColumnShape(width, tuple(maps)),
            "shift": ShiftedGateShape(width),
            "depthwise": DepthwiseShape(width, self.tokens, bias),
            "mixed": RowShape("mixed", width, width, bias),
            "out": WholeShape(width, width, bias, scale=self.out_scale),
        }

    def saved(self, passes: Passes, pattern: AttentionPattern) -> tuple[Saved, ...]:
        """Return what it keeps."""
        return (
            *ConvolutionShape.saved(self, passes, pattern),
            Saved(name="mixed channels", stream=1, shared=True),
            Saved(name="their SiLU", stream=1, for_weights=True),
        )


@frozen
class ConformerBlockShape(LayerShape):
    """Half of an MLP, attention, a convolution, half of an MLP, each after a norm; a last norm."""

    layer = f"{_MODELS}:ConformerBlock"

    norm: NormShape
    mlp: MlpShape
    attention: RelativeAttentionShape
    conv: ConvolutionShape

    def parts(self) -> Mapping[str, LayerShape]:
        """Return its layers in order."""
        return {
            "first_norm": self.norm,
            "first_mlp": self.mlp,
            "attention_norm": self.norm,
            "attention": self.attention,
            "conv_norm": self.norm,
            "conv": self.conv,
            "mlp_norm": self.norm,
            "mlp": self.mlp,
            "norm": self.norm,
        }

    def saved(self, passes: Passes, pattern: AttentionPattern) -> tuple[Saved, ...]:
        """Return the streams between its layers, what norms keep, and its layers."""
        found: tuple[Saved, ...] = ()
        parts: tuple[Part, ...] = ("mlp", "attention", "attention", "mlp")
        for part in parts:
            found += (
                Saved(name="stream", stream=1, shared=True),
                Saved(name="normed", stream=1, for_weights=True, part=part, normed=True),
                *passes.of_stream(self.norm.kind, part),
            )
        # The inner width of a block is that of both MLPs.
        for layer in (self.mlp, self.attention, self.conv):
            found += layer.saved(passes, pattern)
        last = Saved(name="stream before the last norm", stream=1, shared=True)
        return (*found, last, *passes.of_stream(self.norm.kind, None))

    def temporary(self) -> Temporary:
        """Return the tensors of an MLP that are alive together, half of the inner width each."""
        return Temporary(
            forward=(
                Saved(name="streams", stream=4, shared=True),
                Saved(name="up and its activation, of one MLP", inner=1),
            ),
            backward=(
                Saved(name="gradients of up and its activation", inner=1),
                Saved(name="gradients of the stream", stream=2),
            ),
        )
