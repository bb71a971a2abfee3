"""The audio encoder of Qwen3-Omni as a stage: three convolutions over time and mel bands.

Decides: that each token computes its own places of the convolutions, about 1.4 times the products,
so that any rank may hold any token; what lies outside a chunk is zero for the next convolution.
Relies on: `audio_encoder` for all else.
Leaves: nothing.
Source: arXiv:2509.17765, and `transformers` 5.24, models/qwen3_omni_moe.

Legend: n tokens of this rank, M mel bands, F frames that a token sees, C channels, D width.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from mimo_launch.kinds.aut import SquaresShape
from mimo_launch.layers.linear import WholeLinear
from mimo_launch.layers.pointwise import gelu
from mimo_launch.layers.shaped_layer import ShapedLayer
from mimo_launch.models.audio_encoder import AudioStage
from mimo_launch.spec.aut import AutModel


class SquareConvolution(ShapedLayer[SquaresShape]):
    """A convolution over bands and time with stride 2, held whole on every tp rank.

    It pads bands with zeros; its input has all frames that it sees: [n, C, bands, frames].
    """

    def forward(self, x_nCBF: Tensor) -> Tensor:
        """Return one output for every second band and frame."""
        return F.conv2d(x_nCBF, self.weight, self.bias, stride=2, padding=(1, 0))


class AutStage(AudioStage):
    """Consecutive layers; the first stage embeds frames, the last stage projects rows."""

    model: AutModel
    conv1: SquareConvolution  # type: ignore[assignment]
    conv2: SquareConvolution  # type: ignore[assignment]
    conv3: SquareConvolution
    joined: WholeLinear

    def convolved(self, frames_nMF: Tensor, places: Tensor, missing: Tensor) -> Tensor:
        """Return the output of the convolutions for each token, [n, D]."""
        del missing  # Frames after a clip are zeros, as in a chunk that another clip fills.
        x, length = frames_nMF.unsqueeze(1), self.model.chunk
        # `step` times its place is the middle of a token's outputs of a convolution.
        for convolution, step in ((self.conv1, 4), (self.conv2, 2), (self.conv3, 1)):
            x = self.context.fused(gelu, convolution(x))
            length = -(-length // 2)
            around = torch.arange(x.shape[3], device=places.device) - x.shape[3] // 2
            there = step * places[:, None] + around
            x = x.masked_fill(((there < 0) | (there >= length))[:, None, None], 0)
        made: Tensor = self.joined(x.flatten(1))
        return made
