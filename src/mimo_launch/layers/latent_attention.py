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
from torch import Tensor, nn

from mimo_launch.layers.linear import ColumnLinear
from mimo_launch.layers.norms import Norm
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.whole_linear import WholeLinear
from mimo_launch.spec.layers import Mla


class LatentInputs(nn.Module):
    """Keys and values from a narrow width, queries too with `q_rank`: [n, D] -> [N, h, K or V]."""

    def __init__(
        self, context: ParallelContext, model: Mla, *, width: int, heads: int, head_size: int
    ) -> None:
        super().__init__()
        self.context, self.model, self.head_size = context, model, head_size
        self.q_down: WholeLinear | None = None
        self.q_norm: Norm | None = None
        if model.q_rank is not None:
            self.q_down = WholeLinear(context, width, model.q_rank, bias=False)
            self.q_norm = Norm(context, model.q_rank, "rms", eps=model.norm_eps)
        narrow = model.kv_rank + model.rope_head_dim
        self.kv_down = WholeLinear(context, width, narrow, bias=False)
        self.kv_norm = Norm(context, model.kv_rank, "rms", eps=model.norm_eps)
        self.query_width = model.q_rank or width
        queries, keys = heads * head_size, heads * (head_size - model.rope_head_dim)
        self.queries = ColumnLinear(context, self.query_width, {"q_up": queries}, bias=False)
        values = heads * model.v_head_dim
        self.keys = ColumnLinear(context, model.kv_rank, {"kv_up": keys + values}, bias=False)

    def forward(self, x_nD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values of this rank's heads; keys share their rotating part."""
        model, rotating = self.model, self.model.rope_head_dim
        q_nC = x_nD
        if self.q_down is not None and self.q_norm is not None:
            q_nC = self.q_norm(self.q_down(x_nD))
        kv_nC, shared_nR = torch.split(self.kv_down(x_nD), [model.kv_rank, rotating], dim=1)
        narrow = self.context.enter(torch.cat([q_nC, self.kv_norm(kv_nC), shared_nR], dim=1))
        q_NC, kv_NC, shared_NR = torch.split(
            narrow, [self.query_width, model.kv_rank, rotating], dim=1
        )
        plain = self.head_size - rotating
        q_NhK = self.queries(q_NC).view(len(narrow), -1, self.head_size)
        kv_NhF = self.keys(kv_NC).view(len(narrow), -1, plain + model.v_head_dim)
        keys, v_NhV = torch.split(kv_NhF, [plain, model.v_head_dim], dim=2)
        queries, turning = torch.split(q_NhK, [plain, rotating], dim=2)
        shared = self._in_halves(shared_NR).unsqueeze(1).expand(-1, q_NhK.shape[1], -1)
        q_NhK = torch.cat([self._in_halves(turning), queries], dim=2)
        return q_NhK, torch.cat([shared, keys], dim=2), v_NhV

    def _in_halves(self, x_NR: Tensor) -> Tensor:
        """Return x with the first features of all pairs before the second, as `rotated` needs.

        Scores do not change if queries and keys are permuted alike.
        """
        if not self.model.interleaved:
            return x_NR
        pairs = x_NR.reshape(*x_NR.shape[:-1], -1, 2)
        return pairs.transpose(-1, -2).flatten(-2)
