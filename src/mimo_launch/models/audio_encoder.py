"""The encoder of Whisper as a stage: packed log-mel frames of clips of any length in, rows out.

Decides: the two convolutions, positions and frame stacking. Both convolutions pad each clip with
zeros, or with the silence after it if tokens of that silence are left out; attention stays inside a
clip. Tokens that do not fill a row come last.
Relies on: `patches` for the frames of each token, `projector` for the projector and the rows
of this rank.
Leaves: moving rows to the bridge.
Source: arXiv:2212.04356, section 2.2, and github.com/openai/whisper.

Legend: N tokens of a replica's group, n tokens of this rank, M mel bands, D width, L width of the
language model.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mimo_launch.kinds.audio import KERNEL, AudioKind, WindowsShape
from mimo_launch.layers.linear import WholeTable
from mimo_launch.layers.norms import Norm
from mimo_launch.layers.pointwise import gelu
from mimo_launch.layers.shaped_layer import ShapedLayer
from mimo_launch.models.patches import (
    Patches,
    own_share,
    pack,
    without_loose,
)
from mimo_launch.models.positions import sines
from mimo_launch.models.projector import owned
from mimo_launch.models.stage_interface import ListForward, ListInput, ModelStage
from mimo_launch.spec.spec import AudioModel


class Convolution(ShapedLayer[WindowsShape]):
    """A convolution over time, held whole on every tp rank; its input is already cut into windows.

    Shapes: [..., C, 3] -> [..., D].
    """

    def forward(self, windows: Tensor) -> Tensor:
        """Return one output per window."""
        return F.linear(windows.flatten(-2), self.weight.flatten(1), self.bias)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipsInput(ListInput):
    """The input of an audio encoder; the first stage gets frames, and of tokens without a row."""

    patches: Patches | None
    loose: Patches | None


class AudioStage(ModelStage):
    """Consecutive layers; the first stage embeds frames, the last stage projects rows."""

    kind: AudioKind
    model: AudioModel
    conv1: Convolution
    conv2: Convolution
    positions: WholeTable | None
    norm: Norm | None
    projector: nn.Module

    def inputs(self, forward: ListForward) -> ClipsInput:
        """Return the input of a forward."""
        patches, loose, view = None, None, forward.view
        if forward.stage.is_first:
            how, clips, context = forward.how, forward.images(), self.context
            if any(view.extras):
                clips, others = without_loose(clips, view.extras, how, context)
                loose = pack(others, how, context, forward.held_extras)
            patches = pack(clips, how, context, forward.held)
        return ClipsInput.of(forward, patches=patches, loose=loose)

    def forward(self, hidden: Tensor | None, packed: ClipsInput) -> Tensor:
        """Return the hidden state [n, D], or on the last stage the rows [r, L] that this rank owns.

        Shapes: hidden [n, D] from the stage before, None on the first.
        """
        x_nD = self._embed(packed.patches, packed.loose) if hidden is None else hidden
        for layer in self.layers.values():
            x_nD = layer(x_nD, packed.mask)
        if not self.stage.is_last:
            return x_nD
        # The tokens of a row are neighbours in their clip, so a view is enough.
        x_nD = x_nD[: len(x_nD) - packed.extra_tokens]
        if self.model.pooling == "mean":
            x_nD = x_nD.view(-1, self.model.stack, x_nD.shape[1]).mean(dim=1)
        x_nD = x_nD if self.norm is None else self.norm(x_nD)
        rows: Tensor = self.projector(x_nD.view(-1, self.model.row_width))
        return owned(rows, packed.sizes, self.context)

    def _embed(self, given: Patches | None, loose: Patches | None = None) -> Tensor:
        if given is None:
            raise ValueError("the first stage of an encoder needs frames")
        mine = own_share(given, self.context)
        if loose is not None:
            both = (mine.values, loose.values), (mine.positions, loose.positions)
            mine = Patches(*(torch.cat(each) for each in both))
        places, missing = mine.positions.unbind(1)
        sizes = len(places), self.model.mels, self.model.frames_seen
        frames_nMF = mine.values.view(sizes)
        x_nD: Tensor = self.convolved(frames_nMF, places, missing)
        return self.placed(x_nD, places)

    def placed(self, x_nD: Tensor, places: Tensor) -> Tensor:
        """Return the tokens that enter the blocks, with their positions."""
        if self.positions is None:
            return x_nD + sines(places, self.model.hidden, x_nD.dtype)
        placed: Tensor = self.positions(places)
        return x_nD + placed

    def convolved(self, frames_nM5: Tensor, places: Tensor, missing: Tensor) -> Tensor:
        """Return the output of the convolutions for each token, [n, D].

        `places` are in a clip or a chunk; `missing` counts frames that a token lacks at its end.
        """
        # The first convolution's windows at the three places that the second one reads: [n, 3, M,
        # 3].
        windows = frames_nM5.unfold(2, KERNEL, 1).transpose(1, 2)
        joined_n3D = self.context.fused(gelu, self.conv1(windows))
        # Around a clip the second convolution reads zeros, not the first convolution's output for
        # zeros.
        outside = torch.stack([places == 0, missing < 0, missing > 0], dim=1)
        joined_n3D = joined_n3D.masked_fill(outside[:, :, None], 0)
        x_nD: Tensor = self.context.fused(gelu, self.conv2(joined_n3D.transpose(1, 2)))
        return x_nD
