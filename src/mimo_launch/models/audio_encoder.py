"""The encoder of Whisper as a stage: packed log-mel frames of clips of any length in, rows out.

Decides: the two convolutions, positions and frame stacking. Both convolutions pad each clip with
zeros, or with the silence after it if tokens of that silence are left out; attention stays inside a
clip. Tokens that do not fill a row come last.
Relies on: `encoder_inputs` for the frames of each token, `projector` for the projector and the rows
of this rank.
Leaves: moving rows to the bridge.
Source: arXiv:2212.04356, section 2.2, and github.com/openai/whisper.

Legend: N tokens of a replica's group, n tokens of this rank, M mel bands, D width, L width of the
language model.
"""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mimo_launch.layers.norms import Norm
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.parameter_segments import SegmentedModule, replicated
from mimo_launch.layers.pointwise import gelu
from mimo_launch.layout.stages import Stage
from mimo_launch.models.block_stack import blocks
from mimo_launch.models.encoder_inputs import VALUES_PER_BAND, EncoderInput, Patches, own_share
from mimo_launch.models.projector import owned, projector
from mimo_launch.models.transformer_block import encoder_shape
from mimo_launch.spec.audio import FRAMES_PER_TOKEN
from mimo_launch.spec.spec import AudioModel

KERNEL = 3


class Convolution(SegmentedModule):
    """A convolution over time, held whole on every tp rank; its input is already cut into windows.

    Shapes: [..., C, 3] -> [..., D].
    """

    def __init__(self, context: ParallelContext, channels: int, width: int) -> None:
        super().__init__()
        std = (channels * KERNEL) ** -0.5
        weight = replicated(
            "weight",
            (width, channels, KERNEL),
            context.token_grad,
            counted=context.counts,
            std=std,
        )
        bias = replicated(
            "bias",
            (width,),
            context.token_grad,
            counted=context.counts,
            init="zeros",
            decay=False,
        )
        self.declare("weight", weight, dtype=context.dtype)
        self.declare("bias", bias, dtype=context.dtype)

    def forward(self, windows: Tensor) -> Tensor:
        """Return one output per window."""
        return F.linear(windows.flatten(-2), self.weight.flatten(1), self.bias)


class Positions(SegmentedModule):
    """A table of sines and cosines, stored with the weights as in Whisper and never trained."""

    def __init__(self, context: ParallelContext, size: int, width: int) -> None:
        super().__init__()
        table = replicated(
            "weight",
            (size, width),
            "complete",
            counted=context.counts,
            init="sinusoids",
            decay=False,
        )
        self.declare("weight", replace(table, trains=False), dtype=context.dtype)

    def forward(self, places_n: Tensor) -> Tensor:
        """Return the table's rows [n, D] for places in a clip."""
        return F.embedding(places_n, self.weight)


class AudioStage(nn.Module):
    """Consecutive layers; the first stage embeds frames, the last stage projects rows."""

    def __init__(
        self,
        context: ParallelContext,
        model: AudioModel,
        stage: Stage,
        *,
        row_width: int,
        recompute: bool,
    ) -> None:
        super().__init__()
        self.context, self.stage, self.model = context, stage, model
        if stage.is_first:
            self.conv1 = Convolution(context, model.mels, model.hidden)
            self.conv2 = Convolution(context, model.hidden, model.hidden)
            self.positions = Positions(context, model.frames // FRAMES_PER_TOKEN, model.hidden)
        shape = replace(encoder_shape(model), key_bias=False)
        self.layers = blocks(context, shape, stage, recompute=recompute)
        if stage.is_last:
            self.norm = Norm(context, model.hidden, "layer")
            self.projector = projector(
                context,
                model.projector,
                model.row_width,
                row_width,
                bias=model.projector_bias,
                inner=model.projector_mlp_width or 0,
                patches=model.patches_per_row,
            )

    def forward(self, hidden: Tensor | None, packed: EncoderInput) -> Tensor:
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
        rows: Tensor = self.projector(self.norm(x_nD).view(-1, self.model.row_width))
        return owned(rows, packed.sizes, self.context)

    def _embed(self, given: Patches | None, loose: Patches | None = None) -> Tensor:
        if given is None:
            raise ValueError("the first stage of an encoder needs frames")
        mine = own_share(given, self.context)
        if loose is not None:
            both = (mine.values, loose.values), (mine.positions, loose.positions)
            mine = Patches(*(torch.cat(each) for each in both))
        places = mine.positions.squeeze(1)
        frames_nM5 = mine.values.view(len(places), self.model.mels, VALUES_PER_BAND)
        # The first convolution's windows at the three places that the second one reads: [n, 3, M,
        # 3].
        windows = frames_nM5.unfold(2, KERNEL, 1).transpose(1, 2)
        joined_n3D = self.context.fused(gelu, self.conv1(windows))
        # Before a clip the second convolution reads zeros, not the first convolution's output for
        # zeros.
        outside = (places == 0)[:, None] & (torch.arange(KERNEL, device=places.device) == 0)
        joined_n3D = joined_n3D.masked_fill(outside[:, :, None], 0)
        x_nD: Tensor = self.context.fused(gelu, self.conv2(joined_n3D.transpose(1, 2)))
        placed: Tensor = self.positions(places)
        return x_nD + placed
