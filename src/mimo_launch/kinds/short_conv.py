"""The short convolution of LFM2: its weights, its work and its saved activations.

Decides: the names of its weights and how channels are cut, and what a layer saves.
Relies on: `shapes` for maps at both ends.
Leaves: what it computes to `layers.short_conv`.
"""

from collections.abc import Mapping

from mimo_launch.diag.frozen import frozen
from mimo_launch.kinds.layer import Widths
from mimo_launch.kinds.saved_activations import AttentionPattern, Passes, Saved
from mimo_launch.kinds.shapes import ColumnShape, Output, RowShape
from mimo_launch.kinds.weights import LayerShape, Parameters, Weight

# `query` counts the channels, as in recurrent layers. The convolution is computed again.
_SAVED = (
    Saved(name="B, C and x, fused", query=3),
    Saved(name="B times x", query=1),
    Saved(name="output of the convolution", query=1),
    Saved(name="gated", query=1, for_weights=True),
)


@frozen
class ChannelsShape(LayerShape):
    """A depthwise convolution over `width` tokens, without biases."""

    layer = "mimo_launch.layers.shaped_layer:ShapedLayer"

    channels: int
    width: int

    def own(self, tp: int) -> Parameters:
        """Return its weights."""
        # The standard deviation of torch's uniform init for a depthwise convolution.
        std, shape = (3 * self.width) ** -0.5, (self.channels, self.width)
        return {"weight": (Weight(name="weight", shape=shape, axis=0, std=std),)}


@frozen(kw_only=True)
class ShortConvShape(LayerShape):
    """A mixer: B, C and x of a token, and C times the convolution of B times x."""

    layer = "mimo_launch.layers.short_conv:ShortConv"

    width: int
    tokens: int
    out_scale: float

    def parts(self) -> Mapping[str, LayerShape]:
        """Return its layers in order."""
        width = self.width
        return {
            "inputs": ColumnShape(width, tuple(Output(name, width) for name in "BCx")),
            "conv": ChannelsShape(width, self.tokens),
            "output": RowShape("out", width, width, scale=self.out_scale),
        }

    def widths(self) -> Widths:
        """Return its channels, and what cp ranks exchange."""
        return LayerShape.widths(self) + Widths(
            query=self.width, exchanges=2 * self.width, regions=1
        )

    def saved(self, passes: Passes, pattern: AttentionPattern) -> tuple[Saved, ...]:
        """Return what it keeps."""
        del passes, pattern
        return _SAVED
