"""The audio encoder of Qwen3-Omni: what it does not share with that of Whisper.

Decides: its three convolutions, their weights and work.
Relies on: `audio` for the rest.
Leaves: cutting clips to `models.patches`.
"""

from mimo_launch.diag.frozen import frozen
from mimo_launch.kinds.attention_shapes import AttentionShape
from mimo_launch.kinds.audio import KERNEL, AudioKind
from mimo_launch.kinds.layer import Ends
from mimo_launch.kinds.shapes import WholeShape
from mimo_launch.kinds.transformer_encoder import PatchWork, TransformerEncoderKind
from mimo_launch.kinds.weights import LayerShape, Parameters, Weight
from mimo_launch.spec.aut import AutModel


@frozen
class SquaresShape(LayerShape):
    """A convolution over mel bands and time that each tp rank holds whole."""

    layer = "mimo_launch.models.aut:SquareConvolution"

    channels: int
    width: int
    side: int = KERNEL

    def own(self, tp: int) -> Parameters:
        """Return its weight and its bias."""
        shape = (self.width, self.channels, self.side, self.side)
        weight = Weight(name="weight", shape=shape, std=(self.channels * self.side**2) ** -0.5)
        bias = Weight(name="bias", shape=shape[:1], init="zeros", decay=False)
        return {"weight": (weight,), "bias": (bias,)}


@frozen
class ConvolvedShape(LayerShape):
    """The layers before the blocks; positions are computed."""

    conv1: SquaresShape
    conv2: SquaresShape
    conv3: SquaresShape
    joined: WholeShape
    positions: None = None


@frozen
class AutKind(AudioKind):
    """The audio encoder of Qwen3-Omni over log-mel clips."""

    model: AutModel

    @property
    def stage(self) -> str:
        """The class that builds a stage."""
        return "mimo_launch.models.aut:AutStage"

    def attention(self) -> AttentionShape:
        """Return the attention of a block, with all biases."""
        return TransformerEncoderKind.attention(self)

    @property
    def bands(self) -> tuple[int, int, int]:
        """Bands after each convolution."""
        first = -(-self.model.mels // 2)
        second = -(-first // 2)
        return first, second, -(-second // 2)

    @property
    def patch_work(self) -> PatchWork:
        """The convolutions of a token at 7, 3 and 1 places in time, GELU after each, and a map."""
        channels, inputs, products, saved = self.model.channels, 1, 0, 15 * self.model.mels
        for bands, places in zip(self.bands, (7, 3, 1), strict=True):
            products += bands * places * channels * inputs * KERNEL**2
            # The input of GELU, and its output with zeros outside a chunk.
            saved += 2 * bands * places * channels
            inputs = channels
        products += channels * self.bands[-1] * self.model.hidden
        return PatchWork(products=products, saved=saved)

    def before(self, ends: Ends) -> LayerShape:
        """Return the convolutions, and the map of all bands to the stream."""
        channels = self.model.channels
        return ConvolvedShape(
            conv1=SquaresShape(1, channels),
            conv2=SquaresShape(channels, channels),
            conv3=SquaresShape(channels, channels),
            joined=WholeShape(channels * self.bands[-1], self.model.hidden, bias=False),
        )
