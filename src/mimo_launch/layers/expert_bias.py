"""The bias that evens out the load of experts without a loss, as in DeepSeek-V3.

Decides: what counts as load, and how the bias moves after a step.
Relies on: tokens that no other rank of the module has (`models.mixture_of_experts` sees to it).
Leaves: choosing experts to `router`, when a step ends to `optimizer.module_optimizers`.

Legend: n tokens of this rank, k choices of a token, E experts, L layers of this rank with experts.

Source: arXiv:2408.15664, algorithm 1; arXiv:2412.19437, section 2.1.2. Megatron-LM calls it
`expert_bias`, transformers `e_score_correction_bias`.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mimo_launch.comm.collectives import all_reduce
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.parameter_segments import SegmentedModule, replicated


class _CountLoad(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, counts_E: Tensor, load_E: Tensor) -> Tensor:
        ctx.load = load_E
        ctx.save_for_backward(counts_E)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        # Here and not in the forward, which runs twice where activations are recomputed, and in
        # evaluations, too.
        ctx.load += ctx.saved_tensors[0]
        return grad, None, None


class ExpertBias(SegmentedModule):
    """What is added to the scores of E experts while a token chooses, and to nothing else.

    No gradient reaches it: after each step it moves by `rate` towards an even load. Of all ranks
    of a layer each holds all of it, in the type of stored weights, whatever FSDP2 computes in.
    """

    names_itself = False
    values: Tensor
    load: Tensor

    def __init__(self, context: ParallelContext, experts: int, rate: float) -> None:
        super().__init__()
        self.rate = rate
        saves = context.counts and context.replicas.index == 0
        segment = replicated(
            "expert_bias",
            (experts,),
            "complete",
            counted=saves,
            init="zeros",
            decay=False,
            trains=False,
        )
        self.declare_buffer("values", segment, dtype=context.dtype)
        # Whole numbers, so that every rank finds the same sign. Zero at the start of a step.
        load = torch.zeros(experts, dtype=torch.int64)
        self.register_buffer("load", load, persistent=False)

    def forward(self, scores_nE: Tensor) -> Tensor:
        """Return by what experts are chosen."""
        return scores_nE.detach() + self.values

    def count(self, x: Tensor, experts_nk: Tensor, is_token_n: Tensor) -> Tensor:
        """Return x; its backward counts the experts that tokens of this rank have chosen."""
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
    """Move the biases of a module's layers on this rank by what all ranks have counted in a step.

    An expert with less than the mean load gains `rate`, one with more loses it. With `skip`, a
    scalar of the device, 1 they stay.

    Ranks: collective over tp and over dp x cp, the same layers on each.
    Traffic: two all-reduces of L * E int64.
    """
    loads_LE = torch.stack([bias.load for bias in biases])
    loads_LE = all_reduce(all_reduce(loads_LE, context.tp), context.replicas)
    total_L1 = loads_LE.sum(dim=-1, keepdim=True)
    signs_LE = (total_L1 - loads_LE * loads_LE.shape[-1]).sign()
    for bias, sign_E in zip(biases, signs_LE, strict=True):
        step_E = bias.rate * sign_E.to(bias.values.dtype)
        bias.values += step_E if skip is None else step_E * (1 - skip).to(step_E.dtype)
