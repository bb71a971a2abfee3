"""The common base of recurrent mixers: heads cut over tp and, inside a layer, also over cp.

Decides: which heads and groups a rank computes, and how tokens of other cp ranks reach it.
Relies on: a subclass for the recurrence over whole sequences, and the norm after it.
Leaves: the rest of a layer to `models`.

Each cp rank exchanges its tokens of all heads for all tokens of its heads (DeepSpeed Ulysses,
arXiv:2309.14509), so that the convolution and the recurrence run over whole sequences. Traffic per
layer and local token: x, B, C and steps go out, y comes back, (cp - 1) / cp of each.

Legend: N tokens of this rank, D width; h heads of P channels on this tp rank, f = h * P, g groups
of size K; B sequences of S tokens; e heads and j groups on this cp rank. x, B and C are named as in
Mamba-2: channels of heads, and two vectors for each group of heads.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mimo_launch.comm.autograd_collectives import exchange
from mimo_launch.kinds.layer import even_cut
from mimo_launch.kinds.recurrent import ConvolutionShape, HeadWeightsShape, RecurrentShape
from mimo_launch.layers.linear import ColumnLinear, RowLinear
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.pointwise import widened
from mimo_launch.layers.recompute import Remake
from mimo_launch.layers.sequence_contexts import Documents, SequenceContext, in_order, in_shards
from mimo_launch.layers.shaped_layer import ShapedLayer
from mimo_launch.layers.ssd_kernels import causal_conv


class HeadShare(NamedTuple):
    """The heads of this tp rank that one cp rank computes, and the groups that they need."""

    heads: range
    groups: range


class RecurrentMixer(ShapedLayer[RecurrentShape]):
    """Projections, a short convolution, a recurrence along sequences, a gated norm."""

    inputs: ColumnLinear
    conv: ShapedLayer[ConvolutionShape]
    head: ShapedLayer[HeadWeightsShape]
    norm: nn.Module
    output: RowLinear

    def __init__(self, context: ParallelContext, shape: RecurrentShape) -> None:
        super().__init__(context, shape)
        self.sizes = shape.sizes
        self.heads = len(context.part(shape.sizes.heads))
        self.groups = max(1, shape.sizes.groups // context.tp.size)

    def recur(
        self,
        x_BSHP: Tensor,
        b_BSGK: Tensor,
        c_BSGK: Tensor,
        steps: tuple[Tensor, ...],
        weights: Mapping[str, Tensor],
        documents: Documents | None,
    ) -> Tensor:
        """Return the output of the recurrence, like x.

        `steps` [B, S, H] come directly from the projection, `weights` [H] are in at least fp32.
        Documents do not affect each other.
        """
        raise NotImplementedError

    def forward(
        self, x_nD: Tensor, sequences: SequenceContext, again: Remake | None = None
    ) -> Tensor:
        """Return the mixed tokens, [n, D] -> [n, D]; documents do not affect each other."""
        fused = self.inputs.of_tokens(x_nD, sequences.draws, again)
        inner, shared = self.heads * self.sizes.head_dim, self.groups * self.sizes.state
        widths = [inner, inner, *[self.heads] * len(self.shape.facts.steps), shared, shared]
        z, x, *steps, b, c = torch.split(fused, widths, dim=1)
        y_Nf = self._along_sequences((x, b, c), tuple(steps), sequences)
        out: Tensor = self.output(self.norm(y_Nf, z), sequences.draws)
        return out

    def _along_sequences(
        self, xbc: tuple[Tensor, ...], steps_Nh: tuple[Tensor, ...], sequences: SequenceContext
    ) -> Tensor:
        """Return the output of the recurrence for this rank's tokens, [N, f]."""
        cp = self.context.cp
        shares = [self._share(index) for index in range(cp.size)]
        channels = [self._channels(xbc, share, dim=1) for share in shares]
        if cp.size == 1:
            xbc_BS, *steps_BS = (in_order(t, sequences.batch, 1) for t in (channels[0], *steps_Nh))
            mixed = self._mix(xbc_BS, tuple(steps_BS), shares[0], sequences)
            return mixed.flatten(0, 1)
        steps = [[_rows(t, share.heads, 1, dim=1) for t in steps_Nh] for share in shares]
        parts = [torch.cat([x, *more], dim=1) for x, more in zip(channels, steps, strict=True)]
        # Send features of this rank's tokens, a part per cp rank; receive its part of all tokens.
        arrived = exchange(torch.stack(parts), cp).flatten(0, 1)
        sizes = [channels[0].shape[1], *(t.shape[1] for t in steps[0])]
        whole = in_order(arrived, sequences.batch, cp.size)
        xbc_BS, *steps_BS = torch.split(whole, sizes, dim=2)
        y_BSe = self._mix(xbc_BS, tuple(steps_BS), shares[cp.index], sequences)
        back = in_shards(y_BSe, cp.size).view(cp.size, -1, y_BSe.shape[2])
        return exchange(back, cp).transpose(0, 1).flatten(1)

    def _share(self, cp_index: int) -> HeadShare:
        heads = even_cut(self.heads, self.context.cp.size, cp_index)
        per_group = self.heads // self.groups
        first = heads.start // per_group
        return HeadShare(heads, range(first, -(-heads.stop // per_group)))

    def _channels(self, xbc: tuple[Tensor, ...], share: HeadShare, *, dim: int) -> Tensor:
        """Return a cp rank's part of x, B and C, or of weights for them, concatenated."""
        x, b, c = xbc
        state = self.sizes.state
        return torch.cat(
            [
                _rows(x, share.heads, self.sizes.head_dim, dim=dim),
                _rows(b, share.groups, state, dim=dim),
                _rows(c, share.groups, state, dim=dim),
            ],
            dim=dim,
        )

    def _mix(
        self,
        xbc_BS: Tensor,
        steps_BSe: tuple[Tensor, ...],
        share: HeadShare,
        sequences: SequenceContext,
    ) -> Tensor:
        """Run convolution and recurrence over whole sequences of some heads, [B, S, e * P]."""
        sizes, heads, groups = self.sizes, len(share.heads), len(share.groups)
        inner, shared = heads * sizes.head_dim, groups * sizes.state
        numbers = None if sequences.documents is None else sequences.documents.numbers
        weight = self._of_channels(self.conv.weight, share)
        bias = None if self.conv.bias is None else self._of_channels(self.conv.bias, share)
        mixed = causal_conv(xbc_BS, weight, bias, documents_BS=numbers, fused=self.context.fused)
        x, b, c = torch.split(mixed, [inner, shared, shared], dim=2)
        tokens = mixed.shape[:2]
        y = self.recur(
            x.reshape(*tokens, heads, sizes.head_dim),
            b.reshape(*tokens, groups, sizes.state),
            c.reshape(*tokens, groups, sizes.state),
            steps_BSe,
            {
                name: _rows(widened(getattr(self.head, name)), share.heads, 1, dim=0)
                for name, _ in self.shape.facts.of_heads
            },
            sequences.documents,
        )
        return y.flatten(2)

    def _of_channels(self, rows: Tensor, share: HeadShare) -> Tensor:
        """Return the rows of the convolution's weight or bias for the channels of a share."""
        inner, shared = self.heads * self.sizes.head_dim, self.groups * self.sizes.state
        return self._channels(torch.split(rows, [inner, shared, shared]), share, dim=0)


def _rows(t: Tensor, items: range, size: int, *, dim: int) -> Tensor:
    """Return the part of a tensor for some heads or groups, of `size` features each."""
    return t.narrow(dim, items.start * size, len(items) * size)
