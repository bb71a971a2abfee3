"""Attention with heads cut over tp: causal over a batch, or inside each image of a packed list.

Decides: projections, rotary embedding, which tokens attend to which.
Relies on: SDPA, whose softmax runs in at least fp32.
Leaves: context parallelism to a later layer; both kinds see all tokens of a microbatch.

Legend: N tokens, D width, h heads and g key/value heads of this rank, K head size.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mimo_launch.layout.shards import even_cut
from mimo_launch.parallel.context import ParallelContext
from mimo_launch.parallel.layers import ColumnLinear, Norm, RowLinear
from mimo_launch.parallel.segments import Segment, SegmentedModule


@dataclass(frozen=True, slots=True)
class CausalMask:
    """N tokens are `batch` sequences of equal length; a token sees itself and what precedes it."""

    batch: int
    cos_SK: Tensor
    sin_SK: Tensor


@dataclass(frozen=True, slots=True)
class ImageMask:
    """Tokens are images one after another; a token sees its own image.

    `gather` [images, longest] names the token at each place (0 where `valid` is false); `tokens`
    names the place, in the flattened gather, of each token of an image; padding comes after.
    """

    gather: Tensor
    valid: Tensor
    tokens: Tensor


def image_mask(lengths: list[int], device: torch.device) -> ImageMask:
    """Return the mask of images with the given numbers of tokens."""
    longest = max(lengths, default=0)
    counts = torch.tensor(lengths, dtype=torch.long, device=device)
    places = torch.arange(longest, device=device)
    valid = places < counts[:, None]
    starts = torch.cumsum(counts, 0) - counts
    gather = torch.where(valid, starts[:, None] + places, 0)
    return ImageMask(gather, valid, valid.flatten().nonzero().flatten())


def rotary(
    positions_S: Tensor, head_size: int, theta: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return cos and sin [S, head_size] of the rotary embedding (arXiv:2104.09864)."""
    wide = torch.promote_types(dtype, torch.float32)
    exponent = torch.arange(0, head_size, 2, device=positions_S.device, dtype=wide) / head_size
    angle = positions_S.to(wide)[:, None] * theta**-exponent
    angle = torch.cat([angle, angle], dim=1)
    return angle.cos(), angle.sin()


def _rotate(x_BSHK: Tensor, mask: CausalMask) -> Tensor:
    wide = x_BSHK.to(mask.cos_SK.dtype)
    first, second = wide.chunk(2, dim=-1)
    turned = torch.cat([-second, first], dim=-1)
    return (wide * mask.cos_SK[:, None] + turned * mask.sin_SK[:, None]).to(x_BSHK.dtype)


class KeyValueLinear(SegmentedModule):
    """Key and value projections when there are fewer key/value heads than tp ranks.

    Several ranks hold the same head and serve different query heads with it, so the gradient of
    each is a term of a sum.
    """

    names_itself = False

    def __init__(self, context: ParallelContext, width: int, kv_heads: int, head_size: int) -> None:
        super().__init__()
        copies = context.tp.size // kv_heads
        head, copy = divmod(context.tp.index, copies)
        names = ("k.weight", "v.weight")
        self.declare(
            "weight",
            *(
                Segment(
                    name,
                    (kv_heads * head_size, width),
                    0,
                    head * head_size,
                    (head + 1) * head_size,
                    "partial",
                    copy == 0,
                    "normal",
                    width**-0.5,
                )
                for name in names
            ),
            dtype=context.dtype,
        )

    def forward(self, x_ND: Tensor) -> Tensor:
        """Return this rank's key head, then its value head."""
        return F.linear(x_ND, self.weight)


class Attention(nn.Module):
    """Multi-head or grouped-query attention."""

    def __init__(
        self,
        context: ParallelContext,
        *,
        width: int,
        heads: int,
        kv_heads: int,
        head_size: int,
        bias: bool,
        qk_norm: bool,
        out_scale: float,
    ) -> None:
        super().__init__()
        self.context, self.head_size = context, head_size
        self.heads = len(even_cut(heads, context.tp.size, context.tp.index))
        self.kv_heads = max(1, kv_heads // context.tp.size)
        outputs = {"q": heads * head_size}
        self.shared_kv: KeyValueLinear | None = None
        if kv_heads < context.tp.size:
            self.shared_kv = KeyValueLinear(context, width, kv_heads, head_size)
        else:
            outputs |= {"k": kv_heads * head_size, "v": kv_heads * head_size}
        self.inputs = ColumnLinear(context, width, outputs, bias=bias)
        self.output = RowLinear(context, "o", heads * head_size, width, bias=bias, scale=out_scale)
        self.q_norm = Norm(context, head_size, "rms", inner=True) if qk_norm else None
        self.k_norm = Norm(context, head_size, "rms", inner=True) if qk_norm else None

    def forward(self, x_nD: Tensor, mask: CausalMask | ImageMask) -> Tensor:
        """Return attention over the tokens, [n, D] -> [n, D]."""
        x_ND = self.context.enter(x_nD)
        fused = self.inputs(x_ND)
        if self.shared_kv is not None:
            fused = torch.cat([fused, self.shared_kv(x_ND)], dim=1)
        shape = fused.shape[0], self.heads + 2 * self.kv_heads, self.head_size
        q, k, v = fused.view(shape).split([self.heads, self.kv_heads, self.kv_heads], dim=1)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        if isinstance(mask, CausalMask):
            heads = _causal(q, k, v, mask)
        else:
            heads = _per_image(q, k, v, mask)
        out: Tensor = self.output(heads)
        return out


def _causal(q_NhK: Tensor, k_NgK: Tensor, v_NgK: Tensor, mask: CausalMask) -> Tensor:
    """Return causal attention inside each sequence, [N, h * K]."""
    num_tokens = q_NhK.shape[0]
    q, k, v = (x.view(mask.batch, -1, *x.shape[1:]) for x in (q_NhK, k_NgK, v_NgK))
    q, k = _rotate(q, mask), _rotate(k, mask)
    out = F.scaled_dot_product_attention(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        is_causal=True,
        enable_gqa=q.shape[2] != k.shape[2],
    )
    return out.transpose(1, 2).reshape(num_tokens, -1)


def _per_image(q_NhK: Tensor, k_NgK: Tensor, v_NgK: Tensor, mask: ImageMask) -> Tensor:
    """Return attention inside each image, [N, h * K]; padding tokens get zeros."""
    num_tokens, heads, head_size = q_NhK.shape
    if mask.tokens.numel() == 0:
        # No image at all: stay on the graph, so that backward still reaches every weight.
        return (q_NhK + k_NgK + v_NgK).flatten(1) * 0
    q, k, v = (x[mask.gather].transpose(1, 2) for x in (q_NhK, k_NgK, v_NgK))
    allowed = None if bool(mask.valid.all()) else mask.valid[:, None, None, :]
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
    flat = out.transpose(1, 2).reshape(-1, heads * head_size)[mask.tokens]
    return F.pad(flat, (0, 0, 0, num_tokens - flat.shape[0]))
