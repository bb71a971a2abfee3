"""A mixture of experts in place of the MLP of a block.

Decides: which tokens of a replica each tp rank sends, and how answers are put together.
Relies on: `layers.router`, `layers.token_dispatch` and `layers.experts`.
Leaves: sharding the experts over their replicas to `build`.

Legend: N tokens of a replica's cp rank, n those of this tp rank, D width, k choices of a token.

tp ranks that hold the same tokens (without sequence parallelism) each route a part of them, or
every token would travel once per tp rank.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mimo_launch.comm.autograd_collectives import gather_rows, split_rows
from mimo_launch.kinds.share import even_cut
from mimo_launch.layers.attention_contexts import AttentionContext, SequenceContext
from mimo_launch.layers.experts import Experts
from mimo_launch.layers.parallel_context import ParallelContext
from mimo_launch.layers.router import Choice, Router, TokenShares
from mimo_launch.layers.token_dispatch import PlannedTrip, Trip, from_experts, to_experts
from mimo_launch.spec.language import Moe


@dataclass(frozen=True, slots=True)
class MoeShape:
    """A mixture of experts of a model; `coefficient` is that of its loss, over a step's samples."""

    model: Moe
    coefficient: float


class MoeMlp(nn.Module):
    """Experts for each token, and an MLP for all of them if the model shares one: [n, D]."""

    def __init__(
        self,
        context: ParallelContext,
        shape: MoeShape,
        width: int,
        *,
        gated: bool,
        out_scale: float,
        shared: nn.Module | None,
    ) -> None:
        super().__init__()
        self.context, self.num_experts = context, shape.model.experts
        self.router = Router(context, shape.model, width, shape.coefficient)
        self.experts = Experts(context, shape.model, width, gated=gated, out_scale=out_scale)
        self.shared = shared

    def forward(self, x_nD: Tensor, attention_context: AttentionContext) -> Tensor:
        """Return the weighted answers of every token's experts.

        Without a routing context the load is not balanced.
        """
        routing = None
        if isinstance(attention_context, SequenceContext):
            routing = attention_context.routing
        tokens = None if routing is None else self._tokens(routing.shares)
        own_nD, sizes = self._own(x_nD)
        choice = self.router(own_nD, tokens, None if routing is None else routing.loss)
        planned = PlannedTrip(self.context, choice.experts, self.num_experts)
        # While the host waits for the sizes of the trip, the device has this to compute.
        shared = None if self.shared is None else self.shared(x_nD)
        routed = self._answers(own_nD, choice, planned.trip())
        if sizes is not None:
            routed = gather_rows(routed, sizes, self.context.tp)
        return routed if shared is None else routed + shared

    def _own(self, x_nD: Tensor) -> tuple[Tensor, tuple[int, ...] | None]:
        """Return the tokens that this tp rank routes, and how many each does if they are parts."""
        tp = self.context.tp
        if tp.size == 1 or self.context.sequence_parallel:
            return x_nD, None
        sizes = tuple(len(even_cut(x_nD.shape[0], tp.size, index)) for index in range(tp.size))
        return split_rows(x_nD, sizes, tp), sizes

    def _tokens(self, shares_BS: Tensor) -> TokenShares:
        """Return what this tp rank's tokens are of their samples."""
        tp, (samples, positions) = self.context.tp, shares_BS.shape
        part = even_cut(samples * positions, tp.size, tp.index)
        places = torch.arange(part.start, part.stop, device=shares_BS.device)
        own = shares_BS.flatten()[part.start : part.stop]
        return TokenShares(samples, places // positions, own)

    def _answers(self, x_nD: Tensor, choice: Choice, trip: Trip) -> Tensor:
        arrived = to_experts(x_nD, trip, self.context)
        answers = self.experts(arrived, trip.counts)
        answers = from_experts(answers, trip, self.context)
        weights_n1k = choice.weights.to(answers.dtype).unsqueeze(1)
        per_token = answers.view(*choice.weights.shape, x_nD.shape[1])
        return torch.bmm(weights_n1k, per_token).squeeze(1)
