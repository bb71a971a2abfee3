"""The Gated DeltaNet mixer: decays, write strengths, the delta rule and a norm of heads.

Decides: the formulas of decays and strengths; that the backward recomputes convolution and
recurrence once, because their activations are several times larger than their inputs.
Relies on: `recurrent` for heads on a grid, `delta_rule_kernels` for the maths over whole sequences.
Leaves: the rest of a layer to `models`.

Source: S. Yang, J. Kautz and A. Hatamizadeh, Gated Delta Networks (arXiv:2412.06464).

Legend: N tokens of f features; the rest as in `recurrent`: x, B and C are values, keys and queries.
"""

from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor

from mimo_launch.kinds.shapes import NormShape
from mimo_launch.layers.delta_rule import DeltaInputs
from mimo_launch.layers.delta_rule_kernels import delta_rule
from mimo_launch.layers.pointwise import gated_head_norm, widened
from mimo_launch.layers.recompute import recomputed
from mimo_launch.layers.recurrent import HeadShare, RecurrentMixer
from mimo_launch.layers.sequence_contexts import Documents, SequenceContext
from mimo_launch.layers.shaped_layer import ShapedLayer


class HeadNorm(ShapedLayer[NormShape]):
    """RMSNorm of each head, times silu(z): [N, f] -> [N, f], in at least fp32 inside."""

    def forward(self, x_Nf: Tensor, z_Nf: Tensor) -> Tensor:
        """Return the normalised and gated x, in the dtype of x."""
        return self.context.fused(gated_head_norm, x_Nf, z_Nf, self.weight, self.shape.eps)


class DeltaNet(RecurrentMixer):
    """Gated DeltaNet: projections, a short convolution, the delta rule, a gated norm."""

    def _mix(
        self,
        xbc_BS: Tensor,
        steps_BSe: tuple[Tensor, ...],
        share: HeadShare,
        sequences: SequenceContext,
    ) -> Tensor:
        def mixed(xbc: Tensor, *steps: Tensor) -> Tensor:
            return super(DeltaNet, self)._mix(xbc, steps, share, sequences)

        out: Tensor = recomputed(mixed, xbc_BS, *steps_BSe)
        return out

    def recur(
        self,
        x_BSHP: Tensor,
        b_BSGK: Tensor,
        c_BSGK: Tensor,
        steps: tuple[Tensor, ...],
        weights: Mapping[str, Tensor],
        documents: Documents | None,
    ) -> Tensor:
        """Return the values that queries read from states."""
        a_BSH, strength_BSH = (widened(step) for step in steps)
        given = DeltaInputs(
            c_BSGK,
            b_BSGK,
            x_BSHP,
            -weights["A_log"].exp() * F.softplus(a_BSH + weights["dt_bias"]),
            strength_BSH.sigmoid(),
        )
        return delta_rule(
            given, chunk=self.sizes.chunk, documents=documents, fused=self.context.fused
        )
