"""The vocabulary, cut over tp: token embedding, output layer, cross-entropy and greedy choice.

Decides: that rows of the vocabulary are cut as evenly as possible, that each rank looks up its own
ids, and how ranks combine their parts of the logits.
Relies on: `parallel_context` for the sum at the end of a look-up; logits in the model's dtype, with
sums over them in at least fp32.
Leaves: dividing the loss by the number of labels to the caller.

Legend: N tokens, D width, V vocabulary; lower case means this rank's share. Source:
arXiv:1909.08053, section 3.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mimo_launch.comm.collectives import all_reduce, all_reduce_max
from mimo_launch.comm.process_groups import Group
from mimo_launch.kinds.shapes import HeadShape, VocabShape
from mimo_launch.kinds.vocabulary import IGNORE_LABEL
from mimo_launch.layers.linear import GradAccumulator, linear
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.pointwise import widened
from mimo_launch.layers.shaped_layer import ShapedLayer


class VocabEmbedding(ShapedLayer[VocabShape]):
    """Token embedding with the vocabulary cut evenly over tp: [N] -> [n or N, D].

    For ids [N, K], the embeddings of a token's K ids are summed.
    """

    @property
    def part(self) -> range:
        """The ids of this rank."""
        return self.context.part(self.shape.vocab)

    def forward(self, ids_N: Tensor) -> Tensor:
        """Return the embeddings; each rank looks up its own ids and adds zeros for the others."""
        rows = self.own_rows(ids_N)
        return self.context.leave(rows if ids_N.dim() == 1 else rows.sum(dim=1))

    def own_rows(self, ids_N: Tensor, *, still: int | None = None) -> Tensor:
        """Return this rank's terms of the embeddings: zeros for the ids of other ranks.

        The embedding of the id `still` gets no gradient.
        """
        local = ids_N - self.part.start
        outside = (local < 0) | (local >= len(self.part))
        fixed = still - self.part.start if still is not None and still in self.part else None
        rows = F.embedding(local.masked_fill(outside, 0), self.weight, padding_idx=fixed)
        return rows.masked_fill(outside.unsqueeze(-1), 0)


class VocabHead(ShapedLayer[HeadShape]):
    """Output layer with the vocabulary cut over tp: [N, D] -> this rank's logits [N, v]."""

    weight_gradients: GradAccumulator | None = None

    @property
    def part(self) -> range:
        """The ids of this rank."""
        return self.context.part(self.shape.vocab)

    def forward(self, x_ND: Tensor) -> Tensor:
        """Return this rank's logits."""
        return linear(x_ND, self.weight, None, self.weight_gradients)


class _VocabCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, labels: Tensor, start: int, context: ParallelContext
    ) -> Tensor:
        group, fused = context.tp, context.fused
        peak = all_reduce_max(fused(_peak, logits), group)
        total = all_reduce(fused(_sum_of_exponents, logits, peak), group)
        local = labels - start
        here = (local >= 0) & (local < logits.shape[1])
        index = local.masked_fill(~here, 0)[:, None]
        found = logits.gather(1, index)[:, 0].to(peak.dtype)
        target = all_reduce(found.masked_fill(~here, 0), group)
        valid = labels != IGNORE_LABEL
        losses = (total.log() + peak - target).masked_fill(~valid, 0)
        if ctx.needs_input_grad[0]:
            # The gradient replaces the logits: one tensor of that size is kept, not two.
            ctx.save_for_backward(fused(_gradient, logits, peak, total, local, valid))
        ctx.context = context
        return losses

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return ctx.context.fused(_scaled, gradient, grad), None, None, None


# Passes over all logits [N, v]: input and output in the dtype of the logits, inside at least fp32.


def _peak(logits: Tensor) -> Tensor:
    return widened(logits.amax(dim=1))


def _sum_of_exponents(logits: Tensor, peak: Tensor) -> Tensor:
    return (widened(logits) - peak[:, None]).exp().sum(dim=1)


def _gradient(logits: Tensor, peak: Tensor, total: Tensor, local: Tensor, valid: Tensor) -> Tensor:
    softmax = (widened(logits) - peak[:, None]).exp() / total[:, None]
    words = torch.arange(logits.shape[1], device=logits.device)
    hit = words == local[:, None]
    return ((softmax - hit.to(softmax.dtype)) * valid[:, None]).to(logits.dtype)


def _scaled(gradient: Tensor, grad: Tensor) -> Tensor:
    return (widened(gradient) * grad[:, None]).to(gradient.dtype)


def mask_padding(logits_Nv: Tensor, part: range, vocab: int) -> Tensor:
    """Return the logits with padding ids (>= vocab) set to -inf, so that they are never chosen."""
    real = max(0, min(vocab - part.start, len(part)))
    if real == len(part):
        return logits_Nv
    padding = torch.arange(len(part), device=logits_Nv.device) >= real
    return logits_Nv.masked_fill(padding, float("-inf"))


def vocab_cross_entropy(
    logits_Nv: Tensor, labels_N: Tensor, part: range, context: ParallelContext
) -> Tensor:
    """Return the loss of each token, in at least fp32; 0 where the label is ignored.

    Shapes: logits [N, v], labels [N], result [N], equal on every tp rank. Gradient: softmax minus
    one-hot on this rank's part. Traffic: three all-reduces of N numbers forward, none backward.
    """
    losses: Tensor = _VocabCrossEntropy.apply(  # type: ignore[no-untyped-call]
        logits_Nv, labels_N, part.start, context
    )
    return losses


def greedy_choice(logits_Nv: Tensor, part: range, group: Group) -> Tensor:
    """Return the most probable next id of each token, [N]; of equal ones, the lowest."""
    value, index = widened(logits_Nv).max(dim=1)
    best = all_reduce_max(value, group)
    candidate = torch.where(value == best, index + part.start, torch.iinfo(torch.long).max)
    return -all_reduce_max(-candidate, group)
