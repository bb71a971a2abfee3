"""The short convolution of LFM2 (arXiv:2511.23404): gates around a depthwise causal convolution.

Decides: that cp ranks exchange tokens of all channels for all tokens of some channels, as for
recurrent layers, so that the convolution runs over whole sequences.
Relies on: `ssd_kernels` for the convolution.
Leaves: the rest of a layer to `models`.

Legend: N tokens of this rank, D width; f channels of this tp rank, e of them on this cp rank, the
last ones padded; B sequences of S tokens; W tokens of the convolution.
"""

from functools import partial

import torch.nn.functional as F
from torch import Tensor

from mimo_launch.comm.autograd_collectives import exchange
from mimo_launch.kinds.short_conv import ChannelsShape, ShortConvShape
from mimo_launch.layers.linear import ColumnLinear, RowLinear
from mimo_launch.layers.recompute import Remake, recomputed
from mimo_launch.layers.sequence_contexts import SequenceContext, in_order, in_shards
from mimo_launch.layers.shaped_layer import ShapedLayer
from mimo_launch.layers.ssd_kernels import causal_conv


class ShortConv(ShapedLayer[ShortConvShape]):
    """C times the convolution of B times x; documents do not affect each other."""

    inputs: ColumnLinear
    conv: ShapedLayer[ChannelsShape]
    output: RowLinear

    def forward(
        self, x_nD: Tensor, sequences: SequenceContext, again: Remake | None = None
    ) -> Tensor:
        """Return the mixed tokens, [n, D] -> [n, D]."""
        b_Nf, c_Nf, x_Nf = self.inputs.of_tokens(x_nD, sequences.draws, again).chunk(3, dim=1)
        mixed_Nf = self._along_sequences(b_Nf * x_Nf, sequences)
        out: Tensor = self.output(c_Nf * mixed_Nf, sequences.draws)
        return out

    def _along_sequences(self, x_Nf: Tensor, sequences: SequenceContext) -> Tensor:
        """Return the convolution of this rank's tokens."""
        cp, channels, weight_fW = self.context.cp, x_Nf.shape[1], self.conv.weight
        if cp.size == 1:
            whole_BSf = in_order(x_Nf, sequences.batch, 1)
            return self._convolved(whole_BSf, weight_fW, sequences).flatten(0, 1)
        padding = -channels % cp.size
        parts = F.pad(x_Nf, (0, padding)).view(len(x_Nf), cp.size, -1).transpose(0, 1)
        # Send channels of this rank's tokens, a part per cp rank; receive its part of all tokens.
        arrived = exchange(parts.contiguous(), cp).flatten(0, 1)
        all_fW = F.pad(weight_fW, (0, 0, 0, padding))
        mine_eW = all_fW.view(cp.size, -1, weight_fW.shape[1])[cp.index]
        whole_BSe = in_order(arrived, sequences.batch, cp.size)
        mixed_BSe = self._convolved(whole_BSe, mine_eW, sequences)
        back = in_shards(mixed_BSe, cp.size).view(cp.size, -1, mixed_BSe.shape[2])
        return exchange(back, cp).transpose(0, 1).flatten(1)[:, :channels]

    def _convolved(self, x_BSe: Tensor, weight_eW: Tensor, sequences: SequenceContext) -> Tensor:
        documents = sequences.documents
        convolve = partial(
            causal_conv,
            bias_F=None,
            documents_BS=None if documents is None else documents.numbers,
            fused=self.context.fused,
            activates=False,
        )
        out: Tensor = recomputed(convolve, x_BSe, weight_eW)
        return out
