"""Causal attention of the two chunks of each sequence that a cp rank holds, without a mask.

Decides: which keys a chunk needs, and in how many calls of a kernel: the chunk's own keys, causal,
and all earlier keys, whole. Two outputs are merged by their log-sum-exps, as parts of attention are
in FlashAttention (arXiv:2205.14135) and ring attention (arXiv:2310.01889). With the merged output
and log-sum-exp, the backward of each call has the gradients of its part.
Relies on: cuDNN's attention on GPUs and torch's flash attention on CPUs, which take fewer heads of
keys than of queries.
Leaves: documents, windows and sinks to `varlen_attention`; everything else to masks of `attention`.

Legend: B sequences of S tokens, s of them on this rank; h heads and g key/value heads of this rank,
K head size.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.backends.cuda import SDPAParams, can_use_cudnn_attention

from mimo_launch.comm.process_groups import Group
from mimo_launch.comm.torch_internals import attend_to_keys, gradients_of_keys
from mimo_launch.layers.pointwise import Fused


def takes_chunks(q_BshK: Tensor, k_BSgK: Tensor) -> bool:
    """Return whether the kernels take these types: on GPUs those of 16 bits.

    `torch.backends.cuda.enable_cudnn_sdp(False)` turns it off on GPUs.
    """
    if not q_BshK.is_cuda:
        return q_BshK.device.type == "cpu"
    q, k = q_BshK.transpose(1, 2), k_BSgK.transpose(1, 2)
    return can_use_cudnn_attention(SDPAParams(q, k, k, None, 0.0, False, True))


def over_chunks(
    q_BshK: Tensor,
    k_BSgK: Tensor,
    v_BSgK: Tensor,
    cp: Group,
    *,
    scale: float | None,
    fused: Fused,
) -> Tensor:
    """Return causal attention of this cp rank's chunks, [B, s, h, K].

    Keys and values are of whole sequences, in order. Scores are multiplied by `scale`. Values may
    be smaller than keys, not larger: they are padded with zeros to the same size, as the kernels
    need.
    """
    size = v_BSgK.shape[3]
    v_BSgK = F.pad(v_BSgK, (0, q_BshK.shape[3] - size))
    chunk = q_BshK.shape[1] // 2
    starts = chunk * cp.index, chunk * (2 * cp.size - 1 - cp.index)
    q, k, v = (x.transpose(1, 2) for x in (q_BshK, k_BSgK, v_BSgK))
    out_BshK: Tensor = _Chunks.apply(q, k, v, _Call(starts, scale, fused))  # type: ignore[no-untyped-call]
    return out_BshK[..., :size]


class _Part(NamedTuple):
    """Queries of a chunk on this rank, and the keys that they attend to in one call."""

    queries: slice
    keys: slice
    is_causal: bool


class _Call(NamedTuple):
    """The position in a sequence at which each chunk starts, and what kernels need besides."""

    starts: tuple[int, int]
    scale: float | None
    fused: Fused

    def chunks(self, queries: int) -> Iterator[list[_Part]]:
        """Yield the parts of each chunk: its own keys, then all earlier ones, if any."""
        size = queries // 2
        for number, start in enumerate(self.starts):
            held = slice(number * size, (number + 1) * size)
            parts = [_Part(held, slice(start, start + size), True)]
            yield [*parts, _Part(held, slice(0, start), False)] if start else parts


class _Chunks(torch.autograd.Function):
    """Attention of both chunks. Outputs and gradients are written where those of all chunks lie."""

    @staticmethod
    def forward(ctx: Any, q_BhsK: Tensor, k_BgSK: Tensor, v_BgSK: Tensor, call: _Call) -> Tensor:
        # In the order of tokens, as the map before has queries and the map after reads outputs.
        out_BshK, sums = torch.empty_like(q_BhsK.transpose(1, 2)), []
        for parts in call.chunks(q_BhsK.shape[2]):
            (out, total), *earlier = (
                attend_to_keys(
                    q_BhsK[:, :, held],
                    k_BgSK[:, :, keys],
                    v_BgSK[:, :, keys],
                    is_causal=is_causal,
                    scale=call.scale,
                )
                for held, keys, is_causal in parts
            )
            for another in earlier:
                out, total = call.fused(_merged, out, total, *another)
            out_BshK[:, parts[0].queries] = out.transpose(1, 2)
            sums.append(total)
        sum_Bhs = torch.cat(sums, dim=2)
        ctx.save_for_backward(q_BhsK, k_BgSK, v_BgSK, out_BshK, sum_Bhs)
        ctx.call = call
        return out_BshK

    @staticmethod
    def backward(ctx: Any, grad_BshK: Tensor) -> tuple[Tensor | None, ...]:
        q_BhsK, k_BgSK, v_BgSK, out_BshK, sum_Bhs = ctx.saved_tensors
        grad_BhsK, out_BhsK = grad_BshK.transpose(1, 2), out_BshK.transpose(1, 2)
        of_q, of_k, of_v = torch.empty_like(q_BhsK), *map(torch.zeros_like, (k_BgSK, v_BgSK))
        for parts in ctx.call.chunks(q_BhsK.shape[2]):
            for held, keys, is_causal in parts:
                of_queries, of_keys, of_values = gradients_of_keys(
                    grad_BhsK[:, :, held],
                    (q_BhsK[:, :, held], k_BgSK[:, :, keys], v_BgSK[:, :, keys]),
                    out_BhsK[:, :, held],
                    sum_Bhs[:, :, held],
                    is_causal=is_causal,
                    scale=ctx.call.scale,
                )
                if is_causal:  # These are the first of a chunk.
                    of_q[:, :, held] = of_queries
                else:
                    of_q[:, :, held] += of_queries
                of_k[:, :, keys] += of_keys
                of_v[:, :, keys] += of_values
        return of_q, of_k, of_v, None


def _merged(
    out_BhsK: Tensor, sum_Bhs: Tensor, other_BhsK: Tensor, other_sum_Bhs: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the output over the keys of both parts, and its log-sum-exp."""
    share = torch.sigmoid(sum_Bhs - other_sum_Bhs)[..., None]
    out = other_BhsK + share * (out_BhsK.to(share.dtype) - other_BhsK)
    return out.to(out_BhsK.dtype), torch.logaddexp(sum_Bhs, other_sum_Bhs)
