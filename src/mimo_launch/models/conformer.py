"""A conformer as a stage: its convolutions, and its blocks.

Decides: that each token computes its own places of the convolutions before the blocks; what lies
outside a clip is zero for the next convolution; the order of a block's layers.
Relies on: `audio_encoder` for all else, `layers.conformer` for layers.
Leaves: nothing.
Sources: arXiv:2305.05084, arXiv:2503.01743; `transformers` 5.24, models/parakeet and
models/phi4_multimodal.

Legend: n tokens of this rank, M mel bands, F frames that a token sees, C channels, D width.
"""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from mimo_launch.kinds.conformer import BandsShape, SquareShape
from mimo_launch.kinds.conformer_shapes import ConformerBlockShape
from mimo_launch.layers.conformer import CausalConvolution, GatedConvolution, RelativeAttention
from mimo_launch.layers.image_contexts import AttentionContext, ImageContext
from mimo_launch.layers.linear import WholeLinear, WholeTable
from mimo_launch.layers.norms import Norm
from mimo_launch.layers.pointwise import widened
from mimo_launch.layers.shaped_layer import ShapedLayer
from mimo_launch.models.audio_encoder import AudioStage, ClipsInput
from mimo_launch.models.mlp import Mlp
from mimo_launch.models.transformer_block import Layer
from mimo_launch.spec.conformer import ConformerModel


class Square(ShapedLayer[SquareShape]):
    """A convolution over frames and bands with stride 2, depthwise after the first, or a map.

    It pads bands with zeros; its input has all frames that it sees: [n, C, frames, bands].
    """

    def forward(self, x_nCFM: Tensor) -> Tensor:
        """Return one output for every second frame and band, or for every one."""
        if self.shape.side == 1:
            return F.conv2d(x_nCFM, self.weight, self.bias)
        channels = x_nCFM.shape[1]
        return F.conv2d(x_nCFM, self.weight, self.bias, stride=2, padding=(0, 1), groups=channels)


class ConformerBlock(Layer[ConformerBlockShape]):
    """Half of an MLP, attention, a convolution and half of an MLP, each added; a last norm."""

    first_norm: Norm
    first_mlp: Mlp
    attention_norm: Norm
    attention: RelativeAttention
    conv_norm: Norm
    conv: GatedConvolution | CausalConvolution
    mlp_norm: Norm
    mlp: Mlp
    norm: Norm

    def _compute(self, x_nD: Tensor, attention_context: AttentionContext) -> Tensor:
        """Return the stream after the block. Raises: TypeError for sequences."""
        if not isinstance(attention_context, ImageContext):
            raise TypeError("a conformer reads lists of clips")
        x_nD = x_nD + 0.5 * self._part("mlp", self._fed, self.first_norm, self.first_mlp, x_nD)
        mixers = ((self.attention_norm, self.attention), (self.conv_norm, self.conv))
        for norm, mixer in mixers:
            given = (norm, mixer, x_nD, attention_context)
            x_nD = x_nD + self._part("attention", self._mixed, *given)
        x_nD = x_nD + 0.5 * self._part("mlp", self._fed, self.mlp_norm, self.mlp, x_nD)
        out: Tensor = self.norm(x_nD)
        return out

    def _fed(self, norm: Norm, mlp: Mlp, x_nD: Tensor) -> Tensor:
        out: Tensor = mlp(norm(x_nD), None, self._again("mlp", norm, x_nD))
        return out

    def _mixed(
        self,
        norm: Norm,
        mixer: RelativeAttention | GatedConvolution | CausalConvolution,
        x_nD: Tensor,
        clips: ImageContext,
    ) -> Tensor:
        out: Tensor = mixer(norm(x_nD), clips, self._again("attention", norm, x_nD))
        return out


class StoredBands(ShapedLayer[BandsShape]):
    """The norm of each mel band by its stored mean and deviation: [..., M] -> [..., M]."""

    mean: Tensor
    over_deviation: Tensor

    def forward(self, frames: Tensor) -> Tensor:
        """Return the normed bands, computed in at least fp32."""
        normed = (widened(frames) - self.mean) * self.over_deviation
        return normed.to(frames.dtype)


class ConformerStage(AudioStage):
    """Consecutive layers; the first stage embeds frames, the last stage projects rows."""

    model: ConformerModel
    conv1: Square  # type: ignore[assignment]
    conv2: Square  # type: ignore[assignment]
    map2: Square
    conv3: Square
    map3: Square
    joined: WholeLinear
    bands: StoredBands | None
    distances: WholeTable | None

    def forward(self, hidden: Tensor | None, packed: ClipsInput) -> Tensor:
        """Return the hidden state [n, D], or on the last stage the rows [r, L] of this rank."""
        shared = self.distances if self.stage.is_first else None
        if shared is not None and isinstance(packed.mask, ImageContext):
            every = torch.arange(len(shared), device=shared.weight.device)
            packed = replace(packed, mask=replace(packed.mask, distances=shared(every)))
        return AudioStage.forward(self, hidden, packed)

    def convolved(self, frames_nMF: Tensor, places: Tensor, missing: Tensor) -> Tensor:
        """Return the output of the convolutions for each token, [n, D]."""
        x, length = frames_nMF.mT.unsqueeze(1), 8 * (places + 1) - missing
        if self.bands is not None:
            x = self.bands(x).masked_fill(_outside(x, 8, places, length), 0)
        # `step` times its place is the middle of a token's outputs of a convolution.
        for layers, step in (
            ((self.conv1,), 4), ((self.conv2, self.map2), 2), ((self.conv3, self.map3), 1),
        ):  # fmt: skip
            for layer in layers:
                x = layer(x)
            length = (length + 1) // 2
            x = F.relu(x.masked_fill(_outside(x, step, places, length), 0))
        made: Tensor = self.joined(x.flatten(1))
        return made

    def placed(self, x_nD: Tensor, places: Tensor) -> Tensor:
        """Return the tokens that enter the blocks; only distances have positions."""
        del places
        return x_nD * self.model.hidden**0.5 if self.model.scale_input else x_nD


def _outside(x_nCFM: Tensor, step: int, places: Tensor, length: Tensor) -> Tensor:
    """Return which frames of each token are outside its clip of `length`, [n, 1, F, 1]."""
    around = torch.arange(x_nCFM.shape[2], device=places.device) - x_nCFM.shape[2] // 2
    there = step * places[:, None] + around
    return ((there < 0) | (there >= length[:, None]))[:, None, :, None]
