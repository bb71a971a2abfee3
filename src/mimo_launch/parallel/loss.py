"""Cross-entropy and greedy choice over a vocabulary that is cut over tp.

Decides: how ranks combine their parts of the logits.
Relies on: logits in at least fp32.
Leaves: dividing by the number of labels to the caller, who knows N.

Legend: N tokens, V vocabulary, v this rank's part of it. Source: arXiv:1909.08053, section 3.
"""

from typing import Any

import torch
from torch import Tensor

from mimo_launch.comm.collectives import all_reduce, all_reduce_max
from mimo_launch.grids.grid_set import Group
from mimo_launch.layout.tokens import IGNORE_LABEL


class _VocabCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, start: int, group: Group) -> Tensor:
        peak = all_reduce_max(logits.amax(dim=1), group)
        exponent = (logits - peak[:, None]).exp()
        total = all_reduce(exponent.sum(dim=1), group)
        local = labels - start
        here = (local >= 0) & (local < logits.shape[1])
        index = local.masked_fill(~here, 0)[:, None]
        target = all_reduce(logits.gather(1, index)[:, 0].masked_fill(~here, 0), group)
        valid = labels != IGNORE_LABEL
        losses = (total.log() + peak - target).masked_fill(~valid, 0)
        ctx.save_for_backward(exponent / total[:, None], index, here, valid)
        return losses

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        softmax, index, here, valid = ctx.saved_tensors
        scale = grad.masked_fill(~valid, 0)
        out = softmax * scale[:, None]
        out.scatter_add_(1, index, -(scale * here)[:, None])
        return out, None, None, None


def mask_padding(logits_Nv: Tensor, part: range, vocab: int) -> Tensor:
    """Return logits in which padding words (id >= vocab) can never be chosen."""
    real = max(0, min(vocab - part.start, len(part)))
    if real == len(part):
        return logits_Nv
    padding = torch.arange(len(part), device=logits_Nv.device) >= real
    return logits_Nv.masked_fill(padding, float("-inf"))


def vocab_cross_entropy(logits_Nv: Tensor, labels_N: Tensor, part: range, group: Group) -> Tensor:
    """Return the loss of each token, 0 where the label is to be ignored.

    Shapes: logits [N, v], labels [N], result [N], equal on every tp rank. Gradient: softmax minus
    one-hot on this rank's part. Traffic: three all-reduces of N numbers forward, none backward.
    """
    losses: Tensor = _VocabCrossEntropy.apply(  # type: ignore[no-untyped-call]
        logits_Nv, labels_N, part.start, group
    )
    return losses


def greedy_choice(logits_Nv: Tensor, part: range, group: Group) -> Tensor:
    """Return the most probable word of each token, [N], the lowest id among equals."""
    value, index = logits_Nv.max(dim=1)
    best = all_reduce_max(value, group)
    candidate = torch.where(value == best, index + part.start, torch.iinfo(torch.long).max)
    return -all_reduce_max(-candidate, group)
