"""Attention inside each sequence of a list, without padding and without a mask, on GPUs.

Decides: how sequences are packed, with bounds from lengths on the host, so that the host does not
wait for a GPU; which tensors take this path; which keys a cp rank's parts of packed documents need.
Relies on: torch's flash attention over lists. If a sequence has more keys than queries, its causal
mask aligns the last query with the last key ("lower right").
Leaves: everything else, including CPUs, fp32 and fp64, to the masks of `attention`.

Legend: N queries, M keys, h heads and g key/value heads of this rank, K head size; B sequences of S
tokens, s of them on this rank.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.backends.cuda import SDPAParams, can_use_flash_attention

from mimo_launch.comm.async_copies import to_device
from mimo_launch.comm.process_groups import Group
from mimo_launch.comm.torch_internals import varlen_backward, varlen_forward
from mimo_launch.layers.image_contexts import ImageContext

# The window of a query, in tokens before and after it; -1 means no limit.
CAUSAL, WHOLE = (-1, 0), (-1, -1)
SMALLEST_BOUND = 64


@dataclass(frozen=True, slots=True)
class Packed:
    """Concatenated sequences: int32 bounds [sequences + 1], and an upper bound of their lengths."""

    bounds: Tensor
    longest: int


@lru_cache(maxsize=256)
def packed(lengths: tuple[int, ...], device: torch.device) -> Packed:
    """Return sequences of the given lengths.

    The bound of lengths is a power of two, so that batches of different images share compiled
    kernels. Cached, because every layer of a stage asks, and because lengths often repeat.
    """
    bounds = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
    longest = max(SMALLEST_BOUND, 1 << (max(lengths) - 1).bit_length())
    return Packed(to_device(bounds.numpy(), device), longest)


def packed_images(
    q_NhK: Tensor, k_MgK: Tensor, v_MgK: Tensor, images: ImageContext
) -> tuple[Tensor, Tensor, Tensor, Packed, Packed]:
    """Return the queries, keys and values of images, without padding, and both lists.

    Queries come from this rank, keys and values from all cp ranks. There must be an image here.
    """
    own, last_key = sum(images.own_lengths), images.first_key + sum(images.key_lengths)
    q = _rows(q_NhK, 0, own)
    k, v = (_rows(x, images.first_key, last_key) for x in (k_MgK, v_MgK))
    queries, keys = (packed(x, q_NhK.device) for x in (images.own_lengths, images.key_lengths))
    return q, k, v, queries, keys


def _rows(x: Tensor, first: int, last: int) -> Tensor:
    """Return a range of rows; the backward of a slice, even of all rows, fills and copies."""
    return x if (first, last) == (0, len(x)) else x[first:last]


def takes_lists(q: Tensor) -> bool:
    """Return whether attention over packed documents and ragged images needs no masks.

    It needs none on GPUs, in 16 bits and with head sizes that flash attention supports;
    `torch.backends.cuda.enable_flash_sdp(False)` turns it off. Queries are [..., h, K].
    """
    if not q.is_cuda or q.shape[-1] % 8:
        return False
    q_1hNK = q.flatten(0, -3).transpose(0, 1).unsqueeze(0)
    return can_use_flash_attention(SDPAParams(q_1hNK, q_1hNK, q_1hNK, None, 0.0, False, False))


def inside_documents(
    q_BshK: Tensor,
    k_BSgK: Tensor,
    v_BSgK: Tensor,
    lengths: tuple[int, ...],
    cp: Group,
    *,
    reach: int | None = None,
    scale: float | None = None,
    sinks_h: Tensor | None = None,
) -> Tensor:
    """Return causal attention inside each document, [B * s, h, K].

    Queries are the two chunks of each sequence that this cp rank holds; keys are whole sequences in
    order. A token attends to `reach` tokens, itself included; scores are multiplied by `scale`. The
    softmax of each head includes its sink, if any.
    """
    q, device = q_BshK.flatten(0, 1), q_BshK.device
    window = CAUSAL if reach is None else (reach - 1, 0)
    if cp.size == 1:
        documents = packed(lengths, device)
        k, v = (x.flatten(0, 1) for x in (k_BSgK, v_BSgK))
        return _attend(q, k, v, _Lists(documents, documents, window, scale), sinks_h)
    parts = parts_of_documents(lengths, q_BshK.shape[0], cp.size, cp.index)
    # Unbound, because the backward of a slice makes a tensor as large as the whole.
    k, v = (
        torch.cat([rows[row][first:last] for row, first, last in parts.spans])
        for rows in (k_BSgK.unbind(), v_BSgK.unbind())
    )
    queries, keys = (packed(each, device) for each in (parts.queries, parts.keys))
    return _attend(q, k, v, _Lists(queries, keys, window, scale), sinks_h)


def inside_images(q_NhK: Tensor, k_MgK: Tensor, v_MgK: Tensor, images: ImageContext) -> Tensor:
    """Return attention inside each image, [tokens without padding, h, K].

    Queries come from this rank, keys from all cp ranks. If attention is causal, this rank must hold
    all tokens of its images.
    """
    window = CAUSAL if images.is_causal else WHOLE
    q, k, v, queries, keys = packed_images(q_NhK, k_MgK, v_MgK, images)
    return _attend(q, k, v, _Lists(queries, keys, window))


@dataclass(frozen=True, slots=True)
class DocumentParts:
    """The part of each document in each chunk of a cp rank: its numbers of queries and keys.

    Keys run from the document's start to the end of the part. `spans` has one entry per chunk, for
    all its keys: the sequence, the first position and the position after the last.
    """

    queries: tuple[int, ...]
    keys: tuple[int, ...]
    spans: tuple[tuple[int, int, int], ...]


@lru_cache(maxsize=256)
def parts_of_documents(
    lengths: tuple[int, ...], batch: int, cp_size: int, cp_index: int
) -> DocumentParts:
    """Return the parts of a cp rank, in zigzag chunks, of documents that fill `batch` sequences."""
    documents = list(pairwise(accumulate(lengths, initial=0)))
    seq = sum(lengths) // batch
    size = seq // (2 * cp_size)
    queries, keys, spans = [], [], []
    for row in range(batch):
        for chunk in (cp_index, 2 * cp_size - 1 - cp_index):
            first = row * seq + chunk * size
            last = first + size
            inside = [(start, end) for start, end in documents if start < last and first < end]
            queries += [min(end, last) - max(start, first) for start, end in inside]
            keys += [min(end, last) - start for start, end in inside]
            spans.append((row, inside[0][0] - row * seq, last - row * seq))
    return DocumentParts(tuple(queries), tuple(keys), tuple(spans))


class _Lists(NamedTuple):
    """Packed queries and keys, the tokens that each sees before and after itself, and the scale."""

    queries: Packed
    keys: Packed
    window: tuple[int, int]
    scale: float | None = None

    @property
    def of_kernel(self) -> dict[str, Any]:
        """The arguments of a kernel that are not queries, keys and values."""
        return {
            "bounds": (self.queries.bounds, self.keys.bounds),
            "longest": (self.queries.longest, self.keys.longest),
            "window": self.window,
            "scale": self.scale,
        }


def _attend(
    q_NhK: Tensor, k_MgK: Tensor, v_MgK: Tensor, lists: _Lists, sinks_h: Tensor | None = None
) -> Tensor:
    """Return attention inside each sequence, [N, h, K]; the lists contain no other tokens.

    Values smaller than keys are padded with zeros to the same size, as the kernels need.
    """
    size = v_MgK.shape[2]
    if size < q_NhK.shape[2]:
        v_MgK = F.pad(v_MgK, (0, q_NhK.shape[2] - size))
        wide = _attend(q_NhK, k_MgK, v_MgK, lists, sinks_h)
        return wide[..., :size]
    out: Tensor = _Attention.apply(q_NhK, k_MgK, v_MgK, sinks_h, lists.of_kernel)  # type: ignore[no-untyped-call]
    return out


class _Attention(torch.autograd.Function):
    """Attention inside each sequence; each head's softmax may also include a sink.

    The kernel has no sinks. A sink takes 1 - share of the weights, which only scales the output of
    a token by share. In the backward, the kernel recomputes weights from the log-sum-exp of scores.
    Given the output and the log-sum-exp with the sink, the weights and all gradients are correct
    with the sink.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q_NhK: Tensor,
        k_MgK: Tensor,
        v_MgK: Tensor,
        sinks_h: Tensor | None,
        lists: dict[str, Any],
    ) -> Tensor:
        out_NhK, lse_hN = varlen_forward((q_NhK, k_MgK, v_MgK), **lists)
        if sinks_h is not None:
            wide_h1 = sinks_h.to(lse_hN.dtype)[:, None]
            share_hN = torch.sigmoid(lse_hN - wide_h1)
            out_NhK = (out_NhK * share_hN.t().unsqueeze(-1)).to(q_NhK.dtype)
            lse_hN = torch.logaddexp(lse_hN, wide_h1)
        ctx.save_for_backward(q_NhK, k_MgK, v_MgK, sinks_h, out_NhK, lse_hN)
        ctx.lists = lists
        return out_NhK

    @staticmethod
    def backward(ctx: Any, grad_NhK: Tensor) -> tuple[Tensor | None, ...]:
        q_NhK, k_MgK, v_MgK, sinks_h, out_NhK, lse_hN = ctx.saved_tensors
        inputs = q_NhK, k_MgK, v_MgK
        grads = varlen_backward(grad_NhK.contiguous(), inputs, out_NhK, lse_hN, **ctx.lists)
        if sinks_h is None:
            return *grads, None, None
        wide = lse_hN.dtype
        weight_hN = torch.exp(sinks_h.to(wide)[:, None] - lse_hN)
        of_output_hN = (grad_NhK.to(wide) * out_NhK.to(wide)).sum(dim=-1).t()
        of_sinks = -(weight_hN * of_output_hN).sum(dim=1)
        return *grads, of_sinks.to(sinks_h.dtype), None
