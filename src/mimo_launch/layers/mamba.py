"""The Mamba-2 mixer: time steps, the state space model and a norm over groups of heads.

Decides: the formulas of time steps and decays, and how ranks that share a group normalise it
together.
Relies on: `recurrent` for heads on a grid, `ssd_kernels` for the maths over whole sequences.
Leaves: the rest of a layer to `models`.

Legend: as in `recurrent`.
"""

from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor

from mimo_launch.comm.autograd_collectives import enter_tp, exit_tp
from mimo_launch.kinds.recurrent import GroupNormShape
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.pointwise import gated_scaled, gated_squares, widened
from mimo_launch.layers.recurrent import RecurrentMixer
from mimo_launch.layers.sequence_contexts import Documents
from mimo_launch.layers.shaped_layer import ShapedLayer
from mimo_launch.layers.ssd import SsdInputs
from mimo_launch.layers.ssd_kernels import ssd
from mimo_launch.spec.hybrid import MambaSizes


class GroupNorm(ShapedLayer[GroupNormShape]):
    """RMSNorm over each group of heads, of x * silu(z): [N, f] -> [N, f], at least fp32.

    Ranks that share a group sum its squares, so the result is the same as at tp 1.
    """

    def __init__(self, context: ParallelContext, shape: GroupNormShape) -> None:
        super().__init__(context, shape)
        self.group_size = shape.width // shape.groups
        self.local_groups = max(1, shape.groups // context.tp.size)

    def forward(self, x_Nf: Tensor, z_Nf: Tensor) -> Tensor:
        """Return the gated and normalised x, in the dtype of x."""
        squares_Ng = self.context.fused(gated_squares, x_Nf, z_Nf, self.local_groups)
        scale_Ng = (self._of_whole_groups(squares_Ng) / self.group_size + self.shape.eps).rsqrt()
        return self.context.fused(gated_scaled, x_Nf, z_Nf, scale_Ng, self.weight)

    def _of_whole_groups(self, squares_Ng: Tensor) -> Tensor:
        """Return the squares of whole groups, summed over the ranks that share a group."""
        tp = self.context.tp
        if self.shape.groups >= tp.size:
            return squares_Ng
        mine = tp.index // (tp.size // self.shape.groups)
        slots = F.pad(squares_Ng, (mine, self.shape.groups - 1 - mine))
        # Every rank uses the sum, so its gradient is also a sum over ranks.
        return enter_tp(exit_tp(slots, tp), tp)[:, mine : mine + 1]


class Mamba(RecurrentMixer):
    """Mamba-2 (arXiv:2405.21060): projections, a short convolution, recurrence, gated norm."""

    def recur(
        self,
        x_BSHP: Tensor,
        b_BSGK: Tensor,
        c_BSGK: Tensor,
        steps: tuple[Tensor, ...],
        weights: Mapping[str, Tensor],
        documents: Documents | None,
    ) -> Tensor:
        """Return the output of the state space model."""
        (dt_BSH,), sizes = steps, self.sizes
        least = sizes.min_step if isinstance(sizes, MambaSizes) else 0.0
        given = SsdInputs(
            x_BSHP,
            F.softplus(widened(dt_BSH) + weights["dt_bias"]).clamp(min=least),
            -weights["A_log"].exp(),
            b_BSGK,
            c_BSGK,
            weights["D"],
        )
        numbers = None if documents is None else documents.numbers
        y, _ = ssd(given, chunk=sizes.chunk, documents_BS=numbers)
        return y
