"""Audio encoders: what they do not share with other encoders.

Decides: the two convolutions of Whisper (arXiv:2212.04356), their weights and work.
Relies on: `transformer_encoder` for the rest.
Leaves: cutting clips to `models.patches`.
"""

from dataclasses import replace

from mimo_launch.diag.frozen import frozen
from mimo_launch.kinds.attention_shapes import AttentionShape
from mimo_launch.kinds.facts import Attending
from mimo_launch.kinds.layer import Ends, Workload
from mimo_launch.kinds.shapes import TABLE, OneShape, table
from mimo_launch.kinds.transformer_encoder import PatchWork, TransformerEncoderKind
from mimo_launch.kinds.weights import LayerShape, Parameters, Weight
from mimo_launch.spec.media import FRAMES_PER_TOKEN, Windows
from mimo_launch.spec.spec import AudioModel, Clips

# The frames that a convolution reads at a time.
KERNEL = 3


@frozen
class WindowsShape(LayerShape):
    """A convolution over time that each tp rank holds whole."""

    layer = "mimo_launch.models.audio_encoder:Convolution"

    channels: int
    width: int

    def own(self, tp: int) -> Parameters:
        """Return its weight and its bias."""
        shape = (self.width, self.channels, KERNEL)
        weight = Weight(name="weight", shape=shape, std=(self.channels * KERNEL) ** -0.5)
        bias = Weight(name="bias", shape=shape[:1], init="zeros", decay=False)
        return {"weight": (weight,), "bias": (bias,)}


@frozen
class FramesShape(LayerShape):
    """The layers of an audio encoder before its blocks."""

    conv1: WindowsShape
    conv2: WindowsShape
    positions: OneShape | None


@frozen(kw_only=True)
class ClipAttending(Attending):
    """Windows of a clip in chunks."""

    model: AudioModel

    @property
    def windows(self) -> Windows | None:
        """The windows in which tokens of all layers attend, if any; a clip is one row high."""
        rows = self.model.window_rows
        return None if rows is None else Windows(side=rows)


@frozen
class AudioKind(TransformerEncoderKind):
    """The encoder of Whisper over log-mel clips."""

    model: AudioModel

    @property
    def stage(self) -> str:
        """The class that builds a stage."""
        return "mimo_launch.models.audio_encoder:AudioStage"

    @property
    def input(self) -> Clips:
        """Clips."""
        return self.model

    @property
    def attending(self) -> Attending:
        """Windows of a clip in chunks."""
        return ClipAttending(model=self.model)

    def attention(self) -> AttentionShape:
        """Return the attention of a block; keys have no bias."""
        return replace(TransformerEncoderKind.attention(self), key_bias=False)

    @property
    def patch_work(self) -> PatchWork:
        """The first convolution at three places, then the second one; GELU after both."""
        width = self.model.hidden
        joined = 3 * width
        windows = 3 * 3 * self.model.mels
        saved = windows + 2 * joined + width
        return PatchWork(products=(windows + joined) * width, saved=saved)

    def _embedded(self, work: Workload) -> int:
        """Return the number of tokens, including tokens that do not fill a row."""
        return work.tokens

    def before(self, ends: Ends) -> LayerShape:
        """Return both convolutions, and the positions."""
        model, width = self.model, self.model.hidden
        # Stored with the weights, as in Whisper.
        positions = replace(
            table(model.frames // FRAMES_PER_TOKEN, width, embeds=False).weight,
            terms="complete",
            init="sinusoids",
            trains=False,
        )
        return FramesShape(
            conv1=WindowsShape(model.mels, width),
            conv2=WindowsShape(width, width),
            # Positions in a chunk are computed, not stored.
            positions=None if model.chunk else OneShape(TABLE, positions),
        )
