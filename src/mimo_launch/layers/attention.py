"""Attention with heads cut over tp and tokens over cp: causal, or inside each image of a list.

Decides: projections, and how a rank gets the keys and values of other cp ranks.
Relies on: `sequence_contexts` and `image_contexts` for which tokens attend to which; SDPA, with its
softmax in at least fp32; `varlen_attention` and `chunk_attention`, which need no masks;
`score_attention`.
Leaves: the rest of a block to `models`.

Legend: N tokens of this rank, M tokens that they attend to, D width, h heads and g key/value heads
of this rank, K head size.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mimo_launch.comm.autograd_collectives import gather_tokens
from mimo_launch.comm.process_groups import Group
from mimo_launch.kinds.attention_shapes import AttentionShape
from mimo_launch.layers.chunk_attention import over_chunks, takes_chunks
from mimo_launch.layers.clipped import Clipped
from mimo_launch.layers.dropout import Draws, dropout
from mimo_launch.layers.image_contexts import AttentionContext, ImageContext
from mimo_launch.layers.latent_attention import LatentInputs
from mimo_launch.layers.linear import RegionInputs, RowLinear
from mimo_launch.layers.norms import Norm, Sinks, WideNorm
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.pointwise import placed_heads, rms_norm, sigmoid_gated
from mimo_launch.layers.recompute import Remake, recomputed
from mimo_launch.layers.score_attention import Drop, Scoring, attend_by_scores, queries_at_once
from mimo_launch.layers.sequence_contexts import KeysValues, SequenceContext, in_order
from mimo_launch.layers.shaped_layer import ShapedLayer
from mimo_launch.layers.varlen_attention import inside_documents, inside_images, takes_lists


def gathered_keys(k_NgK: Tensor, v_NgK: Tensor, cp: Group) -> tuple[Tensor, Tensor]:
    """Return keys and values of all cp ranks, one rank after another.

    One collective carries both, so that the order of backwards is the same on every rank.
    """
    if cp.size == 1:
        return k_NgK, v_NgK
    both = gather_tokens(torch.cat([k_NgK.flatten(1), v_NgK.flatten(1)], dim=1), cp)
    sizes = [each.shape[1] * each.shape[2] for each in (k_NgK, v_NgK)]
    k, v = torch.split(both, sizes, dim=1)
    return k.view(-1, *k_NgK.shape[1:]), v.view(-1, *v_NgK.shape[1:])


class Attention(ShapedLayer[AttentionShape]):
    """Multi-head, grouped-query or latent attention; gates as in arXiv:2505.06708."""

    inputs: RegionInputs[Any]
    latent: LatentInputs | None
    sinks: Sinks | None
    output: RowLinear | Clipped
    q_norm: Norm | WideNorm | None
    k_norm: Norm | WideNorm | None

    def __init__(self, context: ParallelContext, shape: AttentionShape) -> None:
        super().__init__(context, shape)
        self.scale = None if shape.score_size is None else shape.score_size**-0.5
        self.score_cap = shape.score_cap
        self.heads = len(context.part(shape.heads))
        self.kv_heads = max(1, shape.kv_heads // context.tp.size)
        self.drop_scores = dropout(context.attention_dropout, context.fused)

    def forward(
        self, x_nD: Tensor, attention_context: AttentionContext, again: Remake | None = None
    ) -> Tensor | tuple[Tensor, KeysValues]:
        """Return attention over the tokens, [n, D] -> [n, D]; see `RegionInputs.of_tokens`.

        A layer that gives its keys and values also returns these.
        """
        draws = attention_context.draws
        source: Callable[..., tuple[Tensor, ...]] = self.latent or self._projected
        q, k, v, *gates = source(x_nD, draws, again)
        held = None
        if isinstance(attention_context, SequenceContext):
            q, held = self._seen(q, k, v, attention_context)
            heads = self._causal(q, held.keys, held.values, attention_context)
        else:
            heads = self._per_image(q, k, v, attention_context)
        for gate in gates:
            heads = self.context.fused(sigmoid_gated, heads, gate)
        out: Tensor = self.output(heads, draws)
        return out if held is None or self.shape.sharing != "gives" else (out, held)

    def _projected(
        self, x_nD: Tensor, draws: Draws | None, again: Remake | None
    ) -> tuple[Tensor, ...]:
        """Return queries, keys, values and any gates of this rank's heads, [N, h or g, K]."""
        fused: Any = self.inputs.of_tokens(x_nD, draws, again)
        parts = self.shape.query_parts
        queries, keys = self.heads * parts, [self.kv_heads] * self.shape.key_parts
        heads = fused.view(fused.shape[0], queries + sum(keys), self.shape.head_size)
        # A layer that takes keys of another one has none.
        q, *others = heads.split([queries, *keys], dim=1)
        k = others[0] if others else heads[:, :0]
        v = others[1] if len(others) > 1 else k
        # The backward of `unbind` copies.
        q, *gates = q.unflatten(1, (self.heads, parts)).unbind(2) if parts > 1 else (q,)
        if isinstance(self.q_norm, WideNorm):
            q = self.q_norm(q)
            k = self.k_norm(k) if self.k_norm is not None else k
        if (most := self.shape.clip) is not None:
            q, k, v = (x.clamp(-most, most) for x in (q, k, v))
        if self.shape.value_norm:
            v = self.context.fused(rms_norm, v, None, self.shape.eps, 0.0)
        return (q, k, v, *gates)

    def _placed(
        self,
        q: Tensor,
        k: Tensor,
        cos: Tensor | None,
        sin: Tensor | None,
        factors: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return queries and keys, normed by head and rotated, in one pass."""
        q_norm, k_norm = self.q_norm, self.k_norm
        eps, offset = 0.0, 0.0
        weights: tuple[Tensor | None, Tensor | None] | None = None
        if isinstance(q_norm, Norm):
            of_keys = k_norm.weight if isinstance(k_norm, Norm) else None
            weights, shape = (q_norm.weight, of_keys), q_norm.shape
            eps, offset = shape.eps, shape.offset
        elif self.shape.l2_norm:
            weights, eps = (None, None), self.shape.eps
        if weights is None and cos is None and factors is None:
            return q, k
        rest = cos, sin, factors, weights, eps, offset, self.shape.pairs, self.shape.norm_last
        return self.context.fused(placed_heads, q, k, *rest)

    def _seen(
        self, q_NhK: Tensor, k_NgK: Tensor, v_NgK: Tensor, sequences: SequenceContext
    ) -> tuple[Tensor, KeysValues]:
        """Return queries [B, S, h, K], and keys and values of whole sequences.

        Raises: ValueError if they are those of another layer, but not there.
        """
        batch, cp = sequences.batch, self.context.cp.size
        q, k = (x.view(batch, len(x) // batch, *x.shape[1:]) for x in (q_NhK, k_NgK))
        q, k = self._placed(q, k, sequences.cos, sequences.sin, sequences.factors)
        if self.shape.sharing == "takes":
            if sequences.held is None:
                raise ValueError("a layer needs the keys and values of an earlier layer")
            return q, sequences.held
        gathered = gathered_keys(k.flatten(0, 1), v_NgK, self.context.cp)
        return q, KeysValues(*(in_order(x, batch, cp) for x in gathered))

    def _causal(
        self, q: Tensor, k_all: Tensor, v_all: Tensor, sequences: SequenceContext
    ) -> Tensor:
        """Return causal attention inside each sequence, [N, h * K]; see `_seen` for q.

        Keys and values are [B, M, g, K].
        """
        cp, tokens = self.context.cp.size, q.shape[0] * q.shape[1]
        draws = sequences.draws
        drops = self.drop_scores is not None and draws is not None
        by_scores = self.score_cap is not None or drops
        kernels = self.shape.mask("masked" if drops else sequences.mask, cp)
        if cp > 1 and kernels == "causal" and takes_chunks(q, k_all):
            group, fused = self.context.cp, self.context.fused
            out = over_chunks(q, k_all, v_all, group, scale=self.scale, fused=fused)
            return out.reshape(tokens, -1)
        # Without chunks whole sequences are a list, too.
        listed = kernels == "documents" or (cp > 1 and kernels == "causal")
        if listed and takes_lists(q):
            out = inside_documents(
                q,
                k_all,
                v_all,
                sequences.lengths(k_all.shape[1]),
                self.context.cp,
                reach=sequences.reach,
                scale=self.scale,
                sinks_h=None if self.sinks is None else self.sinks(),
            )
            return out.flatten(1)
        q, k_all, v_all = (x.transpose(1, 2) for x in (q, k_all, v_all))
        # With cp, this rank has two chunks of the sequence; each sees the keys up to its end.
        index, seq = self.context.cp.index, k_all.shape[2]
        ends = (
            [seq] if cp == 1 else [(n + 1) * seq // (2 * cp) for n in (index, 2 * cp - 1 - index)]
        )
        outs, numbers_BS = [], None
        for number, (part, end) in enumerate(zip(q.chunk(len(ends), dim=2), ends, strict=True)):
            mask = sequences.masks[number] if sequences.masks else None
            if not by_scores:
                outs.append(self._up_to(end, part, k_all, v_all, sequences, mask))
                continue
            most, first = queries_at_once(sequences.batch, end), 0
            for block in torch.split(part, most, dim=2):
                last = first + block.shape[2]
                rows = None if mask is None else mask[:, :, first:last]
                place = end - part.shape[2] + last
                if drops and draws is not None:
                    held = draws.tokens.view(sequences.batch, -1).chunk(len(ends), dim=1)[number]
                    numbers_BS = held[:, first:last]
                seen = place, block, k_all, v_all, sequences, rows, numbers_BS
                outs.append(recomputed(self._up_to, *seen, nested=True))
                first = last
        out = outs[0] if len(outs) == 1 else torch.cat(outs, dim=2)
        return out.transpose(1, 2).reshape(tokens, -1)

    def _up_to(
        self,
        end: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        sequences: SequenceContext,
        mask: Tensor | None,
        numbers_BS: Tensor | None = None,
    ) -> Tensor:
        """Return attention of queries that end with token `end` - 1, [B, heads, S, K] each.

        Keys, values and a mask cover whole sequences. Queries with `numbers_BS` drop weights.
        """
        if mask is not None:
            return self._attend(q, k, v, mask, drop=self._drops(numbers_BS, sequences, 0, end=None))
        needs_mask = sequences.needs_mask or self.sinks is not None or self.score_cap is not None
        if self.context.cp.size == 1 and not needs_mask and numbers_BS is None:
            return self._attend(q, k, v, None)
        size, reach = q.shape[2], sequences.reach
        first = 0 if reach is None else max(0, end - size + 1 - reach)
        allowed = sequences.lower_right(size, end)[..., first:]
        drop = self._drops(numbers_BS, sequences, first, end=end)
        return self._attend(q, k[:, :, first:end], v[:, :, first:end], allowed, drop=drop)

    def _drops(
        self, numbers_BS: Tensor | None, sequences: SequenceContext, first: int, *, end: int | None
    ) -> Drop | None:
        """Return what drops weights of queries, for keys `first:end` of whole sequences."""
        if self.drop_scores is None or numbers_BS is None or sequences.draws is None:
            return None
        every = sequences.draws.every
        if every is None:
            raise ValueError("dropout of attention needs the numbers of whole sequences")
        head = self.context.part(self.shape.heads).start
        keys = every[:, first:end]
        return partial(self.drop_scores.scores, queries_BS=numbers_BS, keys_BM=keys, first=head)

    def _attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        allowed: Tensor | None,
        *,
        causal: bool = True,
        drop: Drop | None = None,
    ) -> Tensor:
        """Return attention by an explicit mask, or causal by position; [B, heads, S, K] each.

        Sinks, capped scores and dropout need a mask.
        """
        by_scores = self.sinks is not None or self.score_cap is not None or drop is not None
        if allowed is not None and by_scores:
            sinks_h = None if self.sinks is None else self.sinks()
            scoring = Scoring(self.scale, self.score_cap, sinks_h)
            return attend_by_scores(q, k, v, allowed, scoring, drop)
        return F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=allowed,
            is_causal=causal and allowed is None,
            scale=self.scale,
            enable_gqa=self.heads != self.kv_heads,
        )

    def _per_image(
        self, q_NhK: Tensor, k_NgK: Tensor, v_NgK: Tensor, images: ImageContext
    ) -> Tensor:
        """Return attention inside each image, [N, h * K]; padding tokens get zeros."""
        q_NhK, k_NgK = self._placed(q_NhK, k_NgK, images.cos, images.sin)
        k_MgK, v_MgK = gathered_keys(k_NgK, v_NgK, self.context.cp)
        order = images.order
        if order is None:
            return self._listed(q_NhK, k_MgK, v_MgK, images)
        q_NhK = q_NhK.index_select(0, order.own)
        k_MgK, v_MgK = (x.index_select(0, order.keys) for x in (k_MgK, v_MgK))
        return self._listed(q_NhK, k_MgK, v_MgK, images).index_select(0, order.back)

    def _listed(self, q_NhK: Tensor, k_MgK: Tensor, v_MgK: Tensor, images: ImageContext) -> Tensor:
        """Return this attention from this rank's queries and the keys that they attend to."""
        num_tokens, heads, head_size = q_NhK.shape
        if images.same is not None:
            q, k, v = (
                x.view(*images.same, *x.shape[1:]).transpose(1, 2) for x in (q_NhK, k_MgK, v_MgK)
            )
            out = self._attend(q, k, v, None, causal=images.is_causal)
            return out.transpose(1, 2).reshape(num_tokens, -1)
        if images.tokens.numel() == 0:
            # No image here: stay on the graph, so that backward still reaches every weight and
            # every rank of the cp group joins the collective.
            return q_NhK.flatten(1) * 0 + (k_MgK.sum() + v_MgK.sum()) * 0
        # A causal kernel assumes that a rank's queries of an image are the image's last tokens.
        listed = images.own_lengths == images.key_lengths or not images.is_causal
        if listed and takes_lists(q_NhK):
            out = inside_images(q_NhK, k_MgK, v_MgK, images).flatten(1)
            padding = num_tokens - len(out)
            return F.pad(out, (0, 0, 0, padding)) if padding else out
        q = _at(q_NhK, images.queries).transpose(1, 2)
        k, v = (_at(x, images.keys).transpose(1, 2) for x in (k_MgK, v_MgK))
        allowed = None if images.is_full else images.valid[:, None]
        out = self._attend(q, k, v, allowed, causal=False)
        flat = out.transpose(1, 2).reshape(-1, heads * head_size)[images.tokens]
        return F.pad(flat, (0, 0, 0, num_tokens - flat.shape[0]))


def _at(x_NhK: Tensor, places: Tensor) -> Tensor:
    """Return the tokens at `places`, [*places, h, K].

    The backward of `index_select` adds, which is faster than the sort of a tensor index's backward.
    """
    return x_NhK.index_select(0, places.flatten()).view(*places.shape, *x_NhK.shape[1:])
