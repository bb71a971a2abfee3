"""The router of a mixture of experts, balanced by an auxiliary loss, by a bias, or by both.

Decides: scores, the choice of experts, the order of tokens by expert, each rank's part of the
balance loss, and how the bias moves after a step; that an auxiliary loss starts its own backward at
its layer, on every pipeline stage; that a choice is one compiled function, because a call costs the
host more than its kernels cost the device.
Relies on: `models.mlp`, which routes each token on one rank only; reductions of gradients, which
are all sums.
Leaves: which tokens are padding to `models.language_input`, moving tokens to `experts`, and the end
of a step to `optimizer.module_optimizers`.

Legend: n tokens of this rank, D width, E experts, k choices of a token, B samples of a microbatch,
L layers of this rank with experts.

The balance loss follows Switch Transformers (arXiv:2101.03961, section 2.2), per sample as in
DeepSeek-V3 (arXiv:2412.19437, section 2.1.2). With f_e the share of a sample's T tokens that chose
expert e, and P_e the mean of its scores, each divided by the token's sum of scores, the loss is E /
k * sum over e of f_e * P_e, which is 1 when the load is balanced. Padding does not count. Only P
has a gradient, and it is a sum over tokens. So f is summed over ranks first, each rank adds the
terms of its tokens, and the loss is the sum over all ranks.

The bias follows arXiv:2408.15664, algorithm 1, and arXiv:2412.19437, section 2.1.2. Megatron-LM
calls it `expert_bias`, transformers `e_score_correction_bias`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mimo_launch.comm.collectives import all_reduce
from mimo_launch.kinds.mlp_shapes import ExpertBiasShape, RouterShape
from mimo_launch.layers.norms import Norm
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.pointwise import widened
from mimo_launch.layers.shaped_layer import ShapedLayer


class AuxLoss:
    """The sum of the auxiliary losses of a step, on the device: a mean over its `samples`."""

    def __init__(self, device: torch.device, samples: int) -> None:
        self.samples = samples
        self.total = torch.zeros((), dtype=torch.float64, device=device)

    def clear(self) -> None:
        """Begin a step."""
        self.total.zero_()

    def add(self, loss: Tensor) -> None:
        """Add a loss after its backward has started."""
        self.total += loss


@dataclass(frozen=True, slots=True)
class RoutingContext:
    """The data of a microbatch that experts need to balance their load.

    `shares` [batch, S] are 1/T for each of the T tokens of a sequence, 0 for its padding; `loss`
    adds up the balance losses.
    """

    shares: Tensor
    loss: AuxLoss


class _AddAuxLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, loss: Tensor, total: AuxLoss) -> Tensor:
        ctx.total = total
        ctx.save_for_backward(loss)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        (loss,) = ctx.saved_tensors
        # Not in the forward, which runs twice where activations are recomputed.
        ctx.total.add(loss)
        return grad, torch.ones_like(loss), None


def add_aux_loss(x: Tensor, loss: Tensor, total: AuxLoss) -> Tensor:
    """Return x; its backward also starts the backward of a scalar loss and adds it to `total`.

    So the loss need not be sent to the last stage: every reduction is a sum.
    """
    out: Tensor = _AddAuxLoss.apply(x, loss, total)  # type: ignore[no-untyped-call]
    return out


@dataclass(frozen=True, slots=True)
class TokenShares:
    """The sample of each of this rank's tokens, [n], and the token's share: 1/T, 0 for padding.

    Samples are numbered from 0; there are `num_samples` B.
    """

    num_samples: int
    sample: Tensor
    share: Tensor


@dataclass(frozen=True, slots=True)
class RowOrder:
    """A permutation of rows: the `places` that they come from, and `back`, its inverse."""

    places: Tensor
    back: Tensor

    @classmethod
    def by(cls, keys: Tensor) -> "RowOrder":
        """Return the order of increasing keys."""
        return cls(*_places_and_back(keys))

    def reversed(self) -> "RowOrder":
        """Return the order that undoes this one."""
        return RowOrder(self.back, self.places)


@dataclass(frozen=True, slots=True)
class Choice:
    """The experts that each token goes to and the weights of their answers, [n, k] each.

    `counts` [E] are the tokens of each expert; `order` sorts the n * k copies of tokens by expert.
    """

    experts: Tensor
    weights: Tensor
    counts: Tensor
    order: RowOrder


class _WideProduct(torch.autograd.Function):
    """Rows times the transpose of a weight, in at least fp32; autograd keeps no wider copies."""

    @staticmethod
    def forward(ctx: Any, x_nD: Tensor, weight_ED: Tensor) -> Tensor:
        ctx.save_for_backward(x_nD if ctx.needs_input_grad[1] else None, weight_ED)
        ctx.dtype = x_nD.dtype
        if x_nD.is_cuda and x_nD.dtype == weight_ED.dtype == torch.bfloat16:
            # Sums are as exact as those of fp32 factors, which get no tensor cores.
            return torch.mm(x_nD, weight_ED.t(), out_dtype=torch.float32)
        return widened(x_nD) @ widened(weight_ED).t()

    @staticmethod
    def backward(ctx: Any, grad_nE: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x_nD, weight_ED = ctx.saved_tensors
        of_x = of_weight = None
        if ctx.needs_input_grad[0]:
            of_x = (grad_nE @ widened(weight_ED)).to(ctx.dtype)
        if ctx.needs_input_grad[1]:
            of_weight = (grad_nE.t() @ widened(x_nD)).to(weight_ED.dtype)
        return of_x, of_weight


class Router(ShapedLayer[RouterShape]):
    """Chooses `top_k` experts for each token, in at least fp32."""

    norm: Norm | None
    expert_bias: "ExpertBias | None"

    def forward(
        self, x_nD: Tensor, tokens: TokenShares | None = None, loss: AuxLoss | None = None
    ) -> Choice:
        """Return the choice of every token; with a `loss`, its backward balances the load."""
        logits: Tensor = _WideProduct.apply(  # type: ignore[no-untyped-call]
            x_nD if self.norm is None else self.norm(x_nD), self.weight
        )
        bias = None if self.bias is None else self.bias.to(logits.dtype)
        if self.norm is not None:
            # Autograd keeps nothing of this; of a weight over the root it would keep a copy.
            logits = logits * self.shape.width**-0.5
        logits = logits if bias is None else logits + bias
        moe, values, shares = self.shape.moe, None, None
        if self.expert_bias is not None:
            values = self.expert_bias.values
        balances = tokens is not None and moe.aux_loss and logits.requires_grad
        if tokens is not None and loss is not None and balances:
            shares = tokens.sample, tokens.share, tokens.num_samples
        groups, is_softmax = (moe.groups, moe.top_groups), moe.score == "softmax"
        rule = moe.top_k, *groups, is_softmax, moe.normalize, moe.scale
        routed = self.context.fused(_routed, logits, values, self.scale, shares, rule)
        experts, weights, counts_E, places, back, *parts = routed
        if loss is not None and parts:
            counted_BE, scored_BE = parts
            balance = self._balance(counted_BE, scored_BE, loss.samples)
            weights = add_aux_loss(weights, balance, loss)
        if tokens is not None and self.expert_bias is not None:
            weights = self.expert_bias.count(weights, experts, tokens.share > 0)
        return Choice(experts, weights, counts_E, RowOrder(places, back))

    def _balance(self, counted_BE: Tensor, scored_BE: Tensor, samples: int) -> Tensor:
        """Return this rank's terms of the balance loss of a microbatch, of `samples` of a step."""
        f_BE = all_reduce(all_reduce(counted_BE, self.context.tp), self.context.cp)
        factor = self.shape.moe.aux_loss / samples * self.shape.moe.experts / self.shape.moe.top_k
        return factor * (f_BE * scored_BE).sum()


# The number of choices, of groups, and of groups that experts are chosen from; whether scores are a
# softmax and whether weights are normalized; the factor of all weights.
_Rule = tuple[int, int, int, bool, bool, float]


def _routed(
    logits_nE: Tensor,
    values_E: Tensor | None,
    scale_E: Tensor | None,
    shares: tuple[Tensor, Tensor, int] | None,
    rule: _Rule,
) -> tuple[Tensor, ...]:
    """Return experts, weights, tokens of each expert, and the order of copies by expert and back.

    With `shares` (sample and share of each token, number of samples) two more tensors follow: those
    of `_shares_of_experts`.
    """
    scores_nE, experts, weights = _chosen(logits_nE, values_E, *rule)
    if scale_E is not None:
        weights = _rescaled(weights, experts, scale_E)
    chosen = experts.flatten()
    counts_E = chosen.new_zeros(logits_nE.shape[1])
    counts_E = counts_E.scatter_add(0, chosen, torch.ones_like(chosen))
    found = experts, weights, counts_E, *_places_and_back(chosen)
    return found if shares is None else found + _shares_of_experts(scores_nE, experts, *shares)


def _places_and_back(keys: Tensor) -> tuple[Tensor, Tensor]:
    """Return the places of increasing keys, and the inverse of this permutation."""
    places = keys.argsort(stable=True)
    numbers = torch.arange(len(places), device=places.device)
    return places, torch.empty_like(places).scatter_(0, places, numbers)


def _chosen(
    logits_nE: Tensor,
    values_E: Tensor | None,
    top_k: int,
    groups: int,
    top_groups: int,
    is_softmax: bool,
    normalize: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the scores of experts, the chosen experts and the weights of their answers.

    `values` are added to the scores for the choice alone.
    """
    scores_nE = logits_nE.softmax(dim=-1) if is_softmax else logits_nE.sigmoid()
    ranked_nE = scores_nE.detach()
    if values_E is not None:
        ranked_nE = ranked_nE + values_E
    if groups > top_groups:
        ranked_nE = _in_best_groups(ranked_nE, groups, top_groups)
    experts = ranked_nE.topk(top_k, dim=-1).indices
    weights = scores_nE.gather(-1, experts)
    if normalize:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return scores_nE, experts, weights * scale


def _rescaled(weights_nk: Tensor, experts_nk: Tensor, scale_E: Tensor) -> Tensor:
    """Return the weights of answers times the factors of their experts.

    The gradient of a factor is a sum over tokens, in a fixed order.
    """
    scale_nE = scale_E.to(weights_nk.dtype).expand(len(weights_nk), -1)
    return weights_nk * scale_nE.gather(-1, experts_nk)


def _shares_of_experts(
    scores_nE: Tensor, experts_nk: Tensor, sample_n: Tensor, share_n: Tensor, num_samples: int
) -> tuple[Tensor, Tensor]:
    """Return how often each sample chooses each expert, and its mean part of the scores, [B, E]."""
    chosen = torch.zeros_like(scores_nE).scatter_(1, experts_nk, 1.0)
    is_of = sample_n == torch.arange(num_samples, device=scores_nE.device)[:, None]
    shares_Bn = torch.where(is_of, share_n, 0.0).to(scores_nE.dtype)
    parts_nE = scores_nE / scores_nE.sum(dim=-1, keepdim=True)
    return shares_Bn @ chosen, shares_Bn @ parts_nE


def _in_best_groups(ranked_nE: Tensor, groups: int, most: int) -> Tensor:
    """Return the scores with -inf for experts outside the best groups.

    A group scores the sum of its two best experts (arXiv:2412.19437, section 2.1.2).
    """
    grouped = ranked_nE.view(len(ranked_nE), groups, -1)
    sums = grouped.topk(min(2, grouped.shape[2]), dim=2).values.sum(dim=2)
    chosen = torch.zeros_like(sums, dtype=torch.bool)
    chosen.scatter_(1, sums.topk(most, dim=1).indices, True)
    return grouped.masked_fill(~chosen.unsqueeze(2), float("-inf")).flatten(1)


class _CountLoad(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, counts_E: Tensor, load_E: Tensor) -> Tensor:
        ctx.load = load_E
        ctx.save_for_backward(counts_E)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        # Not in the forward, which runs twice where activations are recomputed, and in evaluations.
        ctx.load += ctx.saved_tensors[0]
        return grad, None, None


class ExpertBias(ShapedLayer[ExpertBiasShape]):
    """A bias on the scores of E experts, only for the choice, not for the weights of answers.

    It has no gradient: after each step it moves by `rate` towards an even load. Every rank of a
    layer holds all of it, in the dtype of stored weights even if FSDP2 computes in another.
    """

    values: Tensor
    load: Tensor

    def __init__(self, context: ParallelContext, shape: ExpertBiasShape) -> None:
        super().__init__(context, shape)
        self.rate = shape.rate
        # Integers, so that every rank computes the same sign. Zero at the start of a step.
        load = torch.zeros(shape.experts, dtype=torch.int64)
        self.register_buffer("load", load, persistent=False)

    def count(self, x: Tensor, experts_nk: Tensor, is_token_n: Tensor) -> Tensor:
        """Return x; its backward counts the choices of this rank's tokens per expert."""
        if not self.rate or not x.requires_grad:
            return x
        ones_nk = is_token_n.long()[:, None].expand_as(experts_nk)
        counts_E = torch.zeros_like(self.load)
        counts_E.scatter_add_(0, experts_nk.flatten(), ones_nk.flatten())
        out: Tensor = _CountLoad.apply(x, counts_E, self.load)  # type: ignore[no-untyped-call]
        return out


@torch.no_grad()
def move_biases(
    biases: Sequence[ExpertBias], context: ParallelContext, skip: Tensor | None
) -> None:
    """Move the biases of a module's layers on this rank by the load counted on all ranks.

    An expert with less than the mean load gains `rate`, one with more loses it. If `skip`, a scalar
    on the device, is 1, the biases stay.

    Ranks: collective over tp and over dp x cp, with the same layers on each rank.
    Traffic: two all-reduces of L * E int64.
    """
    loads_LE = torch.stack([bias.load for bias in biases])
    loads_LE = all_reduce(all_reduce(loads_LE, context.tp), context.replicas)
    total_L1 = loads_LE.sum(dim=-1, keepdim=True)
    signs_LE = (total_L1 - loads_LE * loads_LE.shape[-1]).sign()
    for bias, sign_E in zip(biases, signs_LE, strict=True):
        step_E = bias.rate * sign_E.to(bias.values.dtype)
        bias.values += step_E if skip is None else step_E * (1 - skip).to(step_E.dtype)
