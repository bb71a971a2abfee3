"""Conformers, of Parakeet and of Phi-4: the layers before their blocks, and how they are cut.

Decides: the weights and work of these layers; that the tokens of a clip are not cut.
Relies on: `conformer_shapes` for blocks; `audio` for the rest.
Leaves: what they compute to `models.conformer`.
"""

from dataclasses import replace
from typing import Literal

from mimo_launch.diag.frozen import frozen
from mimo_launch.kinds.audio import KERNEL, AudioKind, ClipAttending
from mimo_launch.kinds.aut import SquaresShape
from mimo_launch.kinds.conformer_shapes import (
    CausalConvolutionShape,
    ConformerBlockShape,
    ConvolutionShape,
    RelativeAttentionShape,
)
from mimo_launch.kinds.facts import Attending
from mimo_launch.kinds.layer import Ends
from mimo_launch.kinds.mlp_shapes import MlpShape
from mimo_launch.kinds.shapes import OneShape, WholeShape, table
from mimo_launch.kinds.transformer_encoder import BlocksCuts, PatchWork, TransformerEncoderKind
from mimo_launch.kinds.weights import LayerShape, Parameters, buffer
from mimo_launch.spec.conformer import ConformerModel

_MODELS = "mimo_launch.models.conformer"


@frozen
class SquareShape(SquaresShape):
    """A convolution over time and mel bands with stride 2, or of one place."""

    layer = f"{_MODELS}:Square"


@frozen
class BandsShape(LayerShape):
    """The stored mean of each band of a frame, and one over its deviation; they do not train."""

    layer = f"{_MODELS}:StoredBands"

    mels: int

    def own(self, tp: int) -> Parameters:
        """Return both."""
        return {
            "mean": (buffer("mean", self.mels, "zeros"),),
            "over_deviation": (buffer("over_deviation", self.mels, "ones"),),
        }


@frozen
class SubsamplingShape(LayerShape):
    """The layers before the blocks: each depthwise convolution has a map of channels after it.

    There may also be what norms the bands of frames, and the numbers of distances of all blocks.
    """

    conv1: SquareShape
    conv2: SquareShape
    map2: SquareShape
    conv3: SquareShape
    map3: SquareShape
    joined: WholeShape
    positions: None = None
    bands: BandsShape | None = None
    distances: OneShape | None = None


@frozen
class WholeClips(BlocksCuts):
    """Heads and widths; the layers of a token read its neighbours."""

    @property
    def tokens(self) -> bool:
        """Whether the tokens of a clip may be cut over ranks."""
        return False


@frozen
class ConformerKind(AudioKind):
    """A conformer over log-mel clips."""

    model: ConformerModel

    @property
    def stage(self) -> str:
        """The class that builds a stage."""
        return f"{_MODELS}:ConformerStage"

    @property
    def has_final_norm(self) -> bool:
        """Each block ends with a norm."""
        return False

    @property
    def cuts(self) -> WholeClips:
        """Heads and widths, no tokens."""
        return WholeClips(self.model)

    @property
    def attending(self) -> Attending:
        """Whole clips."""
        return ClipAttending(model=self.model)

    def mlp(self) -> MlpShape:
        """Return one of the two MLPs of a block."""
        gate: Literal["silu"] | None = "silu" if self.model.gated else None
        made = TransformerEncoderKind.mlp(self)
        return replace(made, activation="silu", gate=gate, bias=self.model.bias)

    def layer(self, number: int) -> LayerShape:  # type: ignore[override]
        """Return a block."""
        model, scale = self.model, self._out_scale
        shared = model.distance_bias is not None
        convolution = CausalConvolutionShape if model.causal else ConvolutionShape
        return ConformerBlockShape(
            norm=self.norm(),
            mlp=self.mlp(),
            attention=RelativeAttentionShape(model.hidden, model.heads, model.bias, scale, shared),
            conv=convolution(model.hidden, model.kernel, model.conv_bias, scale),
        )

    @property
    def patch_work(self) -> PatchWork:
        """The convolutions of a token at 7, 3 and 1 places in time, ReLU after each, and a map."""
        channels, bands = self.model.channels, self.model.mels // 2
        first, second, third = 7 * bands, 3 * bands // 2, bands // 4
        products = channels * KERNEL**2 * (first + second + third)
        products += channels**2 * (second + third) + channels * third * self.model.hidden
        saved = 15 * self.model.mels + channels * (first + 2 * second + 2 * third)
        return PatchWork(products=products, saved=saved)

    def before(self, ends: Ends) -> LayerShape:
        """Return the convolutions, and the map of all bands to the stream."""
        channels, far, distances = self.model.channels, self.model.distance_bias, None
        if far is not None:
            distances = table(2 * far, self.model.heads, embeds=False)
            distances = replace(distances, weight=replace(distances.weight, axis=1, std=0.02))
        return SubsamplingShape(
            conv1=SquareShape(1, channels),
            conv2=SquareShape(1, channels),
            map2=SquareShape(channels, channels, side=1),
            conv3=SquareShape(1, channels),
            map3=SquareShape(channels, channels, side=1),
            joined=WholeShape(channels * self.model.mels // 8, self.model.hidden),
            bands=BandsShape(self.model.mels) if self.model.sound == "phi4" else None,
            distances=distances,
        )
