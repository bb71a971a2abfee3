"""The Mamba-2 mixer with heads cut over tp and, inside it, over cp as well.

Decides: which heads and groups a rank computes, and how tokens of other cp ranks reach it.
Relies on: `ssd_kernels` for the maths over whole sequences.
Leaves: the rest of a layer to `models`.

Each cp rank exchanges its tokens of all heads for all tokens of its heads (DeepSpeed Ulysses,
arXiv:2309.14509), so the convolution and the recurrence run over whole sequences. Traffic per layer
and token held: x, B, C and dt go out, y comes back, (cp - 1) / cp of each.

Legend: N tokens of this rank, D width; of this tp rank h heads of P channels, f = h * P, g groups
of K numbers; B sequences of S tokens; lower-case e, j are of this cp rank: heads, groups.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mimo_launch.comm.autograd_collectives import enter_tp, exchange, exit_tp
from mimo_launch.kinds.layer import even_cut
from mimo_launch.layers.attention_contexts import SequenceContext, in_order, in_shards
from mimo_launch.layers.linear import ColumnLinear, RowLinear, SharedLinear
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.parameter_segments import InitKind, Segment, SegmentedModule, sharded
from mimo_launch.layers.pointwise import gated_scaled, gated_squares, widened
from mimo_launch.layers.ssd_kernels import causal_conv, ssd
from mimo_launch.spec.language_models import MambaSizes


class GroupNorm(SegmentedModule):
    """RMSNorm over each group of heads, of x * silu(z): [N, f] -> [N, f], at least fp32.

    Where tp ranks share a group they sum its squares, so a group is the same as at tp 1.
    """

    def __init__(self, context: ParallelContext, sizes: MambaSizes, eps: float) -> None:
        super().__init__()
        self.context, self.eps, self.groups = context, eps, sizes.groups
        self.group_size = sizes.inner // sizes.groups
        self.local_groups = max(1, sizes.groups // context.tp.size)
        part = context.part(sizes.inner)
        weight = sharded("weight", (sizes.inner,), 0, part, init="ones", decay=False)
        self.declare("weight", weight, dtype=context.dtype)

    def forward(self, x_Nf: Tensor, z_Nf: Tensor) -> Tensor:
        """Return the gated and normalised x, in its own type."""
        squares_Ng = self.context.fused(gated_squares, x_Nf, z_Nf, self.local_groups)
        scale_Ng = (self._of_whole_groups(squares_Ng) / self.group_size + self.eps).rsqrt()
        return self.context.fused(gated_scaled, x_Nf, z_Nf, scale_Ng, self.weight)

    def _of_whole_groups(self, squares_Ng: Tensor) -> Tensor:
        """Return the squares of whole groups, summed over the ranks that share a group."""
        tp = self.context.tp
        if self.groups >= tp.size:
            return squares_Ng
        mine = tp.index // (tp.size // self.groups)
        slots = F.pad(squares_Ng, (mine, self.groups - 1 - mine))
        # Every rank uses the sum, so its gradient is a sum over ranks, too.
        return enter_tp(exit_tp(slots, tp), tp)[:, mine : mine + 1]


class CausalConvolution(SegmentedModule):
    """Weights of the depthwise convolution over x, B and C, fused like the channels they act on."""

    bias: Tensor

    def __init__(self, context: ParallelContext, sizes: MambaSizes) -> None:
        super().__init__()

        def parts(kind: str, *widths: int) -> list[Segment]:
            is_weight = kind == "weight"
            made = [
                sharded(
                    f"{name}.{kind}",
                    (channels, *widths),
                    0,
                    context.part(channels),
                    # The deviation of torch's uniform distribution for a convolution of a channel.
                    std=(3 * sizes.conv) ** -0.5,
                    init="normal" if is_weight else "zeros",
                    decay=is_weight,
                )
                for name, channels in (("x", sizes.inner), ("B", sizes.shared), ("C", sizes.shared))
            ]
            if sizes.groups < context.tp.size:
                made[1:] = [context.one_of(sizes.groups, each) for each in made[1:]]
            return made

        self.declare("weight", *parts("weight", sizes.conv), dtype=context.dtype)
        self.declare("bias", *parts("bias"), dtype=context.dtype)


class HeadWeights(SegmentedModule):
    """The other weights of heads: logarithm of the decay, bias of the time step, skip."""

    names_itself = False
    A_log: Tensor
    dt_bias: Tensor
    D: Tensor

    def __init__(self, context: ParallelContext, heads: int) -> None:
        super().__init__()
        part = context.part(heads)
        start: dict[str, InitKind] = {"A_log": "log_decay", "dt_bias": "time_step", "D": "ones"}
        for name, init in start.items():
            segment = sharded(name, (heads,), 0, part, init=init, decay=False)
            self.declare(name, segment, dtype=context.dtype)


class _Share(NamedTuple):
    """The heads of this tp rank that one cp rank computes, and the groups that they need."""

    heads: range
    groups: range


class Mamba(nn.Module):
    """Mamba-2 (arXiv:2405.21060): projections, a short convolution, recurrence, gated norm."""

    def __init__(
        self,
        context: ParallelContext,
        width: int,
        sizes: MambaSizes,
        *,
        eps: float,
        out_scale: float,
    ) -> None:
        super().__init__()
        self.context, self.sizes = context, sizes
        self.heads = len(context.part(sizes.heads))
        self.groups = max(1, sizes.groups // context.tp.size)
        outputs = {"z": sizes.inner, "x": sizes.inner, "dt": sizes.heads}
        self.shared_bc: SharedLinear | None = None
        if sizes.groups < context.tp.size:
            self.shared_bc = SharedLinear(
                context, width, ("B", "C"), sizes.groups, sizes.state, bias=False
            )
        else:
            outputs |= {"B": sizes.shared, "C": sizes.shared}
        self.inputs = ColumnLinear(context, width, outputs, bias=False)
        self.conv = CausalConvolution(context, sizes)
        self.head = HeadWeights(context, sizes.heads)
        self.norm = GroupNorm(context, sizes, eps)
        self.output = RowLinear(context, "out", sizes.inner, width, bias=False, scale=out_scale)

    def forward(self, x_nD: Tensor, sequences: SequenceContext) -> Tensor:
        """Return the mixed tokens, [n, D] -> [n, D]; documents do not affect each other."""
        x_ND = self.context.enter(x_nD)
        fused = self.inputs(x_ND)
        if self.shared_bc is not None:
            fused = torch.cat([fused, self.shared_bc(x_ND)], dim=1)
        inner, shared = self.heads * self.sizes.head_dim, self.groups * self.sizes.state
        z, x, dt, b, c = torch.split(fused, [inner, inner, self.heads, shared, shared], dim=1)
        y_Nf = self._along_sequences((x, b, c), dt, sequences)
        out: Tensor = self.output(self.norm(y_Nf, z))
        return out

    def _along_sequences(
        self, xbc: tuple[Tensor, ...], dt_Nh: Tensor, sequences: SequenceContext
    ) -> Tensor:
        """Return the output of the recurrence for this rank's tokens, [N, f]."""
        cp = self.context.cp
        shares = [self._share(index) for index in range(cp.size)]
        channels = [self._channels(xbc, share, dim=1) for share in shares]
        if cp.size == 1:
            xbc_BS, dt_BSe = (in_order(t, sequences.batch, 1) for t in (channels[0], dt_Nh))
            return self._mix(xbc_BS, dt_BSe, shares[0], sequences).flatten(0, 1)
        steps = [_rows(dt_Nh, share.heads, 1, dim=1) for share in shares]
        parts = [torch.cat(part, dim=1) for part in zip(channels, steps, strict=True)]
        # Out go features of this rank's tokens, a part per cp rank; in come all tokens of its part.
        arrived = exchange(torch.stack(parts), cp).flatten(0, 1)
        sizes = [channels[0].shape[1], steps[0].shape[1]]
        xbc_BS, dt_BSe = torch.split(in_order(arrived, sequences.batch, cp.size), sizes, dim=2)
        y_BSe = self._mix(xbc_BS, dt_BSe, shares[cp.index], sequences)
        back = in_shards(y_BSe, cp.size).view(cp.size, -1, y_BSe.shape[2])
        return exchange(back, cp).transpose(0, 1).flatten(1)

    def _share(self, cp_index: int) -> _Share:
        heads = even_cut(self.heads, self.context.cp.size, cp_index)
        per_group = self.heads // self.groups
        first = heads.start // per_group
        return _Share(heads, range(first, -(-heads.stop // per_group)))

    def _channels(self, xbc: tuple[Tensor, ...], share: _Share, *, dim: int) -> Tensor:
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
        self, xbc_BS: Tensor, dt_BSe: Tensor, share: _Share, sequences: SequenceContext
    ) -> Tensor:
        """Run convolution and recurrence over whole sequences of some heads, [B, S, e * P]."""
        sizes, heads, groups = self.sizes, len(share.heads), len(share.groups)
        inner, shared = heads * sizes.head_dim, groups * sizes.state
        numbers = None if sequences.documents is None else sequences.documents.numbers
        weight, bias = (self._of_channels(t, share) for t in (self.conv.weight, self.conv.bias))
        mixed = causal_conv(xbc_BS, weight, bias, documents_BS=numbers)
        x, b, c = torch.split(mixed, [inner, shared, shared], dim=2)
        a_log, dt_bias, d = (
            _rows(widened(t), share.heads, 1, dim=0)
            for t in (self.head.A_log, self.head.dt_bias, self.head.D)
        )
        tokens = mixed.shape[:2]
        y, _ = ssd(
            x.reshape(*tokens, heads, sizes.head_dim),
            F.softplus(widened(dt_BSe) + dt_bias).clamp(min=sizes.min_step),
            -a_log.exp(),
            b.reshape(*tokens, groups, sizes.state),
            c.reshape(*tokens, groups, sizes.state),
            d,
            chunk=sizes.chunk,
            documents_BS=numbers,
        )
        return y.flatten(2)

    def _of_channels(self, rows: Tensor, share: _Share) -> Tensor:
        """Return the rows of the convolution's weight or bias for the channels of a share."""
        inner, shared = self.heads * self.sizes.head_dim, self.groups * self.sizes.state
        return self._channels(torch.split(rows, [inner, shared, shared]), share, dim=0)


def _rows(t: Tensor, items: range, size: int, *, dim: int) -> Tensor:
    """Return the part of a tensor for some heads or groups, of `size` numbers each."""
    return t.narrow(dim, items.start * size, len(items) * size)
