"""Known ways to get a mixture of experts wrong; `planted` lists them with the others."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from tests.support.shapes import plant
from tests.support.specs import box, spec
from torch.distributed.fsdp import FSDPModule

from mimo_launch.comm import autograd_collectives
from mimo_launch.comm.gradient_reduction import GradientReduction
from mimo_launch.comm.process_groups import GridSet, Group
from mimo_launch.kinds.mlp_shapes import RouterShape
from mimo_launch.layers import norms, router
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.models import fsdp, language_input, mlp
from mimo_launch.optimizer import module_optimizers
from mimo_launch.spec.spec import Spec


def mixture(**settings: Any) -> dict[str, Any]:
    """Return a model with four experts, whose loss of balance weighs as much as the main one."""
    return {"moe": {"experts": 4, "top_k": 2, "width": 8, "aux_loss": 0.5, **settings}}


def routed(
    experts: dict[str, int],
    sizes: dict[str, Any] | None = None,
    *,
    packing: bool = False,
    **grid: Any,
) -> Spec:
    """Text in a model of four experts on one grid; packs of records are of unequal lengths."""
    module = box(0, model=mixture(**(sizes or {})), experts=experts, **grid)
    return spec({"language": module}, microbatches=2, mbs=2, text_only=1.0, packing=packing)


def shared_gate_ignored() -> None:
    """The shared expert's answer is added as it is."""
    norms.TokenGate.forward = lambda self, x, change: change + 0 * self.weight.sum()


def shared_gate_taken_for_whole() -> None:
    """Gradients of the shared gate from parts of the tokens are not added up."""
    correct = norms.TokenGate.__init__

    def whole(self: Any, *args: Any) -> None:
        correct(self, *args)
        segments = self.segments["weight"]
        self.segments["weight"] = tuple(replace(x, tp_grad="complete") for x in segments)

    norms.TokenGate.__init__ = whole


def counted_per_tp_rank() -> None:
    """Every tp rank adds the balance loss of all tokens, not of its own."""
    correct = router.Router._balance
    router.Router._balance = lambda self, *rest: correct(self, *rest) * self.context.tp.size


def balance_of_own_tokens() -> None:
    """The share of a sample that chose an expert is that of the tokens of one cp rank."""
    correct = router.all_reduce
    router.all_reduce = lambda x, group: correct(x, group) if group.size == 1 else x


def balance_of_a_microbatch() -> None:
    """The tokens of all samples of a microbatch are balanced together, not each sample's own."""
    correct = router._shares_of_experts

    def together(scores: Any, experts: Any, sample: Any, share: Any, num: int) -> Any:
        counted, scored = correct(scores, experts, sample * 0, share / num, 1)
        return counted, scored * num

    router._shares_of_experts = together


def shared_expert_counted_per_tp_rank() -> None:
    """Answers of experts are added to each tp rank's part of the shared one, before its sum."""
    correct = mlp.MoeMlp.forward

    def forward(self: Any, x: Any, *more: Any) -> torch.Tensor:
        shared, self.shared = self.shared, None
        routed = correct(self, x, *more)
        self.shared = shared
        return routed * self.context.tp.size + shared(x)

    mlp.MoeMlp.forward = forward


def padding_counted() -> None:
    """Padding counts as tokens of its sample."""
    correct = language_input.token_shares

    def all_positions(view: Any, *rest: Any) -> torch.Tensor:
        return torch.full_like(correct(view, *rest), 1 / view.layout.seq)

    language_input.token_shares = all_positions


def summed_over_dense_replicas() -> None:
    """Gradients of experts are summed over dp x cp of the module, where others stand."""
    correct = GridSet.mesh
    GridSet.mesh = lambda self, module, axes="dp_cp": correct(self, module)


def not_summed_over_replicas() -> None:
    """Replicas of an expert keep the gradients of their own tokens."""
    correct = FSDPModule.set_custom_reduce_scatter

    class OwnShare(GradientReduction):
        def __call__(self, output_tensor: Any, input_tensor: Any, group: Any, *rest: Any, **_: Any):
            output_tensor.copy_(input_tensor.view(group.size(), -1)[group.rank()])

    def give(unit: Any, reduction: Any) -> None:
        if isinstance(unit, fsdp.Experts):
            reduction.__class__ = OwnShare
        correct(unit, reduction)

    FSDPModule.set_custom_reduce_scatter = give


def router_taken_for_complete() -> None:
    """The gradient of a router is that of one tp rank's tokens."""
    plant(RouterShape, terms="complete")


def parts_of_gradients_not_summed() -> None:
    """Ranks that split an expert keep their own part of the gradient of a token."""

    def own(grad: torch.Tensor, sizes: tuple[int, ...], group: Any) -> torch.Tensor:
        start = sum(sizes[: group.index])
        return grad[start : start + sizes[group.index]].clone()

    autograd_collectives.GATHER_UNEVEN.back = own


def tokens_sent_per_tp_rank() -> None:
    """tp ranks that hold the same tokens send all of them, and add up the answers."""

    def all_tokens(self: Any, shares: Any) -> Any:
        samples, positions = shares.shape
        places = torch.arange(samples * positions)
        return mlp.TokenShares(samples, places // positions, shares.flatten())

    mlp.MoeMlp._own, mlp.MoeMlp._tokens = (
        lambda self, x: (x, None),
        all_tokens,
    )


def loads_of_one_replica() -> None:
    """Each replica moves its biases by the tokens that it has routed itself."""
    _without_sum_over(lambda context: context.replicas)


def loads_of_one_tp_rank() -> None:
    """Each tp rank moves its biases by its own part of the tokens of a replica."""
    _without_sum_over(lambda context: context.tp)


def _without_sum_over(own: Callable[[ParallelContext], Group]) -> None:
    correct = router.all_reduce

    def move(biases: Any, context: Any, skip: Any) -> None:
        router.all_reduce = lambda x, group: x if group is own(context) else correct(x, group)
        right(biases, context, skip)

    right, module_optimizers.move_biases = module_optimizers.move_biases, move


def chosen_without_bias() -> None:
    """The bias moves, and experts are chosen as if there were none."""
    correct = router._chosen
    router._chosen = lambda logits, values, *rest: correct(logits, None, *rest)


BIASED = {"score": "sigmoid", "aux_loss": 0.0, "bias_update_rate": 0.01}
GATED = {"shared": 8, "shared_gate": True}
EXPERT_BUGS = {
    "shared gate ignored": (shared_gate_ignored, routed({"ep": 2}, GATED, dp=2)),
    "parts of a shared gate not summed": (
        shared_gate_taken_for_whole,
        routed({"ep": 2}, GATED, tp=2, sequence_parallel=True),
    ),
    "loads of one replica": (loads_of_one_replica, routed({"ep": 2}, BIASED, dp=2)),
    "loads of one tp rank": (loads_of_one_tp_rank, routed({"ep": 2}, BIASED, tp=2)),
    "experts chosen without bias": (chosen_without_bias, routed({"ep": 2}, BIASED, dp=2)),
    "aux loss counted per tp rank": (counted_per_tp_rank, routed({"ep": 2}, tp=2)),
    "balance of a cp rank's own tokens": (balance_of_own_tokens, routed({"ep": 2}, cp=2)),
    "balance of a whole microbatch": (balance_of_a_microbatch, routed({"ep": 2}, dp=2)),
    "routed answers summed with the shared one": (
        shared_expert_counted_per_tp_rank, routed({"ep": 2}, {"shared": 8}, tp=2),
    ),
    "padding balanced": (padding_counted, routed({"ep": 2}, dp=2, packing=True)),
    "experts summed over dense dp": (summed_over_dense_replicas, routed({"ep": 2}, dp=2)),
    "replicas of experts not summed": (not_summed_over_replicas, routed({"ep": 2}, dp=4)),
    "router taken for complete": (
        router_taken_for_complete, routed({"ep": 2}, tp=2, sequence_parallel=True),
    ),
    "gradients of a split expert not summed": (
        parts_of_gradients_not_summed, routed({"tp": 2}, dp=2),
    ),
    "tokens sent once per tp rank": (tokens_sent_per_tp_rank, routed({"ep": 2}, tp=2)),
}  # fmt: skip
