"""Queries, keys and values of multi-head latent attention (MLA), with heads cut over tp.

Decides: that every tp rank computes the narrow activations, which enter a region in one collective;
that the rotating part of a head comes first.
Relies on: `attention`, which rotates and attends.
Leaves: nothing else; training needs no cache of the narrow activations.

Source: DeepSeek-V2 (arXiv:2405.04434), section 2.1.

Legend: n tokens of this rank, N tokens of all tp ranks, D width, C narrow widths, h heads of this
rank, K size of a query or key, R size of its rotating part, V size of a value.
"""

import torch
from torch import Tensor

from mimo_launch.kinds.attention_shapes import LatentShape
from mimo_launch.layers.dropout import Draws
from mimo_launch.layers.linear import ColumnLinear, WholeLinear
from mimo_launch.layers.norms import Norm
from mimo_launch.layers.recompute import Remake, remade
from mimo_launch.layers.shaped_layer import ShapedLayer


class LatentInputs(ShapedLayer[LatentShape]):
    """Keys and values from a narrow width, queries too with `q_rank`: [n, D] -> [N, h, K or V]."""

    q_down: WholeLinear | None
    q_norm: Norm | None
    kv_down: WholeLinear
    kv_norm: Norm
    queries: ColumnLinear
    keys: ColumnLinear

    def forward(
        self, x_nD: Tensor, draws: Draws | None = None, again: Remake | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values of this rank's heads; keys share their rotating part."""
        sizes, rotating = self.shape.sizes, self.shape.sizes.rope_head_dim
        q_nC = x_nD
        with remade(x_nD, again):
            down_nC = None if self.q_down is None else self.q_down(x_nD, draws)
            narrow_nC = self.kv_down(x_nD, draws)
        kv_nC, shared_nR = torch.split(narrow_nC, [sizes.kv_rank, rotating], dim=1)
        if self.q_norm is not None:
            q_nC = self.q_norm(down_nC)
        narrow = self.context.enter(torch.cat([q_nC, self.kv_norm(kv_nC), shared_nR], dim=1))
        q_NC, kv_NC, shared_NR = torch.split(
            narrow, [self.shape.query_width, sizes.kv_rank, rotating], dim=1
        )
        plain = self.shape.head_size - rotating
        q_NhK = self.queries(q_NC, draws).view(len(narrow), -1, self.shape.head_size)
        kv_NhF = self.keys(kv_NC, draws).view(len(narrow), -1, plain + sizes.v_head_dim)
        keys, v_NhV = torch.split(kv_NhF, [plain, sizes.v_head_dim], dim=2)
        queries, turning = torch.split(q_NhK, [plain, rotating], dim=2)
        shared = self._in_halves(shared_NR).unsqueeze(1).expand(-1, q_NhK.shape[1], -1)
        q_NhK = torch.cat([self._in_halves(turning), queries], dim=2)
        return q_NhK, torch.cat([shared, keys], dim=2), v_NhV

    def _in_halves(self, x_NR: Tensor) -> Tensor:
        """Return x with the first features of all pairs before the second, as `rotated` needs.

        Scores do not change if queries and keys are permuted alike.
        """
        if not self.shape.sizes.interleaved:
            return x_NR
        pairs = x_NR.reshape(*x_NR.shape[:-1], -1, 2)
        return pairs.transpose(-1, -2).flatten(-2)
